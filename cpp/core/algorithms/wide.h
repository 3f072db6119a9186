// Products of two 64-bit numbers.
#ifndef TIDEGATE_SRC_ALGORITHMS_WIDE_H_
#define TIDEGATE_SRC_ALGORITHMS_WIDE_H_

#include <cstdint>

#include "absl/numeric/int128.h"

namespace tidegate {

inline absl::uint128 Wide(int64_t value) { return {static_cast<uint64_t>(value)}; }
inline int64_t Narrow(absl::uint128 value) {
  return static_cast<int64_t>(absl::Uint128Low64(value));
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_ALGORITHMS_WIDE_H_
