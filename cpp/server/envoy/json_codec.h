// The JSON encoding of Envoy's rate limit service v3 by the mapping of proto3: names in camel case
// or as in the proto, numbers also as texts, and null for fields that are not given.
#ifndef TIDEGATE_SERVER_ENVOY_JSON_CODEC_H_
#define TIDEGATE_SERVER_ENVOY_JSON_CODEC_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/envoy/rate_limit_message.h"

namespace tidegate::server::envoy {

// Reads a RateLimitRequest, whose texts are valid until this thread's next call. The error says
// what was given and what is expected. An unknown field is an error, as in the mapping of proto3.
absl::Status ParseJson(std::string_view text, RateLimitRequest* request);

std::string WriteJson(const RateLimitResponse& response);

// {"error":"..."}
std::string WriteJsonError(std::string_view reason);

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_JSON_CODEC_H_
