#include "redis/breaker.h"

#include <algorithm>
#include <random>

namespace tidegate::redis {

bool Breaker::ProbeIsDue(int64_t now_ns) {
  int64_t until = open_until_ns_.load(std::memory_order_acquire);
  // A probe that is never heard of again must not be the last one.
  return until != 0 && now_ns >= until &&
         open_until_ns_.compare_exchange_strong(until, now_ns + open_ns_ / 2 + 1,
                                                std::memory_order_acq_rel);
}

int64_t Breaker::OpenFor(int64_t now_ns) const {
  const int64_t until = open_until_ns_.load(std::memory_order_acquire);
  return until == 0 ? 0 : std::max<int64_t>(until - now_ns, 1);
}

void Breaker::CountCall(int64_t now_ns, bool failed) {
  int64_t start = window_ns_.load(std::memory_order_relaxed);
  if (now_ns - start > kWindowNs &&
      window_ns_.compare_exchange_strong(start, now_ns, std::memory_order_relaxed)) {
    calls_.store(0, std::memory_order_relaxed);
    failed_.store(0, std::memory_order_relaxed);
  }
  calls_.fetch_add(1, std::memory_order_relaxed);
  if (failed) failed_.fetch_add(1, std::memory_order_relaxed);
}

bool Breaker::Succeeded(int64_t now_ns) {
  CountCall(now_ns, false);
  if (in_a_row_.load(std::memory_order_relaxed) != 0) {
    in_a_row_.store(0, std::memory_order_relaxed);
  }
  return !IsClosed() && open_until_ns_.exchange(0, std::memory_order_acq_rel) != 0;
}

bool Breaker::Failed(int64_t now_ns) {
  CountCall(now_ns, true);
  // What was under way when it opened says nothing new, and a probe says: not yet.
  if (!IsClosed()) {
    Open(now_ns);
    return false;
  }
  const int row = in_a_row_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (row == 1) first_failure_ns_.store(now_ns, std::memory_order_relaxed);
  if (row >= most_failures_) {
    if (now_ns - first_failure_ns_.load(std::memory_order_relaxed) <= kWindowNs) {
      return Open(now_ns);
    }
    in_a_row_.store(1, std::memory_order_relaxed);
    first_failure_ns_.store(now_ns, std::memory_order_relaxed);
  }
  const int64_t calls = calls_.load(std::memory_order_relaxed);
  const int64_t failed = failed_.load(std::memory_order_relaxed);
  return calls >= kLeastCalls && failed * 2 >= calls && Open(now_ns);
}

bool Breaker::Open(int64_t now_ns) {
  std::minstd_rand random(static_cast<uint32_t>(now_ns));
  const double jitter = std::uniform_real_distribution<double>(0.9, 1.1)(random);
  const auto pause = static_cast<int64_t>(static_cast<double>(open_ns_) * jitter);
  in_a_row_.store(0, std::memory_order_relaxed);
  calls_.store(0, std::memory_order_relaxed);
  failed_.store(0, std::memory_order_relaxed);
  if (open_until_ns_.exchange(now_ns + std::max<int64_t>(pause, 1), std::memory_order_acq_rel) !=
      0) {
    return false;
  }
  opened_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace tidegate::redis
