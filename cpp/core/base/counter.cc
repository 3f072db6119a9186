#include "base/counter.h"

#include <cstdio>
#include <cstring>

#include "base/platform.h"
#if defined(__x86_64__) && defined(TIDEGATE_LINUX)
#include <cpuid.h>
#endif

namespace tidegate {

bool CounterIsUsable() {
#if defined(__x86_64__) && defined(TIDEGATE_LINUX)
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(0x80000007, &a, &b, &c, &d) == 0 || (d & (1u << 8)) == 0) {
    return false;
  }
  std::FILE* file =
      std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
  if (file == nullptr) return false;
  char name[16] = {};
  const bool read = std::fgets(name, sizeof name, file) != nullptr;
  std::fclose(file);
  return read && std::strncmp(name, "tsc", 3) == 0;
#else
  return false;
#endif
}

}  // namespace tidegate
