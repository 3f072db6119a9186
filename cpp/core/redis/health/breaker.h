// The circuit breaker: decides whether Redis is asked at all. It opens after `failures` failures in
// a row within ten seconds, or when half of at least twenty calls of ten seconds failed, and stays
// open for `open`, plus or minus a tenth. Then one probe, which belongs to no caller, finds out
// whether it may close. A sign that the server answers again brings that probe forward.
//
// A view of a state that stores of this and other processes may share: all see each change, and
// each reports it to its own users. Words of the state hold an instant in their upper bits, so that
// each changes by one compare-and-swap:
//
//   gate    until when it is open, 0 if it is closed     | 16 bits: how often it changed
//   row     when the first of this row of calls failed   | 16 bits: how many failed
//   window  when this window began | 15 bits: calls in it | 15 bits: how many failed
//
// An instant further ahead than these settings allow comes from damage or from other settings, and
// is ignored.
#ifndef TIDEGATE_SRC_REDIS_HEALTH_BREAKER_H_
#define TIDEGATE_SRC_REDIS_HEALTH_BREAKER_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "redis/health/board.h"

namespace tidegate::redis {

class Breaker {
 public:
  static constexpr int64_t kWindowNs = 10'000'000'000;
  static constexpr uint64_t kLeastCalls = 20;
  static constexpr int64_t kLeastProbeNs = 1'000'000'000;

  // `state` must outlive this. `timeout` is how long a probe may take.
  Breaker(BreakerState& state, int failures, absl::Duration open, absl::Duration timeout);

  // Whether a call may go to Redis, and Notice() has nothing to report. Instants are nanoseconds of
  // the board's clock.
  bool IsQuiet() const {
    return state_.gate.load(std::memory_order_acquire) == seen_.load(std::memory_order_relaxed);
  }
  bool IsClosed() const { return !IsOpen(state_.gate.load(std::memory_order_acquire)); }
  // Whether Notice() may have something to report.
  bool HasChanged() const {
    return SeenOf(state_.gate.load(std::memory_order_acquire)) !=
           seen_.load(std::memory_order_relaxed);
  }
  int64_t open_ns() const { return open_ns_; }
  // Whether a probe is due: true for one caller only, which makes it. If the probe gets lost,
  // another is due soon.
  bool ProbeIsDue(int64_t now_ns);
  // The same after a sign that the server answers again, whatever time is left.
  bool ProbeEarly(int64_t now_ns);
  // The time until Redis is asked again, in nanoseconds; 0 if it is asked now.
  int64_t OpenFor(int64_t now_ns) const;

  // Takes the result of a call or a probe, and may open or close the breaker.
  void Succeeded(int64_t now_ns);
  void Failed(int64_t now_ns);

  // Whether it opened (true) or closed since the last report to this store, in any process. Each
  // change is reported to one caller.
  std::optional<bool> Notice();
  // How often it opened in the life of this store.
  int64_t opened() const;

 private:
  static constexpr uint64_t kCountMask = 0xffff;
  static constexpr uint64_t kSeenOpen = kCountMask + 1;

  static bool IsOpen(uint64_t gate) { return gate > kCountMask; }
  static uint64_t SeenOf(uint64_t gate) {
    return (gate & kCountMask) | (IsOpen(gate) ? kSeenOpen : 0);
  }
  // How often it opened between the two values of `seen`.
  static int64_t OpenedBetween(uint64_t seen, uint64_t seen_now);

  // Sets `gate` to open until `until_ns` (0: to closed), counting a change unless it was open
  // already. Returns false if `gate` has changed meanwhile.
  bool Turn(uint64_t& gate, int64_t until_ns);
  void Open(int64_t now_ns);
  // Whether half of the calls of this window failed, including this one.
  bool CountCall(int64_t now_ns, bool failed);
  // How many calls failed in a row, including this one.
  uint64_t CountFailure(int64_t now_ns);
  // The longest time for which the gate may be open.
  int64_t MostOpenNs() const { return open_ns_ + open_ns_ / 8 + kSlackNs; }

  static constexpr int64_t kSlackNs = 1'000'000'000;

  BreakerState& state_;
  const uint64_t most_failures_;
  const int64_t open_ns_;
  const int64_t probe_ns_;
  std::atomic<uint64_t> seen_;
  std::atomic<int64_t> opened_{0};
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_HEALTH_BREAKER_H_
