// A gate lets any number of threads through at once, almost for free, and now
// and then closes so that one of them can rebuild what the others read.
//
//   { Gate::Pass pass(gate); ... lock-free work on shared memory ... }
//   gate.Alone([&] { ... nobody else is inside ... });
//
// A pass costs two plain stores to the thread's own cache line and a load of a
// line that hardly ever changes. Alone() bears the cost: it interrupts the other
// cores by membarrier(2); on systems without that call each pass also executes
// a fence. Passes must be short, must not nest and must not block.
//
// Thread-safe. fork() waits until nobody is inside any gate, so that a child finds all gates open
// and empty.
#ifndef TIDEGATE_SRC_BASE_GATE_H_
#define TIDEGATE_SRC_BASE_GATE_H_

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace tidegate {

// The number of the calling thread among live threads, 1 to kThreads - 1, or 0, which is shared if
// there are too many. Data indexed by a number that is not shared needs no atomic
// read-modify-write.
inline constexpr int kThreads = 128;
inline int ThreadNumber();

namespace internal {
// -1: not numbered yet. Without a constructor, so that reading it is one load.
#if defined(__GLIBC__)  // musl cannot dlopen() a library that uses it
__attribute__((tls_model("initial-exec")))
#endif
extern constinit thread_local int thread_number;
int NumberThread();
}  // namespace internal

// ThreadNumber(), but 0 or less for a thread that shares its own or has none yet.
inline int OwnThreadNumber() { return internal::thread_number; }

inline int ThreadNumber() {
  const int number = internal::thread_number;
  if (number >= 0) [[likely]]
    return number;
  return internal::NumberThread();
}

class Gate {
 public:
  // Always inlined: a call would make the caller spill its registers.
  class Pass {
   public:
    __attribute__((always_inline)) explicit Pass(Gate& gate)
        : gate_(gate), thread_(ThreadNumber()) {
      gate_.Enter(thread_);
    }
    __attribute__((always_inline)) ~Pass() {
      if (!left_) gate_.Leave(thread_);
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    // Ends the pass before the end of the scope.
    void Leave() {
      gate_.Leave(thread_);
      left_ = true;
    }

   private:
    Gate& gate_;
    const int thread_;
    bool left_ = false;
  };

  // A pass for a thread with a number to itself, which fails at a closed gate instead of waiting.
  class QuickPass {
   public:
    __attribute__((always_inline)) QuickPass(Gate& gate, int own_number)
        : mine_(inside_[own_number].gate) {
      mine_.store(&gate, std::memory_order_relaxed);
      Fence();
      inside_a_gate_ = !gate.closed_.load(std::memory_order_acquire);
    }
    __attribute__((always_inline)) ~QuickPass() { mine_.store(nullptr, std::memory_order_release); }
    QuickPass(const QuickPass&) = delete;
    QuickPass& operator=(const QuickPass&) = delete;

    explicit operator bool() const { return inside_a_gate_; }

   private:
    std::atomic<const Gate*>& mine_;
    bool inside_a_gate_;
  };

  Gate();
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // Waits until nobody is inside, and keeps everybody out while `work` runs.
  // Not from within a Pass.
  void Alone(absl::FunctionRef<void()> work);

 private:
  // The gate that one thread is inside; threads that share number 0 count themselves in sharing_
  // instead.
  struct alignas(64) Inside {
    std::atomic<const Gate*> gate{nullptr};
  };
  static Inside inside_[kThreads];
  static bool fence_by_kernel_;

  __attribute__((always_inline)) void Enter(int thread) {
    Announce(thread);
    if (closed_.load(std::memory_order_acquire)) [[unlikely]]
      EnterLater(thread);
  }
  __attribute__((always_inline)) void Announce(int thread) {
    if (thread != 0) [[likely]] {
      inside_[thread].gate.store(this, std::memory_order_relaxed);
    } else {
      sharing_.fetch_add(1, std::memory_order_relaxed);
    }
    Fence();
  }
  __attribute__((always_inline)) static void Fence() {
    if (fence_by_kernel_) [[likely]] {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      std::atomic_thread_fence(std::memory_order_seq_cst);
    }
  }
  // For a thread that has announced itself at a closed gate.
  void EnterLater(int thread);
  __attribute__((always_inline)) void Leave(int thread) {
    if (thread != 0) [[likely]] {
      inside_[thread].gate.store(nullptr, std::memory_order_release);
    } else {
      sharing_.fetch_sub(1, std::memory_order_release);
    }
  }
  // Waits until no thread is inside this gate, which is closed.
  void WaitUntilEmpty() const;
  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();

  std::atomic<bool> closed_{false};
  std::atomic<int> sharing_{0};
  // All gates, in a ring without a head.
  Gate* next_ = nullptr;
  Gate* previous_ = nullptr;
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_BASE_GATE_H_
