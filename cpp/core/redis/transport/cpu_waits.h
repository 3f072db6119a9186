// How long threads of this process waited for a processor: what then seems late may be this
// process's own lateness.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_CPU_WAITS_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_CPU_WAITS_H_

#include <chrono>

#include "base/monotonic.h"

namespace tidegate::redis {

// What a thread did since it began, but for the time that it slept.
struct CpuTimes {
  std::chrono::nanoseconds ran{0};
  std::chrono::nanoseconds waited{0};  // could run, and had no processor
};

// Those of the calling thread, as the kernel counts them; zero where it does not.
CpuTimes CpuTimesOfThread();

// Whether a thread was short of processors between two readings: it waited for at least `enough`,
// and for no less time than it ran.
bool WasStarved(const CpuTimes& before, const CpuTimes& now, std::chrono::nanoseconds enough);

// Whether the calling thread was short of processors of late. `read` is called at most once in a
// millisecond; what it returns at `at` is compared with a reading of ten seconds ago or more, or
// with the thread's beginning.
bool WasStarvedOfLate(CpuTimes (*read)(), Instant at, std::chrono::nanoseconds enough);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_CPU_WAITS_H_
