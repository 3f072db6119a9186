// What came out of a plan: may the request pass, and what its headers need.
#ifndef TIDEGATE_DECISION_H_
#define TIDEGATE_DECISION_H_

#include <cstdint>
#include <limits>

#include "tidegate/limit.h"

namespace tidegate {

// A plain value. `limit` points into the limiter that made the decision and is
// valid as long as that limiter lives. All durations are nanoseconds from the
// instant of the decision, rounded up.
struct Decision {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  bool allowed = false;
  bool degraded = false;  // decided without the shared store
  // The state lies further ahead than the clock allows: the clock was read late
  // or went back. See step.h.
  bool behind = false;
  uint32_t rule = 0;             // index of the binding limit in its plan
  const Limit* limit = nullptr;  // the binding limit
  int64_t retry_after_ns = 0;    // 0 when allowed; kNever when it never can
  int64_t reset_after_ns = 0;    // until the limit is as if untouched
  int64_t delay_ns = 0;          // leaky bucket: wait so long before proceeding
  int64_t at_ns = 0;             // the instant it was made

  explicit operator bool() const { return allowed; }

  // Whole units left now. Computed when asked, since a bucket's answer takes a
  // division and most callers only ask whether they may pass.
  int64_t remaining() const;

  // Room taken: of a bucket in time (used_ns + used_fraction / denominator), of
  // the others in units.
  int64_t used_ns = 0;
  int64_t used_fraction = 0;
  int64_t used_units = 0;
};

}  // namespace tidegate

#endif  // TIDEGATE_DECISION_H_
