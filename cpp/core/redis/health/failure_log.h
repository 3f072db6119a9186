// Reports the failures of a Redis to its users: the first at once, and then one in a minute, so
// that a wrong port or password shows at the first call, and an outage does not flood a log.
#ifndef TIDEGATE_SRC_REDIS_HEALTH_FAILURE_LOG_H_
#define TIDEGATE_SRC_REDIS_HEALTH_FAILURE_LOG_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "base/monotonic.h"

namespace tidegate::redis {

// Thread-safe, and without a lock that a fork() could leave locked.
class FailureLog {
 public:
  static constexpr std::chrono::seconds kInterval{60};

  // `report` gets the messages; if it is null, nothing is reported.
  explicit FailureLog(std::function<void(const std::string& message)> report)
      : report_(std::move(report)) {}

  // Reports the failure for the reason `why`, or counts it for the next report.
  void Add(const std::string& why, Instant now = MonotonicNow());

 private:
  const std::function<void(const std::string& message)> report_;
  std::atomic<Instant> reported_{Instant::min()};  // when the last report was made
  std::atomic<int64_t> unreported_{0};
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_HEALTH_FAILURE_LOG_H_
