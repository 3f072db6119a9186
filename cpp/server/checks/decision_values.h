// The values of decisions in answers, in the units of the protocols.
#ifndef TIDEGATE_SERVER_CHECKS_DECISION_VALUES_H_
#define TIDEGATE_SERVER_CHECKS_DECISION_VALUES_H_

#include <cstdint>

#include "absl/types/span.h"
#include "base/time_units.h"
#include "tidegate/rate_fields.h"
#include "tidegate/rule_limiter.h"

namespace tidegate::server {

// Whether nothing limits the request: see Limit::Unlimited().
inline bool IsUnlimited(const Decision& d) {
  return d.allowed && d.limit->count() == Limit::kMaxCount && d.limit->period_ns() == kSecondNs;
}

// The instant at which the key is full again, as whole seconds since the epoch.
inline int64_t ResetTime(const Decision& d) {
  return CeilSeconds(InstantAfter(d.at_ns, d.reset_after_ns));
}

// The outcome that says how much a rule leaves: the one with the least left among the enforced
// limits, or among the limits in shadow if no limit is enforced. Null without limits.
inline const Decision* Tightest(absl::Span<const Decision> outcomes) {
  const auto is_looser = [](const Decision& a, const Decision& b) {
    if (a.limit->shadow() != b.limit->shadow()) return a.limit->shadow();
    if (a.remaining() != b.remaining()) return a.remaining() > b.remaining();
    return a.reset_after_ns < b.reset_after_ns;
  };
  const Decision* tightest = outcomes.empty() ? nullptr : &outcomes[0];
  for (const Decision& outcome : outcomes) {
    if (is_looser(*tightest, outcome)) tightest = &outcome;
  }
  return tightest;
}

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_DECISION_VALUES_H_
