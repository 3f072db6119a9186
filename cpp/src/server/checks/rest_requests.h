// Reads checks from HTTP requests.
#ifndef TIDEGATE_SERVER_CHECKS_REST_REQUESTS_H_
#define TIDEGATE_SERVER_CHECKS_REST_REQUESTS_H_

#include <deque>
#include <optional>
#include <string>

#include "server/call.h"
#include "server/checks/asked.h"
#include "server/checks/context.h"
#include "server/checks/problem.h"

namespace tidegate::server {

// The decoded texts of a request, whose addresses are stable.
using Decoded = std::deque<std::string>;

// Reads a POST of JSON.
std::optional<Problem> ReadRestCheck(const Request& request, Asked* asked);
// Reads GET PREFIX{userId}?tier=premium&endpoint=%2Fapi. The names in the query are members of a
// check, or any other attributes.
std::optional<Problem> ReadRestStatus(const Request& request, std::string_view prefix, Asked* asked,
                                      Decoded* decoded);
// Reads a gateway's check, whose attributes are headers. A header that was sent twice is a problem:
// the gateway sends it once, so the other one is from its client.
std::optional<Problem> ReadGatewayCheck(const Request& request, const CheckOptions& options,
                                        Asked* asked, Decoded* decoded);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_REST_REQUESTS_H_
