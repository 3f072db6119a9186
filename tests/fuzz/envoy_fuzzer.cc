// Any body for Envoy's rate limit service, after a byte that says whether as protobuf or as JSON.
// It is answered, or refused with a reason.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/envoy/envoy_service.h"
#include "tidegate/memory_store.h"

namespace {

using tidegate::server::Answer;
using tidegate::server::GrpcStatus;
using tidegate::server::Pending;
using tidegate::server::Request;
using tidegate::server::envoy::DescriptorTree;
using tidegate::server::envoy::EnvoyService;

std::shared_ptr<EnvoyService> MakeService() {
  auto tree = std::make_shared<DescriptorTree>();
  const auto domain = tree->AddDomain({.name = "d"});
  const auto user = tree->AddDescriptor(*domain, {.key = "k", .limits = {"5/minute", "9/hour"}});
  (void)tree->AddDescriptor(*user, {.key = "p", .value = "a*", .share_threshold = true});
  (void)tree->AddDescriptor(*user, {.key = "q", .limits = {"3/day"}, .quota = true});
  (void)tree->AddDescriptor(*domain, {.key = "k", .value = "v*", .limits = {"1/day"}});
  auto service = std::make_shared<EnvoyService>(
      *tidegate::MemoryStore::Create({.capacity = 10'000}),
      std::make_shared<tidegate::ManualClock>(int64_t{1'700'000'000} * 1'000'000'000), "fuzz",
      tidegate::server::envoy::ServiceOptions{.response_headers = true});
  if (!service->Use(tree).ok()) __builtin_trap();
  return service;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<EnvoyService> service = MakeService();
  if (size == 0) return 0;
  // A copy of its own, so that a read beyond its end is found.
  const std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  Request request;
  request.method = "POST";
  request.is_grpc = data[0] % 2 == 0;
  request.body = body;
  Answer answer;
  const auto never = []() -> std::unique_ptr<Pending> { __builtin_trap(); };
  if (!service->Handle(request, &answer, never)) __builtin_trap();
  if (request.is_grpc) {
    const bool refused = answer.grpc_status == GrpcStatus::kInvalidArgument;
    if (!refused && answer.grpc_status != GrpcStatus::kOk) __builtin_trap();
    if (refused == answer.grpc_message.empty()) __builtin_trap();
  } else {
    const int status = answer.http_status;
    if (status != 200 && status != 400 && status != 429) __builtin_trap();
    if (answer.body.empty() || answer.body.front() != '{') __builtin_trap();
  }
  return 0;
}
