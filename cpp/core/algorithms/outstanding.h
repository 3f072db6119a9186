// Until when units of a reservation count, that was raised since its holder last knew.
#ifndef TIDEGATE_SRC_ALGORITHMS_OUTSTANDING_H_
#define TIDEGATE_SRC_ALGORITHMS_OUTSTANDING_H_

#include <algorithm>
#include <cstdint>

#include "algorithms/wide.h"
#include "tidegate/instant.h"
#include "tidegate/limit.h"

namespace tidegate {

// The instant from which a key counts nothing, after a charge of `units` to a key that would have
// counted nothing from `until_ns` on. Never too late: only a bucket's instant moves with each unit.
inline int64_t LaterBy(const Limit& limit, int64_t until_ns, int64_t units) {
  if (units <= 0 || !IsBucket(limit.algorithm())) return until_ns;
  const absl::uint128 ns = Wide(units) * Wide(limit.numerator()) / Wide(limit.denominator());
  return until_ns + Narrow(std::min(ns, Wide(kMaxInstantNs)));
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_ALGORITHMS_OUTSTANDING_H_
