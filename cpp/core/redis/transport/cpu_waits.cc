#include "redis/transport/cpu_waits.h"

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#endif

namespace tidegate::redis {
namespace {

constexpr std::chrono::milliseconds kBetweenReadings{1};
constexpr std::chrono::seconds kOfLate{10};

}  // namespace

CpuTimes CpuTimesOfThread() {
#if defined(__linux__)
  const int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char text[96];
  const ssize_t n = read(fd, text, sizeof text - 1);
  close(fd);
  if (n <= 0) return {};
  text[n] = '\0';
  char* rest = text;
  const std::chrono::nanoseconds ran(std::strtoll(rest, &rest, 10));
  return {ran, std::chrono::nanoseconds(std::strtoll(rest, &rest, 10))};
#else
  return {};
#endif
}

bool WasStarved(const CpuTimes& before, const CpuTimes& now, std::chrono::nanoseconds enough) {
  const std::chrono::nanoseconds waited = now.waited - before.waited;
  return waited >= enough && waited >= now.ran - before.ran;
}

bool WasStarvedOfLate(CpuTimes (*read)(), Instant at, std::chrono::nanoseconds enough) {
  struct Reading {
    CpuTimes times;
    Instant at = Instant::min();
  };
  thread_local Reading before;
  thread_local Reading next;
  thread_local Reading now;
  if (now.at == Instant::min() || at - now.at > kBetweenReadings) now = {read(), at};
  if (next.at == Instant::min() || at - next.at > kOfLate) {
    before = next;
    next = now;
  }
  return WasStarved(before.times, now.times, enough);
}

}  // namespace tidegate::redis
