// Whom a request of Envoy is about, by the entries of its descriptors.
#ifndef TIDEGATE_SERVER_ENVOY_REQUEST_CALLER_H_
#define TIDEGATE_SERVER_ENVOY_REQUEST_CALLER_H_

#include <string>
#include <string_view>

#include "server/checks/caller.h"
#include "server/envoy/rate_limit_message.h"

namespace tidegate::server::envoy {

// The user is the value of the first entry whose key is `user_key`, the address that of the first
// `remote_address`. The endpoint is the value of the first `path` or `endpoint`, else the domain.
// Views live as long as what the request was parsed from.
Caller CallerOf(const RateLimitRequest& request, std::string_view user_key);

// Whether an entry of the descriptor is what `caller` goes by.
bool Names(const Descriptor& descriptor, std::string_view user_key, const Caller& caller);

// What a request goes by that names nobody: "descriptor:key=value,key=value", of its first one.
std::string JoinedEntries(const RateLimitRequest& request);

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_REQUEST_CALLER_H_
