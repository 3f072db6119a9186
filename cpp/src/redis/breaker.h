// Decides whether Redis is asked at all. It opens after so many failures in a row
// within ten seconds, or when half of at least twenty calls of ten seconds failed, and
// stays open for `open`, within a tenth. Then one probe, which is nobody's request,
// finds out whether it may close.
//
// Lock-free, so that no fork() leaves it held. Counts of one window may be off by what
// races with its turn.
#ifndef TIDEGATE_SRC_REDIS_BREAKER_H_
#define TIDEGATE_SRC_REDIS_BREAKER_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

class Breaker {
 public:
  static constexpr int64_t kWindowNs = 10'000'000'000;
  static constexpr int64_t kLeastCalls = 20;

  Breaker(int failures, absl::Duration open)
      : most_failures_(failures), open_ns_(absl::ToInt64Nanoseconds(open)) {}

  // Whether a call may go to Redis. Instants are nanoseconds of SystemClock.
  bool IsClosed() const { return open_until_ns_.load(std::memory_order_acquire) == 0; }
  // Whether the time for a probe has come: true for one caller, who makes it.
  bool ProbeIsDue(int64_t now_ns);
  // When Redis is asked again, in nanoseconds from now; 0 where it is asked.
  int64_t OpenFor(int64_t now_ns) const;

  // What came of a call, or of a probe. True where that closed or opened it.
  bool Succeeded(int64_t now_ns);
  bool Failed(int64_t now_ns);

  int64_t opened() const { return opened_.load(std::memory_order_relaxed); }

 private:
  void CountCall(int64_t now_ns, bool failed);
  bool Open(int64_t now_ns);

  const int most_failures_;
  const int64_t open_ns_;
  std::atomic<int> in_a_row_{0};
  std::atomic<int64_t> first_failure_ns_{0};
  std::atomic<int64_t> window_ns_{0};
  std::atomic<int64_t> calls_{0};
  std::atomic<int64_t> failed_{0};
  std::atomic<int64_t> open_until_ns_{0};  // 0: closed
  std::atomic<int64_t> opened_{0};
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_BREAKER_H_
