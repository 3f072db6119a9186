#include "redis/health/breaker.h"

#include <algorithm>
#include <random>

namespace tidegate::redis {
namespace {

// The resolution of instants, whose lower bits hold counts. An instant never becomes 0.
constexpr int64_t kTickNs = int64_t{1} << 16;
uint64_t UpperBits(int64_t ns) {
  return static_cast<uint64_t>(std::max(ns, kTickNs)) & ~static_cast<uint64_t>(kTickNs - 1);
}
int64_t InstantOf(uint64_t word) {
  return static_cast<int64_t>(word & ~static_cast<uint64_t>(kTickNs - 1) & INT64_MAX);
}

// A window's start, in eighths of a second, and its two counts.
struct Window {
  static constexpr uint64_t kMostCalls = 0x7fff;
  static constexpr int kTickBits = 27;

  uint64_t start;
  uint64_t calls;
  uint64_t failed;

  static Window From(uint64_t word) {
    return {word >> 30, (word >> 15) & kMostCalls, word & kMostCalls};
  }
  uint64_t ToWord() const { return start << 30 | calls << 15 | failed; }
};

}  // namespace

Breaker::Breaker(BreakerState& state, int failures, absl::Duration open, absl::Duration timeout)
    : state_(state),
      most_failures_(std::min(static_cast<uint64_t>(failures), kCountMask)),
      open_ns_(absl::ToInt64Nanoseconds(open)),
      probe_ns_(std::min(open_ns_ / 2 + 1,
                         std::max(2 * absl::ToInt64Nanoseconds(timeout), kLeastProbeNs))),
      // If it is open already, this store's users have not heard of it yet.
      seen_(state.gate.load(std::memory_order_acquire) & kCountMask) {}

bool Breaker::Turn(uint64_t& gate, int64_t until_ns) {
  const bool changes = IsOpen(gate) != (until_ns != 0);
  const uint64_t count = (gate + (changes ? 1 : 0)) & kCountMask;
  const uint64_t next = (until_ns == 0 ? 0 : UpperBits(until_ns)) | count;
  return state_.gate.compare_exchange_strong(gate, next, std::memory_order_acq_rel,
                                             std::memory_order_acquire);
}

bool Breaker::ProbeIsDue(int64_t now_ns) {
  uint64_t gate = state_.gate.load(std::memory_order_acquire);
  if (!IsOpen(gate)) return false;
  const int64_t until = InstantOf(gate);
  const bool due = now_ns >= until || until - now_ns > MostOpenNs();
  return due && Turn(gate, now_ns + probe_ns_ + kTickNs);
}

bool Breaker::ProbeEarly(int64_t now_ns) {
  uint64_t gate = state_.gate.load(std::memory_order_acquire);
  return IsOpen(gate) && Turn(gate, now_ns + probe_ns_ + kTickNs);
}

int64_t Breaker::OpenFor(int64_t now_ns) const {
  const uint64_t gate = state_.gate.load(std::memory_order_acquire);
  if (!IsOpen(gate)) return 0;
  return std::clamp<int64_t>(InstantOf(gate) - now_ns, 1, MostOpenNs());
}

bool Breaker::CountCall(int64_t now_ns, bool failed) {
  const uint64_t now = static_cast<uint64_t>(now_ns) >> Window::kTickBits;
  uint64_t word = state_.window.load(std::memory_order_relaxed);
  Window window;
  do {
    window = Window::From(word);
    // Unsigned, so that a window that begins after `now` has ended too.
    if (now - window.start > (kWindowNs >> Window::kTickBits)) window = {now, 0, 0};
    if (window.calls == Window::kMostCalls) {
      window.calls /= 2;
      window.failed /= 2;
    }
    ++window.calls;
    window.failed = std::min(window.failed + (failed ? 1 : 0), window.calls);
  } while (!state_.window.compare_exchange_weak(word, window.ToWord(), std::memory_order_relaxed));
  return window.calls >= kLeastCalls && window.failed * 2 >= window.calls;
}

uint64_t Breaker::CountFailure(int64_t now_ns) {
  uint64_t word = state_.row.load(std::memory_order_relaxed);
  uint64_t next = 0;
  do {
    const int64_t age = now_ns - InstantOf(word);
    const uint64_t before = age >= -kTickNs && age <= kWindowNs ? word & kCountMask : 0;
    next = (before == 0 ? UpperBits(now_ns) : UpperBits(InstantOf(word))) |
           std::min(before + 1, kCountMask);
  } while (!state_.row.compare_exchange_weak(word, next, std::memory_order_relaxed));
  return next & kCountMask;
}

void Breaker::Succeeded(int64_t now_ns) {
  (void)CountCall(now_ns, false);
  if (state_.row.load(std::memory_order_relaxed) != 0) {
    state_.row.store(0, std::memory_order_relaxed);
  }
  uint64_t gate = state_.gate.load(std::memory_order_acquire);
  while (IsOpen(gate) && !Turn(gate, 0)) {
  }
}

void Breaker::Failed(int64_t now_ns) {
  const bool half = CountCall(now_ns, true);
  // While the breaker is open, each failure restarts its open time: that of a probe, and those of
  // calls that were under way when it opened.
  if (!IsClosed() || CountFailure(now_ns) >= most_failures_ || half) Open(now_ns);
}

void Breaker::Open(int64_t now_ns) {
  std::minstd_rand random(static_cast<uint32_t>(now_ns));
  const double jitter = std::uniform_real_distribution<double>(0.9, 1.1)(random);
  const auto pause = static_cast<int64_t>(static_cast<double>(open_ns_) * jitter);
  state_.row.store(0, std::memory_order_relaxed);
  state_.window.store(0, std::memory_order_relaxed);
  uint64_t gate = state_.gate.load(std::memory_order_acquire);
  while (!Turn(gate, now_ns + std::max(pause, kTickNs))) {
  }
}

int64_t Breaker::OpenedBetween(uint64_t seen, uint64_t seen_now) {
  const uint64_t changes = (seen_now - seen) & kCountMask;
  return static_cast<int64_t>((changes + (seen < kSeenOpen ? 1 : 0)) / 2);
}

std::optional<bool> Breaker::Notice() {
  uint64_t seen = seen_.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t gate = state_.gate.load(std::memory_order_acquire);
    const uint64_t seen_now = SeenOf(gate);
    if (seen == seen_now) return std::nullopt;
    if (!seen_.compare_exchange_weak(seen, seen_now, std::memory_order_relaxed)) continue;
    opened_.fetch_add(OpenedBetween(seen, seen_now), std::memory_order_relaxed);
    if ((seen >= kSeenOpen) == IsOpen(gate)) return std::nullopt;
    return IsOpen(gate);
  }
}

int64_t Breaker::opened() const {
  return opened_.load(std::memory_order_relaxed) +
         OpenedBetween(seen_.load(std::memory_order_relaxed),
                       SeenOf(state_.gate.load(std::memory_order_acquire)));
}

}  // namespace tidegate::redis
