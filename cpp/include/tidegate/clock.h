// Time as a parameter. Every instant in tidegate is nanoseconds since the Unix
// epoch, read from the limiter's clock.
#ifndef TIDEGATE_CLOCK_H_
#define TIDEGATE_CLOCK_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tidegate/instant.h"

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

// What the users of a store add to SystemClock::Now(), so that all of them agree, in this process
// and in others. `correction_ns`, never null, changes when the wall clock is set (WallFollower).
struct ClockShift {
  int64_t base_ns;
  const std::atomic<int64_t>* correction_ns;

  int64_t ns() const { return base_ns + correction_ns->load(std::memory_order_relaxed); }
};

// Keeps right a clock that is CLOCK_MONOTONIC plus a fixed offset plus `correction`, which may be
// shared with other processes. A wall clock that is a second or more away from it was set, and is
// followed once two looks in a row have found it at the same distance: the drift of both is one.
// Thread-compatible.
class WallFollower {
 public:
  static constexpr int64_t kLeastStepNs = 1'000'000'000;

  WallFollower(int64_t offset_ns, std::atomic<int64_t>* correction)
      : offset_ns_(offset_ns), correction_(*correction) {}

  // `wall_offset_ns` is the wall clock minus CLOCK_MONOTONIC.
  void Look(int64_t wall_offset_ns);
  // Does not wait for a second look.
  void Follow(int64_t wall_offset_ns);

 private:
  const int64_t offset_ns_;
  std::atomic<int64_t>& correction_;
  bool was_away_ = false;
  int64_t last_offset_ns_ = 0;
};

// Unix time at the process's start, continued by the monotonic clock: it never
// steps, whatever happens to the wall clock. On x86 with an invariant counter
// that the kernel trusts, it is read through the time-stamp counter, which a calling thread fits to
// CLOCK_MONOTONIC again every second.
class SystemClock final : public Clock {
 public:
  static SystemClock& Get();

  // Follows the wall clock when that is set; Now() never steps.
  int64_t NowNs() override { return Now() + shift().ns(); }

  // Unix time minus the monotonic clock, read when this process started.
  int64_t epoch_offset_ns() const { return epoch_offset_ns_; }
  // Leads from Now() to a clock that follows the wall clock when that is set.
  ClockShift shift() const { return {0, &correction_ns_}; }
  // The wall clock minus CLOCK_MONOTONIC.
  static int64_t WallOffsetNs();

  // Has `follower` look at the wall clock about once a second, on a thread that reads this clock,
  // until Remove() returns. Of more than kMostFollowers the later ones do not look.
  static constexpr size_t kMostFollowers = 64;
  void Add(WallFollower* follower);
  void Remove(WallFollower* follower);

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
  void LookAtWall(int64_t now_ns);

  SharedFit fit_;
  const int64_t epoch_offset_ns_;
  const bool counter_usable_;
  std::atomic<bool> fitting_{false};
  std::array<std::atomic<WallFollower*>, kMostFollowers> followers_{};
  std::atomic<int64_t> looked_ns_{0};
  std::atomic<int64_t> correction_ns_{0};
  WallFollower own_follower_{epoch_offset_ns_, &correction_ns_};
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
