// The processor's time-stamp counter, as a source of time.
#ifndef TIDEGATE_SRC_BASE_COUNTER_H_
#define TIDEGATE_SRC_BASE_COUNTER_H_

#include <cstdint>

namespace tidegate {

// Whether the counter always runs at one rate on all cores: the CPU must say so, and the kernel
// must have verified it and use it itself.
bool CounterIsUsable();

// 0 where there is none.
inline uint64_t Counter() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return 0;
#endif
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_BASE_COUNTER_H_
