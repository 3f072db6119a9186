// The rate-limit header fields of HTTP answers.
#ifndef TIDEGATE_SERVER_CHECKS_RATE_HEADERS_H_
#define TIDEGATE_SERVER_CHECKS_RATE_HEADERS_H_

#include "server/call.h"
#include "tidegate/decision.h"

namespace tidegate::server {

// X-RateLimit-Limit, -Remaining and -Reset, and Retry-After of a refusal that ends with time. None
// where nothing limits the request.
void AddXRateLimit(const Decision& decision, Answer* answer);
// RateLimit-Policy and RateLimit, as draft-ietf-httpapi-ratelimit-headers has them.
void AddRateLimit(const Decision& decision, Answer* answer);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_RATE_HEADERS_H_
