// Any message to the services health and reflection, with any descriptors, is answered or refused.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/grpc/descriptor_index.h"
#include "server/grpc/framing.h"
#include "server/grpc/health.h"
#include "server/grpc/reflection.h"
#include "session_testing.h"

namespace tidegate::server {
namespace {

void Run(std::string_view bytes) {
  DescriptorIndex index;
  index.Add(bytes);
  (void)index.FileOfSymbol("a.B");

  std::string_view message;
  std::string why;
  std::string unpacked;
  for (const GrpcEncoding encoding : {GrpcEncoding::kGzip, GrpcEncoding::kDeflate}) {
    why.clear();
    const GrpcStatus status = UnaryMessage(bytes, encoding, 100, &unpacked, &message, &why);
    if ((status == GrpcStatus::kOk) != why.empty() || message.size() > 100) std::abort();
  }
  const auto timeout = ParseGrpcTimeout(bytes);
  if (timeout.has_value() && timeout->count() < 0) std::abort();

  Routes routes;
  Health health;
  Answer answer;
  Request request;
  request.body = bytes;
  (void)health.Handle(request, &answer, [] { return std::unique_ptr<Pending>(); });
  Reflection reflection(&routes);
  (void)reflection.Respond(bytes);
}

}  // namespace
}  // namespace tidegate::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tidegate::server::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
