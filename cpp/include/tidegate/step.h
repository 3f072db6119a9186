// The spine: for each algorithm a pure function
//
//   (limit, state, now, cost) -> (decision, state')
//
// The memory store, the shared-memory store and the replay engine call these
// and nothing else, so they cannot disagree; the Redis scripts restate them,
// and tests/vectors/ holds all of them to the same answers.
//
// Every state but a log's is a CellState of two words:
//
//   algorithm        w0: the instant at which the     w1
//                    state is as good as new
//   token-bucket     theoretical arrival time, ns     its fraction, in units of
//   leaky-bucket     (the same)                       1/limit.denominator() ns
//   fixed-window     end of the window                units used in it
//   sliding-window   end of the window after          current << 32 | previous
//
// That w0 means the same for all of them is what lets a table reclaim cells
// without knowing the limits behind them. w0 == 0 is the fresh state; w1 is then
// without meaning.
//
// Time. A state may lie ahead of `now` by more than any sequence of admissions
// explains: then the clock that wrote it ran ahead of this one. Up to
// kClockToleranceNs this is taken for the skew of readers, and `now` can only
// refuse. Beyond it the clock went back, and the state is moved to the fullest
// that `now` allows, so that nobody is locked out for longer than a period and
// nothing is minted. Decision::behind tells that this is about to be written.
//
// GCRA: ITU-T I.371; tat' = max(tat, now) + cost*T, refused iff
// tat' - now > burst*T. T is an exact fraction here, so limits such as 7/second
// do not drift.
#ifndef TIDEGATE_STEP_H_
#define TIDEGATE_STEP_H_

#include <cstdint>

#include "tidegate/decision.h"
#include "tidegate/limit.h"

namespace tidegate {

inline constexpr int64_t kClockToleranceNs = 100'000'000;
// Instants are clamped to [0, kMaxInstantNs] so that instant + period cannot
// overflow.
inline constexpr int64_t kMaxInstantNs = int64_t{1} << 62;

struct CellState {
  uint64_t w0 = 0;
  uint64_t w1 = 0;
  friend bool operator==(const CellState&, const CellState&) = default;
};

// Decides. `*next` is the state to store; where it equals `state`, nothing has
// to be written. 1 <= cost; 0 <= now_ns <= kMaxInstantNs. The limit is no log.
Decision Step(const Limit& limit, const CellState& state, int64_t now_ns,
              int64_t cost, CellState* next);

// Gives `cost` units back, never beyond what a fresh state has.
CellState Refund(const Limit& limit, const CellState& state, int64_t now_ns,
                 int64_t cost);

// The decision a hit of `cost` would get, with `remaining` and `reset_after` as
// they are without it.
Decision Peek(const Limit& limit, const CellState& state, int64_t now_ns,
              int64_t cost);

// The bucket's step alone, inline: the hottest code of the library.
Decision StepBucket(const Limit& limit, const CellState& state, int64_t now_ns,
                    int64_t cost, CellState* next);

// cost * T as nanoseconds and a fraction; cost <= burst.
struct Interval {
  int64_t ns;
  int64_t fraction;
};
Interval CostInterval(const Limit& limit, int64_t cost);

inline Decision StepBucket(const Limit& limit, const CellState& state,
                           int64_t now_ns, int64_t cost, CellState* next) {
  const auto now = static_cast<uint64_t>(now_ns);
  // Written out word by word, so that a caller that inlines this keeps only
  // what it reads.
  Interval before{0, 0};
  bool behind = false;
  *next = state;
  if (state.w0 >= now && state.w0 != 0) {
    before = {static_cast<int64_t>(state.w0 - now), static_cast<int64_t>(state.w1)};
    const int64_t ahead = before.ns - limit.depth_ns();
    if (ahead > kClockToleranceNs ||
        (ahead == kClockToleranceNs && before.fraction > limit.depth_fraction()))
        [[unlikely]] {
      behind = true;
      before = {limit.depth_ns(), limit.depth_fraction()};
      *next = {now + static_cast<uint64_t>(before.ns), static_cast<uint64_t>(before.fraction)};
    }
  }
  Interval used = before;
  bool allowed = false;
  int64_t wait_ns = Decision::kNever;
  if (cost <= limit.burst()) [[likely]] {
    const Interval add = cost == 1 ? Interval{limit.step_ns(), limit.step_fraction()}
                                   : CostInterval(limit, cost);
    Interval after{before.ns + add.ns, before.fraction + add.fraction};
    if (after.fraction >= limit.denominator()) {
      after.fraction -= limit.denominator();
      ++after.ns;
    }
    allowed = after.ns < limit.depth_ns() ||
              (after.ns == limit.depth_ns() && after.fraction <= limit.depth_fraction());
    if (allowed) [[likely]] {
      used = after;
      wait_ns = 0;
      // Within the very first nanosecond a state must not look like a fresh one.
      const uint64_t instant = now + static_cast<uint64_t>(after.ns);
      *next = {instant == 0 ? 1 : instant, static_cast<uint64_t>(after.fraction)};
    } else {
      wait_ns = after.ns - limit.depth_ns() + (after.fraction > limit.depth_fraction());
    }
  }
  Decision d;
  d.limit = &limit;
  d.allowed = allowed;
  d.behind = behind;
  d.retry_after_ns = wait_ns;
  d.used_ns = used.ns;
  d.used_fraction = used.fraction;
  d.reset_after_ns = used.ns + (used.fraction != 0);
  if (limit.algorithm() == Algorithm::kLeakyBucket && allowed) {
    d.delay_ns = before.ns + (before.fraction != 0);
  }
  return d;
}

}  // namespace tidegate

#endif  // TIDEGATE_STEP_H_
