// The answer to a plan: whether the request may pass, and the values that its headers need.
#ifndef TIDEGATE_DECISION_H_
#define TIDEGATE_DECISION_H_

#include <cstdint>
#include <limits>

#include "tidegate/limit.h"

namespace tidegate {

// Where a hit was charged, and so where a refund gives it back.
enum class ChargedIn : uint8_t {
  kStore,
  kFallback,  // the store that decides while a shared store does not answer
  kNowhere,
};

// A plain value. `limit` points into the limiter that made the decision and is
// valid as long as that limiter lives. All durations are nanoseconds from the
// instant of the decision, rounded up.
struct Decision {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  bool allowed = false;
  // The state lies further ahead than the clock allows: the clock was read late
  // or went back. See step.h.
  bool behind = false;
  bool degraded : 1 = false;  // decided without the shared store
  bool leased : 1 = false;    // decided by what the shared store had leased to this process
  // The units may be recorded up to kClockToleranceNs beside at_ns: by a clock that is a little
  // behind, on several servers, or since an extension of a lease.
  bool late : 1 = false;
  uint8_t unused : 5 = 0;  // without it, the byte is read before the bits are set
  // See charged_in().
  ChargedIn elsewhere = ChargedIn::kStore;
  uint16_t rule = 0;  // index of the binding limit in its plan
  uint16_t limits_elsewhere = 0;
  const Limit* limit = nullptr;  // the binding limit
  int64_t retry_after_ns = 0;    // 0 if allowed; kNever if the call can never pass
  int64_t reset_after_ns = 0;    // until the key is full again
  int64_t delay_ns = 0;          // leaky bucket: wait so long before proceeding
  int64_t at_ns = 0;             // the instant it was made

  explicit operator bool() const { return allowed; }

  // Where limit `i` of the plan was charged. limits_elsewhere has a bit for each of the first
  // kMostTracked limits, set if that limit was charged `elsewhere` instead of in the store;
  // kAllLimits means every limit. A cluster that is down in part charges only some limits of a
  // plan; a plan of more than kMostTracked limits then counts as charged nowhere.
  static constexpr size_t kMostTracked = 16;
  static constexpr uint16_t kAllLimits = 0xffff;
  ChargedIn charged_in(size_t i) const {
    if (!allowed) return ChargedIn::kNowhere;
    const bool in_store =
        limits_elsewhere != kAllLimits && (i >= kMostTracked || (limits_elsewhere >> i & 1) == 0);
    return in_store ? ChargedIn::kStore : elsewhere;
  }
  void SetChargedIn(ChargedIn where) {
    elsewhere = where;
    limits_elsewhere = where == ChargedIn::kStore ? 0 : kAllLimits;
  }

  // Whole units left now. Computed on demand: a bucket needs a division, and most callers need only
  // `allowed`.
  int64_t remaining() const;

  // The units that are owed beyond the limit; also a part of a unit counts as one. Calls are
  // refused until they are paid. While the clock that wrote the state is ahead of the one that
  // reads it, the difference counts too.
  int64_t debt() const;

  // The time until `remaining` grows by itself; 0 if the key is full. Computed on demand.
  int64_t more_after_ns() const;

  // Usage: of a bucket as time (used_ns + used_fraction / denominator), of the others in units. For
  // a sliding window, used_ns is the time that its window has left, and used_fraction the units of
  // the window before.
  int64_t used_units = 0;
  int64_t used_ns = 0;
  int64_t used_fraction = 0;
  // The value of more_after_ns() if it does not follow from these; else -1.
  int64_t known_more_ns = -1;

  // The units that Limiter::ChargeInFull() or ChargeUpTo() charged; kUnset in other decisions.
  static constexpr int64_t kUnset = -1;
  int64_t charged = kUnset;
  // Turns it into a decision of these, which refuse nothing.
  void SetCharged(int64_t units) {
    allowed = true;
    retry_after_ns = delay_ns = 0;
    charged = units;
  }
};

}  // namespace tidegate

#endif  // TIDEGATE_DECISION_H_
