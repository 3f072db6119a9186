// The clock of leases: nanoseconds, also while the machine is suspended.
//
// The kernel's reading takes as long as all the rest of a hit. So most hits read the time-stamp
// counter, by a line through the kernel's last readings. The counter may stand still while the
// machine sleeps. But the kernel then sets its clocks forward before any thread runs on, and tells
// when it last set them: CLOCK_MONOTONIC_COARSE, which never has a value twice. So a line holds
// only as long as that clock shows what it showed before the line was drawn: for a tick of the
// kernel, 10 ms at most.
//
// A line is a little steeper than time, so that it is never behind: a lease may end too early by
// it, and never too late.
#ifndef TIDEGATE_SRC_LEASES_CLOCK_H_
#define TIDEGATE_SRC_LEASES_CLOCK_H_

#include <time.h>

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/counter.h"
#include "base/platform.h"
#include "base/time_units.h"

namespace tidegate::leases {

// Reads the kernel's clock. The instant of a question must be read so: no lease begins too late.
int64_t LeaseNowNs();

// A line through readings of the counter and of a clock. At() is thread-safe.
class alignas(64) CounterLine {
 public:
  struct Reading {
    int64_t set_ns = 0;  // when the kernel last set its clocks
    uint64_t ticks = 0;  // of the counter, before now_ns was read
    int64_t now_ns = 0;
  };
  // How long a line holds at most, and how far apart two readings must be to tell the rate.
  static constexpr int64_t kLongestNs = 10'000'000;
  static constexpr int64_t kShortestNs = 4'000'000;

  // The instant of `ticks`, which were read while the kernel's clocks had last been set at
  // `set_ns`; none if the line does not hold there.
  std::optional<int64_t> At(int64_t set_ns, uint64_t ticks) const {
    const uint32_t before = sequence_.load(std::memory_order_acquire);
    const uint64_t passed = ticks - ticks_.load(std::memory_order_relaxed);
    const bool holds = passed < most_ticks_.load(std::memory_order_relaxed) &&
                       set_ns == set_ns_.load(std::memory_order_relaxed);
    const int64_t now_ns =
        now_ns_.load(std::memory_order_relaxed) +
        static_cast<int64_t>((passed * ns_per_tick_.load(std::memory_order_relaxed)) >> kFraction);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (!holds || (before & 1) != 0 || sequence_.load(std::memory_order_relaxed) != before) {
      return std::nullopt;
    }
    return now_ns;
  }
  // Draws the line anew. By one thread at a time.
  void Draw(const Reading& reading);
  // Forgets it, and whatever other threads of the parent of a fork were about to do.
  void Forget();

 private:
  static constexpr int kFraction = 32;
  // Two rates in a row must be equal but for one part in 2^kAgreement, which is as much as a kernel
  // slews its clock. The line is steeper by one part in 2^kSteepness.
  static constexpr int kAgreement = 11;
  static constexpr int kSteepness = 10;

  void Store(const Reading& reading, uint64_t most_ticks, uint64_t ns_per_tick);

  // A sequence lock: a reader that meets a writer asks the kernel, and does not wait.
  std::atomic<uint32_t> sequence_{0};
  std::atomic<int64_t> set_ns_{0};
  std::atomic<uint64_t> ticks_{0};
  std::atomic<uint64_t> most_ticks_{0};  // 0: there is no line
  std::atomic<int64_t> now_ns_{0};
  std::atomic<uint64_t> ns_per_tick_{0};  // by 2^kFraction

  // Of the thread that draws.
  Reading last_;
  uint64_t rate_ = 0;  // from the reading before to last_
  bool is_steady_ = false;
};

class LeaseClock {
 public:
  // Not behind LeaseNowNs(), and ahead by 10 us at most.
  static int64_t NowNs() {
#if defined(__x86_64__) && defined(TIDEGATE_LINUX)
    const int64_t set_ns = SetNs();
    if (const auto now_ns = line_.At(set_ns, Counter()); now_ns.has_value()) [[likely]]
      return *now_ns;
    return ReadAndDraw();
#else
    return LeaseNowNs();
#endif
  }

 private:
#if defined(__x86_64__) && defined(TIDEGATE_LINUX)
  static int64_t SetNs() {
    timespec at{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &at);
    return int64_t{at.tv_sec} * kSecondNs + at.tv_nsec;
  }
  static int64_t ReadAndDraw();

  static CounterLine line_;
  static std::atomic<bool> is_drawing_;
#endif
};

}  // namespace tidegate::leases

#endif  // TIDEGATE_SRC_LEASES_CLOCK_H_
