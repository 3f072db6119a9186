// Finds the caller of a request of Envoy in the entries of its descriptors.
#ifndef TIDEGATE_SERVER_ENVOY_REQUEST_CALLER_H_
#define TIDEGATE_SERVER_ENVOY_REQUEST_CALLER_H_

#include <string>
#include <string_view>

#include "server/checks/caller.h"
#include "server/envoy/rate_limit_message.h"

namespace tidegate::server::envoy {

// The user is the value of the first entry whose key is `user_key`, the address that of the first
// `remote_address`. The endpoint is the value of the first `path` or `endpoint`, else the domain.
// The views live as long as the bytes that the request was parsed from.
Caller CallerOf(const RateLimitRequest& request, std::string_view user_key);

// Whether an entry of the descriptor names `caller`.
bool Names(const Descriptor& descriptor, std::string_view user_key, const Caller& caller);

// The name of a request without a caller: "descriptor:key=value,key=value", of its first
// descriptor.
std::string JoinedEntries(const RateLimitRequest& request);

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_REQUEST_CALLER_H_
