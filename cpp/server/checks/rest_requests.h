// Reads checks from HTTP requests.
#ifndef TIDEGATE_SERVER_CHECKS_REST_REQUESTS_H_
#define TIDEGATE_SERVER_CHECKS_REST_REQUESTS_H_

#include <optional>
#include <string_view>
#include <vector>

#include "server/call.h"
#include "server/checks/asked.h"
#include "server/checks/context.h"
#include "server/problem.h"

namespace tidegate::server {

// POST of JSON.
std::optional<Problem> ReadRestCheck(const Request& request, Asked* asked);
std::optional<Problem> ReadRestReserve(const Request& request, Asked* asked);
std::optional<Problem> ReadRestSettle(const Request& request, int64_t least_cost, Asked* asked);
std::optional<Problem> ReadRestCheckMany(const Request& request, std::vector<Asked>* checks);
// Reads GET PREFIX{userId}?tier=premium&endpoint=%2Fapi. The names in the query are members of a
// check, or any other attributes.
std::optional<Problem> ReadRestStatus(const Request& request, std::string_view prefix, Asked* asked,
                                      Decoded* decoded);
// Reads a gateway's question about a request from its headers. A header that was sent twice is a
// problem: the gateway sends it once, so the client sent the other. It is also a problem if an
// attribute is missing that the rules need, since those rules would not apply.
std::optional<Problem> ReadGatewayCheck(const Request& request, const CheckConfig& config,
                                        Asked* asked, Decoded* decoded);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_REST_REQUESTS_H_
