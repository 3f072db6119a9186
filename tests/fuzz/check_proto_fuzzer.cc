// Messages of tidegate.v1: each is answered, or refused with a reason if it is malformed.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "open_check_service.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tidegate::server::Check;
  using tidegate::server::GrpcStatus;
  constexpr std::string_view kPaths[] = {
      "/tidegate.v1.RateLimiter/Check", "/tidegate.v1.RateLimiter/CheckMany",
      "/tidegate.v1.RateLimiter/Peek",  "/tidegate.v1.RateLimiter/Refund",
      "/tidegate.v1.RateLimiter/Reset", "/tidegate.v1.RateLimiter/Status",
  };
  if (size == 0) return 0;
  tidegate::server::Request request;
  request.method = "POST";
  request.path = kPaths[data[0] % 6];
  request.body = {reinterpret_cast<const char*>(data) + 1, size - 1};
  request.is_grpc = true;
  const auto answer = tidegate::server::Ask(request);
  if (answer.grpc_status == GrpcStatus::kOk) {
    Check(answer.grpc_message.empty());
  } else {
    Check(answer.grpc_status == GrpcStatus::kInvalidArgument);
    Check(!answer.grpc_message.empty() && answer.body.empty());
  }
  return 0;
}
