// Decides whether Redis is asked at all. It opens after so many failures in a row
// within ten seconds, or when half of at least twenty calls of ten seconds failed, and
// stays open for `open`, within a tenth. Then one probe, which is nobody's request,
// finds out whether it may close.
//
// A view of a state that other stores, of this process and others, may share: all see
// each change, and each tells its own users. Words of the state hold an instant in
// their upper bits, so that each changes by one compare-and-swap:
//
//   gate    until when it is open, 0 where it is closed  | 16 bits: how often it changed
//   row     when the first of this row of calls failed   | 16 bits: how many did
//   window  when this window began | 15 bits: calls in it | 15 bits: how many failed
//
// What lies further ahead than it could be is damage, or of other settings, and ends.
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

  // Whether a call may go to Redis, and nothing changed that Notice() would tell.
  // Instants are nanoseconds of the board's clock.
  bool IsQuiet() const {
    return state_.gate.load(std::memory_order_acquire) == seen_.load(std::memory_order_relaxed);
  }
  bool IsClosed() const { return !IsOpen(state_.gate.load(std::memory_order_acquire)); }
  // Whether the time for a probe has come: true for one caller of all, who makes it. If
  // it is never heard of again, another is due soon.
  bool ProbeIsDue(int64_t now_ns);
  // When Redis is asked again, in nanoseconds from now; 0 where it is asked.
  int64_t OpenFor(int64_t now_ns) const;

  // What came of a call, or of a probe; it may open or close.
  void Succeeded(int64_t now_ns);
  void Failed(int64_t now_ns);

  // Whether it opened (true) or closed since this store was last told, whoever did it.
  // Each change is told to one caller.
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
  // How often it opened between the two.
  static int64_t OpenedBetween(uint64_t seen, uint64_t seen_now);

  // Changes `gate` to open until `until_ns` (0: to closed) in one more change, or in the
  // same where it was open already. False where it is no longer what it was.
  bool Turn(uint64_t& gate, int64_t until_ns);
  void Open(int64_t now_ns);
  // Whether half of the calls of this window failed, this one included.
  bool CountCall(int64_t now_ns, bool failed);
  // How many failed in a row, this one included.
  uint64_t CountFailure(int64_t now_ns);
  // The furthest that the gate may be open.
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
