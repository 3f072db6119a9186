// The messages of proto/tidegate/v1/ratelimit.proto.
#ifndef TIDEGATE_SERVER_CHECKS_CHECK_PROTO_H_
#define TIDEGATE_SERVER_CHECKS_CHECK_PROTO_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/checks/asked.h"
#include "server/checks/penalties.h"
#include "server/problem.h"
#include "tidegate/rule_limiter.h"

namespace tidegate::server {

// Reads CheckRequest, RefundRequest, ResetRequest and StatusRequest, whose common fields have the
// same numbers. Views in `asked` are valid as long as the body.
enum class Message : uint8_t { kCheck, kRefund, kReset, kStatus, kReserve };
std::optional<Problem> ReadRequest(Message message, std::string_view body, Asked* asked);
// Reads CommitRequest, ExtendRequest and ReleaseRequest, whose common fields have the same numbers.
// A missing cost is 0, and must not be below `least_cost`; if that is kNoCost, the message has
// none.
std::optional<Problem> ReadSettleRequest(std::string_view body, int64_t least_cost, Asked* asked);
std::optional<Problem> ReadCheckMany(std::string_view body, std::vector<Asked>* checks);

// Appends a CheckResponse. `token` may be empty, and `outcomes` may be null.
void AppendCheckResponse(const Decision& decision, const Outcomes* outcomes, std::string_view token,
                         std::string* body);
// Append a ReserveResponse, and a SettleResponse.
void AppendReserveResponse(const Decision& decision, std::string_view reservation,
                           std::string* body);
void AppendSettleResponse(const Decision& decision, std::string* body);
// Appends one answer of a CheckManyResponse.
void AppendAnswer(std::string_view check_response, std::string* body);
void AppendStatusResponse(const RuleSet& rules, const RuleLimiter::Status& status,
                          const std::optional<Penalty>& penalty, bool is_degraded,
                          std::string* body);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_CHECK_PROTO_H_
