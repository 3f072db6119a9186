// The JSON of the REST interface: the body of a check, and the answers.
#ifndef TIDEGATE_SERVER_CHECKS_CHECK_JSON_H_
#define TIDEGATE_SERVER_CHECKS_CHECK_JSON_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/checks/asked.h"
#include "server/checks/penalties.h"
#include "server/problem.h"
#include "tidegate/rule_limiter.h"

namespace tidegate::server {

inline constexpr size_t kMostJsonBytes = size_t{64} << 10;
inline constexpr size_t kMostManyJsonBytes = size_t{512} << 10;

// The attribute for a member of a body or a query, such as "user" for "userId"; a view without data
// if the member is not an attribute.
std::string_view AttributeOfMember(std::string_view member);

// Reads the body of a check:
//   {"userId": "42", "apiKey": "k", "endpoint": "/api/posts", "tier": "premium", "method": "POST",
//    "ip": "203.0.113.9", "cost": 1, "attributes": {"tenant": "t"}, "outcomes": true}
// Members may be missing or null. The views in `asked` are valid until the thread reads another
// body.
std::optional<Problem> ReadCheckJson(std::string_view body, Asked* asked);
// The same with "ttl", seconds; `cost` is the estimate.
std::optional<Problem> ReadReserveJson(std::string_view body, Asked* asked);
// {"reservation": "TOKEN", "cost": 730}; the cost is at least `least_cost`, or not a member if that
// is kNoCost.
std::optional<Problem> ReadSettleJson(std::string_view body, int64_t least_cost, Asked* asked);
// {"checks": [BODY, …]}, 1 to kMostChecks of them.
std::optional<Problem> ReadCheckManyJson(std::string_view body, std::vector<Asked>* checks);

// {"allowed":true,"limit":1000,"remaining":847,"resetTime":1696523400,"retryAfter":null,
//  "degraded":false,"rule":"api"}; `outcomes`, unless it is null, becomes a list of such objects.
void AppendDecisionJson(const Decision& decision, const Outcomes* outcomes, std::string* json);

// The same with `extra`, members that begin with a comma.
void AppendDecisionJson(const Decision& decision, const Outcomes* outcomes, std::string_view extra,
                        std::string* json);

// {"rules":[{"rule":"api","endpoint":"/api/posts","limit":1000,"remaining":847,
//  "resetTime":1696523400}],"degraded":false}: a row for each pattern of a rule, "*" for every
// endpoint; and "enforced":{"action":"block","until":1696523400,"reason":"…"} with a penalty.
void AppendStatusJson(const RuleSet& rules, const RuleLimiter::Status& status,
                      const std::optional<Penalty>& penalty, bool is_degraded, std::string* json);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_CHECK_JSON_H_
