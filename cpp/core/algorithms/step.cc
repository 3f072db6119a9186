#include "tidegate/step.h"

#include <algorithm>
#include <numeric>

#include "absl/numeric/int128.h"
#include "algorithms/debt.h"
#include "algorithms/wide.h"
#include "algorithms/windows.h"

namespace tidegate {
namespace {

using absl::uint128;

// Whether anything of the state still counts.
bool IsUsed(const Limit& limit, const CellState& state, int64_t now_ns) {
  const auto until = static_cast<int64_t>(state.w0);
  // A bucket's state may lie less than a nanosecond ahead.
  const bool in_part = IsBucket(limit.algorithm()) && until == now_ns && state.w1 != 0;
  return until != 0 && (until > now_ns || in_part);
}

// ------------------------------------------------- buckets of limits with an id

// A state that a limit with another number wrote may lie further ahead than this limit's burst.
// Only one that lies further ahead than the periods that the writer's burst spans means that the
// clock went back.

constexpr int kCountBits = 32;
constexpr uint64_t kLowerHalf = (uint64_t{1} << kCountBits) - 1;

// The usage of a bucket that keeps its count: `parts` of 1 / `denominator` ns, by the emission
// interval of `count`, of which one unit takes `unit` parts.
struct Kept {
  int64_t count;
  uint128 divisor;  // of count and period
  uint128 denominator;
  uint128 unit;
  uint128 parts;
  uint64_t span_parts;  // Limit::span_parts()
};

Kept ReadKept(const Limit& limit, const CellState& state, int64_t now_ns) {
  const uint64_t written = state.w1 >> kCountBits;
  const bool fresh = state.w0 < static_cast<uint64_t>(now_ns) || state.w0 == 0 || written == 0;
  const int64_t count = fresh ? std::max<int64_t>(1, limit.count()) : static_cast<int64_t>(written);
  const int64_t divisor = std::gcd(count, limit.period_ns());
  Kept kept{count, Wide(divisor), Wide(count / divisor), Wide(limit.period_ns() / divisor), 0, 0};
  if (!fresh) {
    const uint64_t low = state.w1 & kLowerHalf;
    const uint64_t fraction = low % static_cast<uint64_t>(count / divisor);
    kept.span_parts = low - fraction;
    kept.parts = Wide(static_cast<int64_t>(state.w0) - now_ns) * kept.denominator + fraction;
  }
  return kept;
}

CellState WriteKept(int64_t count, uint128 denominator, uint128 parts, uint64_t span_parts,
                    int64_t now_ns) {
  const uint128 ns = std::min(parts / denominator, Wide(kMaxInstantNs - now_ns));
  const auto instant = static_cast<uint64_t>(now_ns + Narrow(ns));
  return {std::max<uint64_t>(instant, 1),
          static_cast<uint64_t>(count) << kCountBits |
              (span_parts + absl::Uint128Low64(parts % denominator))};
}

// The usage of the state, moved back if it lies too far ahead. `*next` is the state to write then,
// else `state`.
Kept ReadSettled(const Limit& limit, const CellState& state, int64_t now_ns, bool* behind,
                 CellState* next) {
  const Kept kept = ReadKept(limit, state, now_ns);
  *next = state;
  const uint128 span = kept.span_parts / kept.denominator + 1;
  const uint128 longest = std::max(Wide(limit.period_ns()) * span, Wide(limit.depth_ns()));
  *behind = limit.burst() > 0 && kept.parts / kept.denominator > longest + Wide(kClockToleranceNs);
  if (!*behind) return kept;
  const uint128 denominator = Wide(limit.denominator());
  const uint128 own_span = Wide(limit.span_parts()) / denominator + 1;
  // More periods than the burst spans are those of a debt, or of a larger burst of the same id.
  const uint128 most =
      span > own_span ? longest * denominator : Wide(limit.burst()) * Wide(limit.numerator());
  *next = WriteKept(limit.count(), denominator, most,
                    absl::Uint128Low64((std::max(span, own_span) - 1) * denominator), now_ns);
  return ReadKept(limit, *next, now_ns);
}

// The same units, in parts of this limit's interval; rounded up, against the caller.
uint128 UsedParts(const Limit& limit, const Kept& kept) {
  const uint128 divisor = Wide(std::max<int64_t>(1, limit.count())) / Wide(limit.denominator());
  return (kept.parts * kept.divisor + divisor - 1) / divisor;
}

// Like StepBucket(). A refusal writes nothing: until a call passes, the state of the other number
// stays, and its units come back at that number's rate.
__attribute__((noinline)) Decision StepKept(const Limit& limit, const CellState& state,
                                            int64_t now_ns, int64_t cost, CellState* next) {
  const uint128 denominator = Wide(limit.denominator());
  const uint128 unit = Wide(limit.numerator());
  const uint128 depth = Wide(limit.burst()) * unit;
  const auto span_parts = static_cast<uint64_t>(limit.span_parts());
  const uint128 divisor = Wide(std::max<int64_t>(1, limit.count())) / denominator;
  Decision d;
  d.limit = &limit;
  const Kept kept = ReadSettled(limit, state, now_ns, &d.behind, next);
  uint128 used = UsedParts(limit, kept);
  // The time until no more than `parts` are used, at the other number's rate.
  constexpr int64_t kLongest = Limit::kMaxPeriodNs;
  const auto wait = [&](uint128 parts) {
    const uint128 left = parts * divisor / kept.divisor;
    const uint128 ns = (kept.parts - left + kept.denominator - 1) / kept.denominator;
    return Narrow(std::min(ns, Wide(kLongest)));
  };
  const uint128 asked = cost <= limit.burst() ? Wide(cost) * unit : depth + 1;
  d.allowed = used + asked <= depth;
  if (d.allowed) {
    if (limit.algorithm() == Algorithm::kLeakyBucket) {
      d.delay_ns = Narrow((used + denominator - 1) / denominator);
    }
    used += asked;
    *next = WriteKept(limit.count(), denominator, used, span_parts, now_ns);
    d.reset_after_ns = Narrow((used + denominator - 1) / denominator);
  } else {
    d.retry_after_ns =
        cost > limit.burst() ? Decision::kNever : std::max<int64_t>(1, wait(depth - asked));
    d.reset_after_ns = Narrow((kept.parts + kept.denominator - 1) / kept.denominator);
    const uint128 kept_units = used >= depth ? Wide(limit.burst()) : (used + unit - 1) / unit;
    if (kept_units > 0) d.known_more_ns = wait((kept_units - 1) * unit);
  }
  d.used_ns = Narrow(std::min(used / denominator, Wide(kLongest)));
  d.used_fraction = Narrow(used % denominator);
  return d;
}

// What a state of `limit` itself has in w1 above the fraction: nothing without an id.
uint64_t BitsAboveFraction(const Limit& limit) {
  if (!limit.keeps_count()) return 0;
  return (static_cast<uint64_t>(limit.count()) << kCountBits) +
         static_cast<uint64_t>(limit.span_parts());
}

// Whether the numbers of `limit` itself wrote the state, or nothing of the state is used. Such a
// state is that of a bucket without an id, except for `above`, BitsAboveFraction(), in w1.
bool IsOwn(const Limit& limit, const CellState& state, uint64_t above, int64_t now_ns) {
  return !limit.keeps_count() || state.w0 < static_cast<uint64_t>(now_ns) || state.w0 == 0 ||
         state.w1 - above < static_cast<uint64_t>(limit.denominator());
}

__attribute__((noinline)) Decision StepWithId(const Limit& limit, const CellState& state,
                                              int64_t now_ns, int64_t cost, CellState* next) {
  BucketOutcome outcome;
  const uint64_t above = BitsAboveFraction(limit);
  if (limit.burst() == 0 || !IsOwn(limit, state, above, now_ns) ||
      !StepBucket(limit, state.w0, state.w1 - above, now_ns, cost, outcome)) [[unlikely]] {
    return StepKept(limit, state, now_ns, cost, next);
  }
  *next = state;
  if (outcome.allowed) *next = {outcome.next_w0, above + outcome.next_w1};
  return MakeDecision(limit, outcome);
}

// A bucket whose burst is 0 refuses every cost, and keeps what another number of its id has
// counted.
__attribute__((noinline)) Decision StepBlocking(const Limit& limit, const CellState& state,
                                                int64_t now_ns, CellState* next) {
  BucketOutcome outcome = StepAhead(limit, state.w0, state.w1, now_ns, /*cost=*/2);
  outcome.behind = false;
  *next = state;
  return MakeDecision(limit, outcome);
}

// A bucket without an id, in a state for which StepAhead() decides.
__attribute__((noinline)) Decision StepPlainAhead(const Limit& limit, const CellState& state,
                                                  int64_t now_ns, int64_t cost, CellState* next) {
  const BucketOutcome outcome = StepAhead(limit, state.w0, state.w1, now_ns, cost);
  *next = state;
  if (outcome.allowed || outcome.behind) *next = {outcome.next_w0, outcome.next_w1};
  return MakeDecision(limit, outcome);
}

// A bucket without an id, in any state.
__attribute__((always_inline)) inline Decision StepPlain(const Limit& limit, const CellState& state,
                                                         int64_t now_ns, int64_t cost,
                                                         CellState* next) {
  BucketOutcome outcome;
  if (!StepBucket(limit, state.w0, state.w1, now_ns, cost, outcome)) [[unlikely]]
    return StepPlainAhead(limit, state, now_ns, cost, next);
  // Twice, so that less of the decision is a variable.
  if (!outcome.allowed) {
    *next = state;
    return MakeDecision(limit, outcome);
  }
  *next = {outcome.next_w0, outcome.next_w1};
  return MakeDecision(limit, outcome);
}

// A debt takes as many more periods in the span as it is long.
Charging ChargeKept(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                    int64_t most_debt, CellState* next) {
  Charging done;
  const Kept kept = ReadSettled(limit, state, now_ns, &done.behind, next);
  uint128 used = UsedParts(limit, kept);
  const uint128 unit = Wide(limit.numerator());
  const uint128 most = (Wide(limit.burst()) + Wide(most_debt)) * unit;
  if (used >= most) return done;
  done.units = Narrow(std::min(Wide(cost), (most - used) / unit));
  if (done.units == 0) return done;
  used += Wide(done.units) * unit;
  const uint128 denominator = Wide(limit.denominator());
  const uint128 period = Wide(limit.period_ns()) * denominator;
  const uint128 span_parts =
      used > Wide(limit.burst()) * unit ? ((used + period - 1) / period - 1) * denominator : 0;
  *next = WriteKept(
      limit.count(), denominator, used,
      std::max(absl::Uint128Low64(span_parts), static_cast<uint64_t>(limit.span_parts())), now_ns);
  return done;
}

// The usage of a bucket without an id, in parts of 1 / denominator() ns.
uint128 PartsOf(const Limit& limit, int64_t used_ns, int64_t used_fraction) {
  return Wide(used_ns) * Wide(limit.denominator()) + Wide(used_fraction);
}

CellState WriteParts(const Limit& limit, uint128 used, int64_t now_ns) {
  const uint128 denominator = Wide(limit.denominator());
  const uint128 depth = PartsOf(limit, limit.depth_ns(), limit.depth_fraction());
  const uint128 debt_ns = used > depth ? (used - depth + denominator - 1) / denominator : 0;
  const CellState written{
      static_cast<uint64_t>(now_ns + Narrow(used / denominator)),
      absl::Uint128Low64(used % denominator) | DebtBitsOf(CodeOfDebt(Narrow(debt_ns)))};
  return written.w0 == 0 ? CellState{1, 0} : written;
}

Charging ChargePlain(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                     int64_t most_debt, CellState* next) {
  // A step that cannot pass charges nothing.
  const BucketOutcome before = StepAhead(limit, state.w0, state.w1, now_ns, limit.burst() + 1);
  *next = before.behind ? CellState{before.next_w0, before.next_w1} : state;
  Charging done{0, before.behind};
  const uint128 used = PartsOf(limit, before.used_ns, before.used_fraction);
  const uint128 unit = Wide(limit.numerator());
  const uint128 most = (Wide(limit.burst()) + Wide(most_debt)) * unit;
  if (used >= most) return done;
  done.units = Narrow(std::min(Wide(cost), (most - used) / unit));
  if (done.units > 0) *next = WriteParts(limit, used + Wide(done.units) * unit, now_ns);
  return done;
}

// Refunds by the count that wrote the state.
CellState WithoutParts(const Kept& kept, const CellState& state, int64_t now_ns, uint128 back) {
  if (kept.parts == 0) return state;
  return WriteKept(kept.count, kept.denominator, kept.parts > back ? kept.parts - back : 0,
                   kept.span_parts, now_ns);
}

CellState RefundKept(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  const Kept kept = ReadKept(limit, state, now_ns);
  return WithoutParts(kept, state, now_ns, Wide(cost) * kept.unit);
}

}  // namespace

Interval CostInterval(const Limit& limit, int64_t cost) {
  const uint128 total = Wide(cost) * Wide(limit.numerator());
  if (absl::Uint128High64(total) == 0) {
    const uint64_t low = absl::Uint128Low64(total);
    const auto divisor = static_cast<uint64_t>(limit.denominator());
    return {static_cast<int64_t>(low / divisor), static_cast<int64_t>(low % divisor)};
  }
  return {Narrow(total / Wide(limit.denominator())), Narrow(total % Wide(limit.denominator()))};
}

BucketOutcome StepAhead(const Limit& limit, uint64_t w0, uint64_t w1, int64_t now_ns,
                        int64_t cost) {
  BucketOutcome out;
  const auto now = static_cast<uint64_t>(now_ns);
  if (w0 >= now + (now == 0)) {
    out.used_ns = static_cast<int64_t>(w0 - now);
    out.used_fraction = static_cast<int64_t>(WithoutDebtCode(w1));
  }
  const int64_t most_ns = limit.depth_ns() + DebtOfCode(DebtCodeIn(w1));
  const int64_t ahead = out.used_ns - most_ns;
  if (ahead > kClockToleranceNs ||
      (ahead == kClockToleranceNs && out.used_fraction > limit.depth_fraction())) {
    out.behind = true;
    out.used_ns = most_ns;
    out.used_fraction = limit.depth_fraction();
  }
  const uint128 depth = PartsOf(limit, limit.depth_ns(), limit.depth_fraction());
  uint128 used = PartsOf(limit, out.used_ns, out.used_fraction);
  out.wait_ns = Decision::kNever;
  if (cost <= limit.burst()) {
    const uint128 after = used + Wide(cost) * Wide(limit.numerator());
    out.allowed = after <= depth;
    if (out.allowed) {
      if (limit.algorithm() == Algorithm::kLeakyBucket) {
        out.delay_ns = out.used_ns + (out.used_fraction != 0);
      }
      out.wait_ns = 0;
      used = after;
      out.used_ns = Narrow(used / Wide(limit.denominator()));
      out.used_fraction = Narrow(used % Wide(limit.denominator()));
    } else {
      const uint128 denominator = Wide(limit.denominator());
      out.wait_ns = Narrow((after - depth + denominator - 1) / denominator);
    }
  }
  const CellState next = WriteParts(limit, used, now_ns);
  out.next_w0 = next.w0;
  out.next_w1 = next.w1;
  return out;
}

namespace {

// A cost beyond the capacity that may owe the rest passes when nothing of the key is used.
__attribute__((noinline)) Decision StepOversize(const Limit& limit, const CellState& state,
                                                int64_t now_ns, int64_t cost, CellState* next) {
  Decision standing = Step(limit, state, now_ns, limit.beyond(), next);
  if (standing.reset_after_ns > 0) {
    standing.retry_after_ns = standing.reset_after_ns;
    return standing;
  }
  Decision decision = StepCharge(limit, CellState{}, now_ns, cost, limit.max_debt(), next);
  decision.behind = standing.behind;
  decision.charged = Decision::kUnset;
  return decision;
}

__attribute__((noinline)) Decision StepOtherWindow(const Limit& limit, const CellState& state,
                                                   int64_t now_ns, int64_t cost, CellState* next) {
  if (limit.IsOversize(cost)) return StepOversize(limit, state, now_ns, cost, next);
  return limit.algorithm() == Algorithm::kFixedWindow
             ? StepFixed(limit, state, now_ns, cost, next)
             : StepSliding(limit, state, now_ns, cost, next);
}

__attribute__((noinline)) Decision StepOtherBucket(const Limit& limit, const CellState& state,
                                                   int64_t now_ns, int64_t cost, CellState* next) {
  if (limit.IsOversize(cost)) return StepOversize(limit, state, now_ns, cost, next);
  if (limit.keeps_count()) return StepWithId(limit, state, now_ns, cost, next);
  if (limit.burst() == 0) return StepBlocking(limit, state, now_ns, next);
  return StepPlain(limit, state, now_ns, cost, next);
}

// The decision of a window that ends at `end_ns`. Writes the state last: a call that follows at
// once reads it, and would wait for a store that is just being made.
__attribute__((always_inline)) inline Decision DecideFixed(const Limit& limit, int64_t end_ns,
                                                           int64_t now_ns, const WindowOutcome& out,
                                                           CellState* next) {
  // Some units are used: those of this call, or those for which it is refused.
  Decision d{.allowed = out.allowed,
             .limit = &limit,
             .retry_after_ns = out.wait_ns,
             .reset_after_ns = end_ns - now_ns,
             .used_units = out.used_units};
  *next = {static_cast<uint64_t>(end_ns), static_cast<uint64_t>(out.used_units)};
  return d;
}

}  // namespace

// The usual cases are inlined, all others are calls.
Decision Step(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
              CellState* next) {
  switch (limit.algorithm()) {
    case Algorithm::kFixedWindow: {
      WindowOutcome out;
      if (!StepInWindow(limit, state, now_ns, cost, out)) [[unlikely]]
        return StepOtherWindow(limit, state, now_ns, cost, next);
      return DecideFixed(limit, static_cast<int64_t>(state.w0), now_ns, out, next);
    }
    case Algorithm::kSlidingWindow:
      if (cost > limit.count()) [[unlikely]]
        return StepOtherWindow(limit, state, now_ns, cost, next);
      return StepSliding(limit, state, now_ns, cost, next);
    default:
      // Most hits cost one unit, whose interval need not be computed.
      if (cost == 1 && limit.most_plain_cost() > 0) [[likely]]
        return StepPlain(limit, state, now_ns, 1, next);
      if (limit.keeps_count() && cost <= limit.burst()) [[likely]]
        return StepWithId(limit, state, now_ns, cost, next);
      return StepOtherBucket(limit, state, now_ns, cost, next);
  }
}

Decision StepCharge(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                    int64_t most_debt, CellState* next) {
  const Charging done =
      (!IsBucket(limit.algorithm()) ? ChargeWindow
       : limit.keeps_count()        ? ChargeKept
                                    : ChargePlain)(limit, state, now_ns, cost, most_debt, next);
  // A step that cannot pass charges nothing and reports the state of the limit.
  CellState ignored;
  Decision decision = Step(limit, *next, now_ns, limit.beyond(), &ignored);
  decision.behind = done.behind;
  decision.SetCharged(done.units);
  return decision;
}

namespace {

// Gives a bucket without an id time back, in units of 1 / denominator ns.
CellState RefundParts(const Limit& limit, const CellState& state, int64_t now_ns, uint128 back) {
  const auto until = static_cast<int64_t>(state.w0);
  const uint128 used =
      PartsOf(limit, until - now_ns, static_cast<int64_t>(WithoutDebtCode(state.w1)));
  // A refund of more than is used makes the key full again.
  if (used <= back) return {static_cast<uint64_t>(now_ns), 0};
  CellState next = WriteParts(limit, used - back, now_ns);
  // A state of a clock that was ahead owes nothing.
  if (DebtCodeIn(state.w1) == 0) next.w1 = WithoutDebtCode(next.w1);
  return next;
}

}  // namespace

CellState Refund(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  if (limit.keeps_count()) return RefundKept(limit, state, now_ns, cost);
  if (!IsUsed(limit, state, now_ns)) return state;
  if (!IsBucket(limit.algorithm())) return RefundToWindow(limit, state, now_ns, cost);
  return RefundParts(limit, state, now_ns, Wide(cost) * Wide(limit.numerator()));
}

int64_t CountedFor(const Limit& limit, int64_t now_ns, int64_t until_ns) {
  // A sliding window shows its units for a window after the one that counted them.
  const int64_t shown_ns =
      limit.algorithm() == Algorithm::kSlidingWindow ? limit.period_ns() : int64_t{0};
  return until_ns - shown_ns - now_ns;
}

CellState RefundUntil(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                      int64_t until_ns) {
  const int64_t left_ns = CountedFor(limit, now_ns, until_ns);
  if (left_ns <= 0) return state;
  if (!IsBucket(limit.algorithm())) return Refund(limit, state, now_ns, cost);
  const uint128 left = PartsOf(limit, left_ns, 0);
  if (Wide(cost) * Wide(limit.numerator()) <= left) return Refund(limit, state, now_ns, cost);
  // If the key counts nothing from that instant on, nobody has charged it since.
  if (static_cast<int64_t>(state.w0) <= until_ns) return Refund(limit, state, now_ns, cost);
  if (limit.keeps_count()) {
    const Kept kept = ReadKept(limit, state, now_ns);
    const uint128 unit = Wide(limit.numerator());
    return WithoutParts(kept, state, now_ns,
                        left / unit * kept.unit + left % unit * kept.unit / unit);
  }
  return RefundParts(limit, state, now_ns, left);
}

int64_t Refundable(const Limit& limit, const CellState& state, int64_t now_ns) {
  if (limit.keeps_count()) {
    const Kept kept = ReadKept(limit, state, now_ns);
    return Narrow((kept.parts + kept.unit - 1) / kept.unit);
  }
  if (!IsUsed(limit, state, now_ns)) return 0;
  if (!IsBucket(limit.algorithm())) return RefundableInWindow(limit, state, now_ns);
  const uint128 used = PartsOf(limit, static_cast<int64_t>(state.w0) - now_ns,
                               static_cast<int64_t>(WithoutDebtCode(state.w1)));
  const uint128 unit = Wide(limit.numerator());
  const int64_t most = DebtCodeIn(state.w1) == 0 ? limit.burst() : Limit::kMaxCount;
  return Narrow(std::min((used + unit - 1) / unit, Wide(most)));
}

namespace {

// A bucket in a state for which StepBucket() decides: what stands is what the state says.
bool PeekBucket(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                BucketOutcome& out) {
  const uint64_t above = BitsAboveFraction(limit);
  if (!IsOwn(limit, state, above, now_ns) ||
      !StepBucket(limit, state.w0, state.w1 - above, now_ns, cost, out)) [[unlikely]] {
    return false;
  }
  if (!out.allowed) return true;
  const bool is_used = state.w0 >= static_cast<uint64_t>(std::max<int64_t>(now_ns, 1));
  out.used_ns = is_used ? static_cast<int64_t>(state.w0) - now_ns : 0;
  out.used_fraction = is_used ? static_cast<int64_t>(state.w1 - above) : 0;
  return true;
}

}  // namespace

Decision Peek(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  BucketOutcome out;
  if (IsBucket(limit.algorithm()) && cost <= limit.burst() &&
      PeekBucket(limit, state, now_ns, cost, out)) {
    return MakeDecision(limit, out);
  }
  CellState ignored;
  Decision verdict = Step(limit, state, now_ns, cost, &ignored);
  if (!verdict.allowed) return verdict;
  // A hit that cannot pass changes nothing and reports the state of the limit.
  Decision standing = Step(limit, state, now_ns, limit.beyond(), &ignored);
  standing.allowed = true;
  standing.retry_after_ns = 0;
  standing.delay_ns = verdict.delay_ns;
  return standing;
}

int64_t Decision::more_after_ns() const {
  if (known_more_ns >= 0) return known_more_ns;
  const int64_t left = remaining();
  if (left >= limit->capacity()) return 0;
  if (limit->algorithm() == Algorithm::kSlidingWindow) return MoreAfterOfSliding(*this);
  if (!IsBucket(limit->algorithm())) return reset_after_ns;
  // Usage falls until one more unit is free.
  const Interval kept = CostInterval(*limit, limit->burst() - left - 1);
  return std::max<int64_t>(0, used_ns - kept.ns + (used_fraction > kept.fraction));
}

int64_t Decision::remaining() const {
  if (!IsBucket(limit->algorithm())) {
    return std::max<int64_t>(0, limit->count() - used_units);
  }
  return RemainingOfBucket(*limit, used_ns, used_fraction);
}

int64_t Decision::debt() const {
  if (!IsBucket(limit->algorithm())) return std::max<int64_t>(0, used_units - limit->count());
  const uint128 depth = PartsOf(*limit, limit->depth_ns(), limit->depth_fraction());
  const uint128 used = PartsOf(*limit, used_ns, used_fraction);
  const uint128 unit = Wide(limit->numerator());
  return used <= depth ? 0 : Narrow((used - depth + unit - 1) / unit);
}

// Computes in units of 1 / denominator ns.
int64_t RemainingInParts(const Limit& limit, int64_t used_ns, int64_t used_fraction) {
  const uint128 depth =
      Wide(limit.depth_ns()) * Wide(limit.denominator()) + Wide(limit.depth_fraction());
  const uint128 used = Wide(used_ns) * Wide(limit.denominator()) + Wide(used_fraction);
  if (used >= depth) return 0;
  const uint128 room = depth - used;
  if (absl::Uint128High64(room) == 0) {
    return static_cast<int64_t>(absl::Uint128Low64(room) /
                                static_cast<uint64_t>(limit.numerator()));
  }
  return Narrow(room / Wide(limit.numerator()));
}

}  // namespace tidegate
