// The rate-limit header fields of HTTP answers.
#ifndef TIDEGATE_SERVER_CHECKS_RATE_HEADERS_H_
#define TIDEGATE_SERVER_CHECKS_RATE_HEADERS_H_

#include "server/call.h"
#include "tidegate/decision.h"

namespace tidegate::server {

// Adds X-RateLimit-Limit, -Remaining and -Reset, and Retry-After for a refusal that ends with time.
// Adds nothing if nothing limits the request.
void AddXRateLimit(const Decision& decision, Answer* answer);
// Adds RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers.
void AddRateLimit(const Decision& decision, Answer* answer);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_RATE_HEADERS_H_
