// One T for each process. After fork() the child makes its own at first use and leaves the parent's
// as it is: its locks may be held by threads that do not exist in the child.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_PROCESS_LOCAL_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_PROCESS_LOCAL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "tidegate/process.h"

namespace tidegate::redis {

// Thread-safe, without a lock. T has Start(), called once before its first use, and Stop(),
// called in the process that made it.
template <typename T>
class ProcessLocal {
 public:
  explicit ProcessLocal(std::function<std::shared_ptr<T>()> make) : make_(std::move(make)) {
    (void)Get();
  }
  ~ProcessLocal() {
    const Owned* const owned = owned_.load();
    if (owned->generation != ForkGeneration()) return;
    owned->value->Stop();
    delete owned;
  }
  ProcessLocal(const ProcessLocal&) = delete;
  ProcessLocal& operator=(const ProcessLocal&) = delete;

  T& Get() {
    const Owned* const owned = owned_.load(std::memory_order_acquire);
    if (owned == nullptr || owned->generation != ForkGeneration()) [[unlikely]]
      return Make(owned);
    return *owned->value;
  }
  // The same, for users that may outlive this.
  std::shared_ptr<T> Share() {
    (void)Get();
    return owned_.load(std::memory_order_acquire)->value;
  }

 private:
  struct Owned {
    int64_t generation;
    std::shared_ptr<T> value;
  };

  __attribute__((noinline)) T& Make(const Owned* owned) {
    const auto* const made = new Owned{ForkGeneration(), make_()};
    if (owned_.compare_exchange_strong(owned, made, std::memory_order_acq_rel)) {
      made->value->Start();
      return *made->value;
    }
    delete made;
    return *owned->value;
  }

  const std::function<std::shared_ptr<T>()> make_;
  std::atomic<const Owned*> owned_{nullptr};
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_PROCESS_LOCAL_H_
