// The core of the library: for each algorithm a pure function
//
//   (limit, state, now, cost) -> (decision, state')
//
// The memory store, the shared-memory store and the replay engine call these
// and nothing else, so they cannot disagree; the Redis scripts restate them,
// and tests/vectors/ holds all of them to the same answers.
//
// The state of a log is in log.h and that of a quota in quota.h. All others are a CellState of two
// words:
//
//   algorithm        w0: the instant at which the     w1
//                    key is full again
//   token-bucket     theoretical arrival time, ns     its fraction, in units of
//   leaky-bucket     (the same)                       1/limit.denominator() ns
//   fixed-window     end of the window                units used in it
//   sliding-window   end of the window after          current << 32 | previous
//
// A bucket of a limit with an id keeps in the upper half of w1 the count that wrote it, so that a
// limit with another count reads it as the same number of units used, and in the lower half, beside
// the fraction, how many periods the burst spans (Limit::span_parts()).
//
// The state of a key that owes (StepCharge()) is beyond its limit: the instant of a bucket lies
// further ahead than the burst. A window that owes is the last one that the debt reaches: those
// before it are full, so that each takes up to its count. w1 then says how far ahead that is
// (algorithms/debt.h): as a code above kDebtShift, in a sliding window in place of the previous
// units, above kSlidingDebtMark; a bucket with an id has as many periods in its span.
//
// Since w0 means the same for all of them, a table can reclaim cells without knowing their limits.
// w0 == 0 is the fresh state; w1 then has no meaning.
//
// Time. If a state lies ahead of `now` by more than any sequence of admissions explains, the clock
// that wrote it ran ahead of this one. Up to kClockToleranceNs this is taken for the skew of
// readers, and `now` can only refuse. Beyond it the clock went back, and the state is moved back to
// the most usage that is possible at `now`, so that nobody is locked out for longer than a period
// and what is owed, and no extra units are granted. Decision::behind means that this state is about
// to be written.
//
// GCRA: ITU-T I.371; tat' = max(tat, now) + cost*T, refused iff
// tat' - now > burst*T. T is an exact fraction here, so limits such as 7/second
// do not drift.
#ifndef TIDEGATE_STEP_H_
#define TIDEGATE_STEP_H_

#include <cstdint>

#include "tidegate/decision.h"
#include "tidegate/instant.h"
#include "tidegate/limit.h"

namespace tidegate {

struct CellState {
  uint64_t w0 = 0;
  uint64_t w1 = 0;
  friend bool operator==(const CellState&, const CellState&) = default;
};

// Decides. `*next` is the state to store; if it equals `state`, nothing has to be written. 1 <=
// cost; 0 <= now_ns <= kMaxInstantNs. Not for logs and quotas.
Decision Step(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
              CellState* next);

// Charges `cost`, and refuses nothing: what finds no room is owed, up to `most_debt` units in all.
// Decision::charged is what was charged. `most_debt` is at most Limit::max_debt(); with 0 only as
// much is charged as there is room for.
Decision StepCharge(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                    int64_t most_debt, CellState* next);
// The bits of w1 from this one on are a code in buckets and fixed windows. In buckets the highest
// bit is set too, which is the quickest to see.
inline constexpr int kDebtShift = 54;
inline constexpr uint64_t kOwesBit = uint64_t{1} << 63;

// Gives `cost` units back, never beyond what a fresh state has.
CellState Refund(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost);
// The same for units that were charged before, where the key would count nothing from `until_ns` on
// unless others had charged it since: gives back only what still counts of them, so that none are
// given back that others have charged.
CellState RefundUntil(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                      int64_t until_ns);
// The time from `now_ns` for which units still count, that the key shows until `until_ns`.
int64_t CountedFor(const Limit& limit, int64_t now_ns, int64_t until_ns);
// The most units that Refund() can give back. A part of a unit in a bucket counts as one.
int64_t Refundable(const Limit& limit, const CellState& state, int64_t now_ns);

// The decision that a hit of `cost` would get, with `remaining` and `reset_after` as they are
// without it.
Decision Peek(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost);

// The step of a bucket, inline: the hottest code of the library. Its results are separate words,
// which a caller that inlines it keeps in registers; MakeDecision() turns them into a Decision.
struct BucketOutcome {
  bool allowed = false;
  bool behind = false;  // only by StepAhead()
  int64_t wait_ns = 0;
  int64_t delay_ns = 0;
  int64_t used_ns = 0;
  int64_t used_fraction = 0;
  // The state to write if allowed or behind.
  uint64_t next_w0 = 0;
  uint64_t next_w1 = 0;
};
// Returns false for a state that owes or lies too far ahead, for which StepAhead() decides; `out`
// is not complete then.
bool StepBucket(const Limit& limit, uint64_t w0, uint64_t w1, int64_t now_ns, int64_t cost,
                BucketOutcome& out);
__attribute__((cold)) BucketOutcome StepAhead(const Limit& limit, uint64_t w0, uint64_t w1,
                                              int64_t now_ns, int64_t cost);
Decision MakeDecision(const Limit& limit, const BucketOutcome& outcome, int64_t at_ns = 0);

// Whole units that a bucket has left: floor((burst*T - used) / T).
int64_t RemainingOfBucket(const Limit& limit, int64_t used_ns, int64_t used_fraction);
int64_t RemainingInParts(const Limit& limit, int64_t used_ns, int64_t used_fraction);

// The step of a fixed window, inline, for the usual case: the state is of the window that contains
// `now`, and its units and the cost are within the count. Returns false for all else, which needs
// Step().
struct WindowOutcome {
  bool allowed = false;
  int64_t wait_ns = 0;
  int64_t used_units = 0;  // includes the units of this call if it is allowed
};
bool StepInWindow(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                  WindowOutcome& out);

// cost * T as nanoseconds and a fraction; cost <= burst.
struct Interval {
  int64_t ns;
  int64_t fraction;
};
Interval CostInterval(const Limit& limit, int64_t cost);

// Whether `cost` fits a bucket whose burst is at least 1, which one unit always does.
inline bool IsWithinBurst(const Limit& limit, int64_t cost) {
  return cost == 1 || cost <= limit.burst();
}

__attribute__((always_inline)) inline bool StepBucket(const Limit& limit, uint64_t w0, uint64_t w1,
                                                      int64_t now_ns, int64_t cost,
                                                      BucketOutcome& out) {
  const auto now = static_cast<uint64_t>(now_ns);
  int64_t used_ns = 0;
  int64_t used_fraction = 0;
  out.behind = false;
  // A state of 0 is fresh, at the instant 0 too; its w1 may have any value.
  const uint64_t least = now + (now == 0);
  if (w0 >= least) [[likely]] {
    used_ns = static_cast<int64_t>(w0 - now);
    used_fraction = static_cast<int64_t>(w1);
    const int64_t ahead = used_ns - limit.depth_ns();
    // A key that owes has the highest bit of w1. One branch for that and for a state too far ahead.
    if (((kClockToleranceNs - 1 - ahead) | used_fraction) < 0) [[unlikely]] {
      if (ahead > kClockToleranceNs || used_fraction < 0 ||
          (ahead == kClockToleranceNs && used_fraction > limit.depth_fraction())) {
        return false;
      }
    }
  }
  out.allowed = false;
  out.delay_ns = 0;
  out.wait_ns = Decision::kNever;
  if (IsWithinBurst(limit, cost)) [[likely]] {
    int64_t after_ns = used_ns + limit.step_ns();
    int64_t after_fraction = used_fraction + limit.step_fraction();
    if (cost != 1) {
      const Interval add = CostInterval(limit, cost);
      after_ns = used_ns + add.ns;
      after_fraction = used_fraction + add.fraction;
    }
    if (after_fraction >= limit.denominator()) {
      after_fraction -= limit.denominator();
      ++after_ns;
    }
    if (after_ns < limit.depth_ns() ||
        (after_ns == limit.depth_ns() && after_fraction <= limit.depth_fraction())) [[likely]] {
      if (limit.algorithm() == Algorithm::kLeakyBucket) {
        out.delay_ns = used_ns + (used_fraction != 0);
      }
      out.allowed = true;
      out.wait_ns = 0;
      used_ns = after_ns;
      used_fraction = after_fraction;
    } else {
      out.wait_ns = after_ns - limit.depth_ns() + (after_fraction > limit.depth_fraction());
    }
  }
  out.used_ns = used_ns;
  out.used_fraction = used_fraction;
  // At the instant 0 a used state must not look like a fresh one, so its usage is
  // rounded up to the whole nanosecond, as reset_after is.
  const uint64_t instant = now + static_cast<uint64_t>(used_ns);
  out.next_w0 = instant;
  out.next_w1 = static_cast<uint64_t>(used_fraction);
  if (instant == 0) [[unlikely]] {
    out.next_w0 = 1;
    out.next_w1 = 0;
  }
  return true;
}

inline int64_t RemainingOfBucket(const Limit& limit, int64_t used_ns, int64_t used_fraction) {
  if (limit.denominator() != 1) return RemainingInParts(limit, used_ns, used_fraction);
  const int64_t room_ns = limit.depth_ns() - used_ns;
  return room_ns <= 0 ? 0 : room_ns / limit.step_ns();
}

__attribute__((always_inline)) inline bool StepInWindow(const Limit& limit, const CellState& state,
                                                        int64_t now_ns, int64_t cost,
                                                        WindowOutcome& out) {
  const auto end_ns = static_cast<int64_t>(state.w0);
  const int64_t left_ns = end_ns - now_ns;
  // Also if nothing is left, which is the largest number less 1.
  if (static_cast<uint64_t>(left_ns) - 1 >= static_cast<uint64_t>(limit.period_ns()) ||
      limit.calendar() != Calendar::kNone) [[unlikely]] {
    return false;
  }
  const auto used = static_cast<int64_t>(state.w1);
  const int64_t room = limit.count() - used;
  out.allowed = cost <= room;
  // One branch for both.
  if (!out.allowed && (room | (limit.count() - cost)) < 0) [[unlikely]]
    return false;
  out.used_units = out.allowed ? used + cost : used;
  out.wait_ns = out.allowed ? 0 : left_ns;
  return true;
}

// Returns without a variable, so that the decision is constructed in the caller's place: copying a
// struct that was just written stalls.
__attribute__((always_inline)) inline Decision MakeDecision(const Limit& limit,
                                                            const BucketOutcome& outcome,
                                                            int64_t at_ns) {
  return Decision{.allowed = outcome.allowed,
                  .behind = outcome.behind,
                  .limit = &limit,
                  .retry_after_ns = outcome.wait_ns,
                  .reset_after_ns = outcome.used_ns + (outcome.used_fraction != 0),
                  .delay_ns = outcome.delay_ns,
                  .at_ns = at_ns,
                  .used_ns = outcome.used_ns,
                  .used_fraction = outcome.used_fraction};
}

}  // namespace tidegate

#endif  // TIDEGATE_STEP_H_
