// A gate lets any number of threads through at once, almost for free, and now
// and then closes so that one of them can rebuild what the others read.
//
//   { Gate::Pass pass(gate); ... lock-free work on shared memory ... }
//   gate.Alone([&] { ... nobody else is inside ... });
//
// A pass costs two plain stores to the thread's own cache line and a load of a
// line that hardly ever changes. The price is paid by Alone(), which interrupts
// the other cores (membarrier(2) where there is one, else a pass also pays for
// a fence). Passes must be short, must not nest and must not block.
//
// Thread-safe. A child of fork() finds the gate open and nobody inside.
#ifndef TIDEGATE_GATE_H_
#define TIDEGATE_GATE_H_

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace tidegate {

// The number of the calling thread among the living, 1 to kThreads - 1, or 0
// where so many live that it has to share. What is indexed with it and not
// shared needs no atomic read-modify-write.
inline constexpr int kThreads = 128;
inline int ThreadNumber();

namespace internal {
// -1: not numbered yet. Without a constructor, so that reading it is one load.
#if defined(__linux__)
__attribute__((tls_model("initial-exec")))
#endif
extern constinit thread_local int thread_number;
int NumberThread();
}  // namespace internal

inline int ThreadNumber() {
  const int number = internal::thread_number;
  if (number >= 0) [[likely]] return number;
  return internal::NumberThread();
}

class Gate {
 public:
  class Pass {
   public:
    explicit Pass(Gate& gate) : gate_(gate), thread_(ThreadNumber()) {
      gate_.Enter(thread_);
    }
    ~Pass() {
      if (!left_) Gate::Leave(thread_);
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    // Leaves before the end of the scope.
    void Leave() {
      Gate::Leave(thread_);
      left_ = true;
    }

   private:
    Gate& gate_;
    const int thread_;
    bool left_ = false;
  };

  Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Waits until nobody is inside, and keeps everybody out while `work` runs.
  // Not from within a Pass.
  void Alone(absl::FunctionRef<void()> work);

 private:
  // What one thread is inside of. Threads that share number 0 count themselves
  // in `sharing` instead, for all gates together.
  struct alignas(64) Inside {
    std::atomic<const Gate*> gate{nullptr};
    std::atomic<int> sharing{0};
  };
  static Inside inside_[kThreads];
  static bool fence_by_kernel_;

  void Enter(int thread) {
    Inside& mine = inside_[thread];
    for (;;) {
      if (thread != 0) [[likely]] {
        mine.gate.store(this, std::memory_order_relaxed);
      } else {
        mine.sharing.fetch_add(1, std::memory_order_relaxed);
      }
      if (fence_by_kernel_) [[likely]] {
        std::atomic_signal_fence(std::memory_order_seq_cst);
      } else {
        std::atomic_thread_fence(std::memory_order_seq_cst);
      }
      if (!closed_.load(std::memory_order_acquire)) [[likely]] return;
      Leave(thread);
      WaitUntilOpen();
    }
  }
  static void Leave(int thread) {
    Inside& mine = inside_[thread];
    if (thread != 0) [[likely]] {
      mine.gate.store(nullptr, std::memory_order_release);
    } else {
      mine.sharing.fetch_sub(1, std::memory_order_release);
    }
  }
  void WaitUntilOpen();
  static void AfterForkInChild();

  std::atomic<bool> closed_{false};
};

}  // namespace tidegate

#endif  // TIDEGATE_GATE_H_
