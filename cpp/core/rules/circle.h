// Finds a circle among numbers that point to each other.
#ifndef TIDEGATE_SRC_RULES_CIRCLE_H_
#define TIDEGATE_SRC_RULES_CIRCLE_H_

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace tidegate {

// The members of one circle, each of which points to the next, and the last to the first; empty if
// there is no circle. `next[n]` has the numbers that n points to.
std::vector<uint32_t> FindCircle(absl::Span<const absl::InlinedVector<uint32_t, 2>> next);

}  // namespace tidegate

#endif  // TIDEGATE_SRC_RULES_CIRCLE_H_
