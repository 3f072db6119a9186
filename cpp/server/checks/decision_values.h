// The values of decisions in answers, in the units of the protocols.
#ifndef TIDEGATE_SERVER_CHECKS_DECISION_VALUES_H_
#define TIDEGATE_SERVER_CHECKS_DECISION_VALUES_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/types/span.h"
#include "tidegate/rule_limiter.h"

namespace tidegate::server {

inline constexpr int64_t kSecondNs = 1'000'000'000;

inline int64_t CeilSeconds(int64_t ns) { return ns / kSecondNs + (ns % kSecondNs > 0 ? 1 : 0); }

inline int64_t InstantAfter(int64_t ns, int64_t span_ns) {
  int64_t sum = 0;
  return __builtin_add_overflow(ns, span_ns, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

// Whether nothing limits the request: see Limit::Unlimited().
inline bool IsUnlimited(const Decision& d) {
  return d.allowed && d.limit->count() == Limit::kMaxCount && d.limit->period_ns() == kSecondNs;
}

// The instant at which the key is full again, as whole seconds since the epoch.
inline int64_t ResetTime(const Decision& d) {
  return CeilSeconds(InstantAfter(d.at_ns, d.reset_after_ns));
}

// Whole seconds to wait after a refusal; nothing if the call was allowed, or can never pass.
inline std::optional<int64_t> RetrySeconds(const Decision& d) {
  if (d.allowed || d.retry_after_ns == Decision::kNever) return std::nullopt;
  return CeilSeconds(d.retry_after_ns);
}

// Whole seconds until more is left; nothing if that never happens. After a refusal this equals the
// wait, since a client could take the smaller of two values and come back too early.
inline std::optional<int64_t> MoreSeconds(const Decision& d) {
  if (const auto wait = RetrySeconds(d)) return wait;
  if (d.limit->capacity() == 0) return std::nullopt;
  return CeilSeconds(d.more_after_ns());
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
