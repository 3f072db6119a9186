// Units of time in nanoseconds.
#ifndef TIDEGATE_SRC_BASE_TIME_UNITS_H_
#define TIDEGATE_SRC_BASE_TIME_UNITS_H_

#include <cstdint>

namespace tidegate {

inline constexpr int64_t kMicrosecondNs = 1'000;
inline constexpr int64_t kMillisecondNs = 1'000'000;
inline constexpr int64_t kSecondNs = 1'000'000'000;
inline constexpr int64_t kDayNs = 86'400 * kSecondNs;

}  // namespace tidegate

#endif  // TIDEGATE_SRC_BASE_TIME_UNITS_H_
