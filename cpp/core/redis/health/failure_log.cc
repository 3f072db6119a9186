#include "redis/health/failure_log.h"

#include "absl/strings/str_cat.h"

namespace tidegate::redis {

void FailureLog::Add(const std::string& why, Instant now) {
  if (!report_) return;
  Instant reported = reported_.load();
  const bool is_due = reported == Instant::min() || now - reported >= kInterval;
  if (!is_due || !reported_.compare_exchange_strong(reported, now)) {
    unreported_.fetch_add(1);
    return;
  }
  const int64_t others = unreported_.exchange(0);
  std::string message = absl::StrCat("Redis failed (", why, "); calls are decided without it");
  if (others > 0) absl::StrAppend(&message, "; ", others, " more failures since the last message");
  report_(message);
}

}  // namespace tidegate::redis
