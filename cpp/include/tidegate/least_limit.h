// The least limit that would have refused a key nothing.
#ifndef TIDEGATE_LEAST_LIMIT_H_
#define TIDEGATE_LEAST_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tidegate/limit.h"

namespace tidegate {

// Returns, for each of `keys` keys, the least count N such that a limit of N with the period and
// algorithm of `shape` (and with a burst of N if it is a bucket) allows every request of the key; 0
// for keys without requests. `codes`, `times_ns` and `costs` have an entry for each of `size`
// requests, in the order of their times; if `costs` is null, each cost is 1. Concurrency limits are
// not supported.
//
// A bucket needs N >= S / (1 + D / period) for the units S of any run of a key's requests, and
// the time D from the first to the last of them. The worst run is found by Dinkelbach's method:
// with each N the run that exceeds it most gives the next N; then the step itself confirms that N
// passes and N - 1 does not. A window needs the most units that it ever held.
//
// Fails if a key needs more than a limit can count; the error names the key.
absl::StatusOr<std::vector<int64_t>> LeastLimits(const Limit& shape, size_t keys, size_t size,
                                                 const uint32_t* codes, const int64_t* times_ns,
                                                 const int64_t* costs);

}  // namespace tidegate

#endif  // TIDEGATE_LEAST_LIMIT_H_
