#include "leases/clock.h"

#include <pthread.h>

#include <algorithm>

namespace tidegate::leases {
namespace {

#if defined(CLOCK_BOOTTIME)
constexpr clockid_t kLeaseClock = CLOCK_BOOTTIME;
#else
constexpr clockid_t kLeaseClock = CLOCK_MONOTONIC;  // of macOS: it runs on while suspended
#endif

__extension__ typedef unsigned __int128 Wide;

}  // namespace

int64_t LeaseNowNs() {
  timespec now{};
  clock_gettime(kLeaseClock, &now);
  return int64_t{now.tv_sec} * kSecondNs + now.tv_nsec;
}

void CounterLine::Store(const Reading& reading, uint64_t most_ticks, uint64_t ns_per_tick) {
  const uint32_t before = sequence_.load(std::memory_order_relaxed);
  sequence_.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  set_ns_.store(reading.set_ns, std::memory_order_relaxed);
  ticks_.store(reading.ticks, std::memory_order_relaxed);
  most_ticks_.store(most_ticks, std::memory_order_relaxed);
  now_ns_.store(reading.now_ns, std::memory_order_relaxed);
  ns_per_tick_.store(ns_per_tick, std::memory_order_relaxed);
  sequence_.store(before + 2, std::memory_order_release);
}

void CounterLine::Draw(const Reading& reading) {
  const int64_t passed_ns = reading.now_ns - last_.now_ns;
  if (last_.ticks == 0 || reading.ticks <= last_.ticks || passed_ns < 0) {  // one began anew
    rate_ = 0;
    is_steady_ = false;
    last_ = reading;
  } else if (passed_ns >= kShortestNs) {
    const auto rate = static_cast<uint64_t>((static_cast<Wide>(passed_ns) << kFraction) /
                                            (reading.ticks - last_.ticks));
    is_steady_ = rate_ != 0 && std::max(rate, rate_) - std::min(rate, rate_) <= rate >> kAgreement;
    rate_ = rate;
    last_ = reading;
  }
  if (!is_steady_) return Store(reading, 0, 0);
  const auto most_ticks =
      static_cast<uint64_t>((static_cast<Wide>(kLongestNs) << kFraction) / rate_);
  Store(reading, most_ticks, rate_ + (rate_ >> kSteepness));
}

void CounterLine::Forget() {
  sequence_.store(0);  // odd if a thread of the parent was drawing
  most_ticks_.store(0);
  last_ = {};
  rate_ = 0;
  is_steady_ = false;
}

#if defined(__x86_64__) && defined(TIDEGATE_LINUX)

namespace {

// The kernel's clock was read within so many ticks, or the thread was interrupted meanwhile.
constexpr uint64_t kMostBetween = 2000;

bool CanDraw() {
  static const bool can = CounterIsUsable();
  return can;
}

}  // namespace

constinit CounterLine LeaseClock::line_;
constinit std::atomic<bool> LeaseClock::is_drawing_{false};

int64_t LeaseClock::ReadAndDraw() {
  const int64_t set_ns = SetNs();
  const uint64_t ticks = Counter();
  const int64_t now_ns = LeaseNowNs();
  const bool is_exact = Counter() - ticks < kMostBetween && SetNs() == set_ns;
  if (!is_exact || !CanDraw() || is_drawing_.exchange(true, std::memory_order_acquire)) {
    return now_ns;
  }
  static const int forgets = pthread_atfork(nullptr, nullptr, [] {
    line_.Forget();
    is_drawing_.store(false);
  });
  (void)forgets;
  line_.Draw({set_ns, ticks, now_ns});
  is_drawing_.store(false, std::memory_order_release);
  return now_ns;
}

#endif

}  // namespace tidegate::leases
