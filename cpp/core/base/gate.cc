#include "base/gate.h"

#include <pthread.h>
#include <sched.h>

#include <bitset>
#include <mutex>

#include "base/platform.h"
#if defined(TIDEGATE_LINUX)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tidegate {
namespace internal {
constinit thread_local int thread_number = -1;
}  // namespace internal

namespace {

using internal::thread_number;

// Serialises the closing of gates and the numbering of threads. Both are rare;
// one mutex for all can be held across fork(), so that no child starts with a gate half rebuilt.
// Not absl::Mutex: it keeps a queue of waiting threads, which a child would inherit without the
// threads.
constinit std::mutex mutex;
constinit Gate* any_gate = nullptr;

std::bitset<kThreads>& Taken() {
  static auto* const taken = new std::bitset<kThreads>(1);  // 0 is shared
  return *taken;
}

struct Returner {
  ~Returner() {
    if (thread_number <= 0) return;
    std::lock_guard lock(mutex);
    Taken().reset(static_cast<size_t>(thread_number));
    thread_number = 0;
  }
};

#if defined(TIDEGATE_LINUX)
bool Membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }
#endif

void FenceOthers(bool by_kernel) {
#if defined(TIDEGATE_LINUX)
  if (by_kernel && Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
#endif
  (void)by_kernel;
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace

Gate::Inside Gate::inside_[kThreads];
bool Gate::fence_by_kernel_ = false;

int internal::NumberThread() {
  {
    std::lock_guard lock(mutex);
    thread_number = 0;
    for (size_t i = 1; i < kThreads; ++i) {
      if (Taken().test(i)) continue;
      Taken().set(i);
      thread_number = static_cast<int>(i);
      break;
    }
  }
  thread_local Returner returner;
  (void)returner;
  return thread_number;
}

Gate::Gate() {
  static const bool prepared = [] {
#if defined(TIDEGATE_LINUX)
    fence_by_kernel_ = Membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) &&
                       Membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
#endif
    pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
    return true;
  }();
  (void)prepared;
  std::lock_guard lock(mutex);
  next_ = any_gate == nullptr ? this : any_gate;
  previous_ = any_gate == nullptr ? this : any_gate->previous_;
  next_->previous_ = previous_->next_ = this;
  any_gate = this;
}

Gate::~Gate() {
  std::lock_guard lock(mutex);
  next_->previous_ = previous_;
  previous_->next_ = next_;
  if (any_gate == this) any_gate = next_ == this ? nullptr : next_;
}

void Gate::BeforeFork() {
  mutex.lock();
  if (any_gate == nullptr) return;
  Gate* gate = any_gate;
  do {
    gate->closed_.store(true, std::memory_order_seq_cst);
    gate = gate->next_;
  } while (gate != any_gate);
  FenceOthers(fence_by_kernel_);
  do {
    gate->WaitUntilEmpty();
    gate = gate->next_;
  } while (gate != any_gate);
}

void Gate::WaitUntilEmpty() const {
  for (const Inside& inside : inside_) {
    while (inside.gate.load(std::memory_order_acquire) == this) sched_yield();
  }
  while (sharing_.load(std::memory_order_acquire) != 0) sched_yield();
}

void Gate::AfterForkInParent() {
  Gate* gate = any_gate;
  while (gate != nullptr && gate->closed_.load(std::memory_order_relaxed)) {
    gate->closed_.store(false, std::memory_order_release);
    gate = gate->next_;
  }
  mutex.unlock();
}

void Gate::AfterForkInChild() {
  // Only the forking thread exists in the child, and it is in no pass. Another may have announced
  // itself at a gate that was closed already, and not have left it yet: here it never would.
  for (Inside& inside : inside_) inside.gate.store(nullptr, std::memory_order_relaxed);
  for (Gate* gate = any_gate; gate != nullptr;) {
    gate->sharing_.store(0, std::memory_order_relaxed);
    gate = gate->next_ == any_gate ? nullptr : gate->next_;
  }
  Taken().reset();
  Taken().set(0);
  if (thread_number > 0) Taken().set(static_cast<size_t>(thread_number));
  AfterForkInParent();
}

void Gate::Alone(absl::FunctionRef<void()> work) {
  std::lock_guard lock(mutex);
  closed_.store(true, std::memory_order_seq_cst);
  FenceOthers(fence_by_kernel_);
  WaitUntilEmpty();
  work();
  closed_.store(false, std::memory_order_release);
}

void Gate::EnterLater(int thread) {
  do {
    Leave(thread);
    // Alone() holds the mutex for as long as the gate is closed.
    { const std::lock_guard lock(mutex); }
    Announce(thread);
  } while (closed_.load(std::memory_order_acquire));
}

}  // namespace tidegate
