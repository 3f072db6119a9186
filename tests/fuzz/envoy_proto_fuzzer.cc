// Any message for Envoy's ShouldRateLimit is answered, or refused with a reason.
#include <cstddef>
#include <cstdint>

#include "open_envoy_service.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tidegate::server::GrpcStatus;
  using tidegate::server::envoy::Check;
  const auto answer = tidegate::server::envoy::Ask(data, size, /*is_grpc=*/true);
  const bool is_refused = answer.grpc_status == GrpcStatus::kInvalidArgument;
  Check(is_refused || answer.grpc_status == GrpcStatus::kOk);
  Check(is_refused != answer.grpc_message.empty());
  return 0;
}
