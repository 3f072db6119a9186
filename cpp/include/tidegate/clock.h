// Time as a parameter. Every instant in tidegate is nanoseconds since the Unix
// epoch, read from the limiter's clock.
#ifndef TIDEGATE_CLOCK_H_
#define TIDEGATE_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "tidegate/step.h"

namespace tidegate {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since the epoch, within [0, kMaxInstantNs].
  virtual int64_t NowNs() = 0;
  // Whether all users of a store read this very object, as in tests and replay.
  virtual bool is_common() const { return false; }
};

// Unix time at the process's start, continued by the monotonic clock: it never
// steps, whatever happens to the wall clock. On x86 with an invariant counter
// that the kernel trusts, it is read through the time-stamp counter, which a calling thread fits to
// CLOCK_MONOTONIC again every second.
class SystemClock final : public Clock {
 public:
  static SystemClock& Get();

  int64_t NowNs() override { return Now(); }

  // Unix time minus the monotonic clock, read when this process started.
  int64_t epoch_offset_ns() const { return epoch_offset_ns_; }

  inline int64_t Now() {
#if defined(__x86_64__)
    const Fit fit = fit_.Load();
    const uint64_t ticks = __builtin_ia32_rdtsc() - fit.ticks;
    if (ticks < fit.valid_ticks) [[likely]] {
      return fit.ns + static_cast<int64_t>((static_cast<Wide>(ticks) * fit.ns_per_tick) >> 32);
    }
#endif
    return NowSlow();
  }

 private:
  __extension__ typedef unsigned __int128 Wide;

  // now = ns + (counter - ticks) * ns_per_tick / 2^32, for valid_ticks.
  struct Fit {
    uint64_t ticks = 0;
    uint64_t valid_ticks = 0;
    int64_t ns = 0;
    uint64_t ns_per_tick = 0;
  };

  // A sequence lock for one Fit: readers never wait for a writer that was stopped; they see an
  // invalid fit and ask the kernel.
  class SharedFit {
   public:
    Fit Load() const {
      const uint32_t before = sequence_.load(std::memory_order_acquire);
      Fit fit{ticks_.load(std::memory_order_relaxed), valid_ticks_.load(std::memory_order_relaxed),
              ns_.load(std::memory_order_relaxed), ns_per_tick_.load(std::memory_order_relaxed)};
      std::atomic_thread_fence(std::memory_order_acquire);
      if ((before & 1) != 0 || sequence_.load(std::memory_order_relaxed) != before) [[unlikely]] {
        fit.valid_ticks = 0;
      }
      return fit;
    }
    void Store(const Fit& fit);

   private:
    std::atomic<uint32_t> sequence_{0};
    std::atomic<uint64_t> ticks_{0};
    std::atomic<uint64_t> valid_ticks_{0};
    std::atomic<int64_t> ns_{0};
    std::atomic<uint64_t> ns_per_tick_{0};
  };

  SystemClock();
  int64_t NowSlow();
  void Refit();

  SharedFit fit_;
  const int64_t epoch_offset_ns_;
  const bool counter_usable_;
  std::atomic<bool> fitting_{false};
  // Guarded by fitting_: the pair of readings that the rate is taken from.
  uint64_t first_ticks_ = 0;
  int64_t first_ns_ = 0;
  // The last instant of the fit that has expired; no earlier one is returned.
  std::atomic<int64_t> floor_ns_{0};
};

// A clock that stands still until it is moved: for tests and replay.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t start_ns = 0) { SetNs(start_ns); }
  int64_t NowNs() override { return now_ns_.load(std::memory_order_acquire); }
  bool is_common() const override { return true; }
  // Both clamp to [0, kMaxInstantNs].
  void AdvanceNs(int64_t ns);
  void SetNs(int64_t ns);

 private:
  std::atomic<int64_t> now_ns_{0};
};

}  // namespace tidegate

#endif  // TIDEGATE_CLOCK_H_
