// A lock of one word, for sections of a few dozen instructions: taking it costs a third of a mutex.
//
// A thread that finds it taken spins, then lets others run, then sleeps for moments: the holder may
// have been stopped, and have a lower priority.
#ifndef TIDEGATE_SRC_LEASES_SPIN_LOCK_H_
#define TIDEGATE_SRC_LEASES_SPIN_LOCK_H_

#include <sched.h>
#include <time.h>

#include <atomic>

namespace tidegate::leases {

// As std::lock_guard takes it.
class SpinLock {
 public:
  void lock() {
    if (taken_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      Wait();
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  static constexpr int kSpins = 100;
  static constexpr int kYields = 20;

  void Wait() {
    for (int i = 0;; ++i) {
      if (!taken_.load(std::memory_order_relaxed) &&
          !taken_.exchange(true, std::memory_order_acquire)) {
        return;
      }
      if (i < kSpins) continue;
      if (i < kSpins + kYields) {
        sched_yield();
        continue;
      }
      constexpr timespec kMoment{0, 20'000};
      nanosleep(&kMoment, nullptr);
    }
  }

  std::atomic<bool> taken_{false};
};

}  // namespace tidegate::leases

#endif  // TIDEGATE_SRC_LEASES_SPIN_LOCK_H_
