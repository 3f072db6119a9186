// Deadlines and pauses, measured on CLOCK_MONOTONIC: a step of the wall clock changes none
// of them. Instants that users see come from Clock (tidegate/clock.h).
#ifndef TIDEGATE_SRC_BASE_MONOTONIC_H_
#define TIDEGATE_SRC_BASE_MONOTONIC_H_

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"

namespace tidegate {

using Instant = std::chrono::steady_clock::time_point;

inline Instant MonotonicNow() { return std::chrono::steady_clock::now(); }

inline std::chrono::nanoseconds Chrono(absl::Duration duration) {
  constexpr absl::Duration kLongest = absl::Hours(24 * 365);  // so that no sum overflows
  return absl::ToChronoNanoseconds(std::min(duration, kLongest));
}

inline Instant MonotonicIn(absl::Duration duration) { return MonotonicNow() + Chrono(duration); }

}  // namespace tidegate

#endif  // TIDEGATE_SRC_BASE_MONOTONIC_H_
