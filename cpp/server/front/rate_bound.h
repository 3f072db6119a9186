// A bound on events a second, with a burst.
#ifndef TIDEGATE_SERVER_FRONT_RATE_BOUND_H_
#define TIDEGATE_SERVER_FRONT_RATE_BOUND_H_

#include <algorithm>
#include <chrono>

#include "base/monotonic.h"

namespace tidegate::server {

class RateBound {
 public:
  RateBound(double per_second, int burst)
      : interval_(static_cast<Instant::duration::rep>(1e9 / std::max(per_second, 1e-3))),
        most_(interval_ * burst) {}

  // Counts an event; returns false if it exceeds the bound.
  bool Take(Instant now) {
    full_at_ = std::max(full_at_, now) + interval_;
    return full_at_ - now <= most_;
  }

 private:
  const Instant::duration interval_;
  const Instant::duration most_;
  Instant full_at_{};
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_RATE_BOUND_H_
