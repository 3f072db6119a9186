// Which process this is.
#ifndef TIDEGATE_PROCESS_H_
#define TIDEGATE_PROCESS_H_

#include <atomic>
#include <cstdint>

namespace tidegate {

namespace internal {

extern std::atomic<int64_t> forks;

}  // namespace internal

// The number of forks between this process and the first one that has this code. It distinguishes a
// process from those that it was forked from, like getpid(), but costs only a load.
inline int64_t ForkGeneration() { return internal::forks.load(std::memory_order_relaxed); }

}  // namespace tidegate

#endif  // TIDEGATE_PROCESS_H_
