// What HTTP requests ask about.
#ifndef TIDEGATE_SERVER_CHECKS_REST_REQUESTS_H_
#define TIDEGATE_SERVER_CHECKS_REST_REQUESTS_H_

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "server/call.h"
#include "server/checks/asked.h"
#include "server/checks/context.h"
#include "server/checks/problem.h"

namespace tidegate::server {

// What is decoded of a request, and does not move.
using Decoded = std::deque<std::string>;

// POST of JSON.
std::optional<Problem> ReadRestCheck(const Request& request, Asked* asked);
std::optional<Problem> ReadRestCheckMany(const Request& request, std::vector<Asked>* checks);
// GET PREFIX{userId}?tier=premium&endpoint=%2Fapi: the names in the query are those of the members
// of a check, or any other attributes.
std::optional<Problem> ReadRestStatus(const Request& request, std::string_view prefix, Asked* asked,
                                      Decoded* decoded);
// A gateway's question about a request, told by headers. A header that was sent twice is a problem:
// the gateway sends it once, so the other one is its client's.
std::optional<Problem> ReadGatewayCheck(const Request& request, const CheckOptions& options,
                                        Asked* asked, Decoded* decoded);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_REST_REQUESTS_H_
