// The range of instants, which are nanoseconds since the Unix epoch.
#ifndef TIDEGATE_INSTANT_H_
#define TIDEGATE_INSTANT_H_

#include <cstdint>

namespace tidegate {

// How far the clocks of hosts that share a limit may differ.
inline constexpr int64_t kClockToleranceNs = 100'000'000;
// Instants are clamped to [0, kMaxInstantNs] so that instant + period cannot overflow.
inline constexpr int64_t kMaxInstantNs = int64_t{1} << 62;

}  // namespace tidegate

#endif  // TIDEGATE_INSTANT_H_
