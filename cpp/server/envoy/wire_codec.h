// The protobuf encoding of Envoy's rate limit service v3.
#ifndef TIDEGATE_SERVER_ENVOY_WIRE_CODEC_H_
#define TIDEGATE_SERVER_ENVOY_WIRE_CODEC_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/envoy/rate_limit_message.h"

namespace tidegate::server::envoy {

// Reads a RateLimitRequest, whose texts are views of `bytes`. Skips unknown fields. The error says
// why the bytes are not such a message, or what exceeds its bound.
absl::Status ParseWire(std::string_view bytes, RateLimitRequest* request);

std::string WriteWire(const RateLimitResponse& response);

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_WIRE_CODEC_H_
