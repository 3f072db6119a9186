// Until when units of a reservation count, that was raised since its holder last knew.
#ifndef TIDEGATE_SRC_ALGORITHMS_OUTSTANDING_H_
#define TIDEGATE_SRC_ALGORITHMS_OUTSTANDING_H_

#include <algorithm>
#include <cstdint>

#include "algorithms/wide.h"
#include "tidegate/instant.h"
#include "tidegate/limit.h"

namespace tidegate {

// The instant at which a key would be as if untouched, that would be so at `until_ns` without
// `units` more, charged since. No later than it is: only a bucket's instant moves with each unit.
inline int64_t LaterBy(const Limit& limit, int64_t until_ns, int64_t units) {
  if (units <= 0 || !IsBucket(limit.algorithm())) return until_ns;
  const absl::uint128 ns = Wide(units) * Wide(limit.numerator()) / Wide(limit.denominator());
  return until_ns + Narrow(std::min(ns, Wide(kMaxInstantNs)));
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_ALGORITHMS_OUTSTANDING_H_
