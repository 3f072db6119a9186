// The questions of a store that are under way without a call. A store that ends waits here for
// their grants, which it gives back; an answer that comes later finds no store.
//
// Thread-safe. For one process, as the table of leases is.
#ifndef TIDEGATE_SRC_REDIS_STORE_LEASE_DESK_H_
#define TIDEGATE_SRC_REDIS_STORE_LEASE_DESK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tidegate/redis_store.h"

namespace tidegate {

class RedisStore::LeaseDesk {
 public:
  explicit LeaseDesk(RedisStore* store) : store_(store) {}

  // Of ProcessLocal.
  void Start() {}
  void Stop() {}

  // A question is sent.
  void Begin() {
    absl::MutexLock lock(&mu_);
    ++under_way_;
  }
  // Its answer has come. Returns the store, which lives until EndHearing(), or null if it has
  // ended.
  RedisStore* BeginHearing() {
    absl::MutexLock lock(&mu_);
    if (store_ != nullptr) ++hearing_;
    return store_;
  }
  void EndHearing() {
    absl::MutexLock lock(&mu_);
    --hearing_;
    if (--under_way_ == 0) is_slow_ = false;
  }

  // Waits for the answers that are under way, for `longest` at most, unless a wait for them was in
  // vain before.
  void Await(absl::Duration longest) {
    absl::MutexLock lock(&mu_);
    if (is_slow_) return;
    is_slow_ = !mu_.AwaitWithTimeout(absl::Condition(IsZero, &under_way_), longest);
  }
  // Ends the store: waits for answers that are being heard.
  void Close() {
    absl::MutexLock lock(&mu_);
    store_ = nullptr;
    mu_.Await(absl::Condition(IsZero, &hearing_));
  }

 private:
  static bool IsZero(int* count) { return *count == 0; }

  absl::Mutex mu_;
  RedisStore* store_ ABSL_GUARDED_BY(mu_);
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  int hearing_ ABSL_GUARDED_BY(mu_) = 0;
  bool is_slow_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_REDIS_STORE_LEASE_DESK_H_
