// Decides checks and peeks by the rules, records them, and answers in the form of the request.
#ifndef TIDEGATE_SERVER_CHECKS_DECIDE_H_
#define TIDEGATE_SERVER_CHECKS_DECIDE_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "server/call.h"
#include "server/checks/asked.h"
#include "server/checks/caller.h"
#include "server/checks/context.h"
#include "tidegate/rate_fields.h"
#include "tidegate/rule_set.h"
#include "tidegate/store.h"

namespace tidegate::server {

enum class Form : uint8_t { kGrpc, kGrpcMany, kRest, kRestMany, kGateway };

// One check, with all parts of its answer.
struct Checked {
  Decision decision;
  Outcomes outcomes;
  int64_t cost = 1;
  uint32_t mark = 0;  // MarkOf() what was asked, if the answer has the token of the decision
  bool wants_outcomes = false;
  std::optional<Penalty> penalty;  // of the caller

  bool is_blocked() const { return penalty.has_value() && penalty->blocks; }
  int64_t factor() const { return penalty.has_value() ? penalty->factor() : 1; }
};

// Adds the header fields of `set`; none if nothing limits the request.
inline constexpr RateFieldSet kPlainFields = kXRateLimitFields | SetOf(RateField::kRetryAfter);
void AddRateFields(const Decision& decision, absl::Span<const Decision> outcomes, RateFieldSet set,
                   Answer* answer);

// Counts a decision, and records it for its caller, if `op` is kHit.
void Count(CheckContext& context, Op op, const Caller& caller, const Checked& checked);

// Adds the tier that the table has for the user, if the request comes without a tier.
void AddTier(const CheckConfig& config, Asked* asked);

// Returns the penalty of the caller of a request; nothing if a list of the rules allows the
// request.
std::optional<Penalty> PenaltyOf(const CheckConfig& config, const Caller& caller,
                                 const tidegate::Request& request);

// Behaves like Service::Handle(). `op` is kHit or kPeek.
bool Decide(const std::shared_ptr<const CheckConfig>& config, Op op, Form form,
            absl::Span<Asked> asked, Answer* answer, const Later& later);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_DECIDE_H_
