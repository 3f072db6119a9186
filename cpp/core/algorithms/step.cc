#include "tidegate/step.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "absl/numeric/int128.h"

namespace tidegate {
namespace {

using absl::uint128;

uint128 Wide(int64_t value) { return uint128(static_cast<uint64_t>(value)); }
int64_t Narrow(uint128 value) { return static_cast<int64_t>(absl::Uint128Low64(value)); }

// a * b / c, rounded down; the quotient is known to fit.
int64_t MulDiv(int64_t a, int64_t b, int64_t c) {
  const uint128 product = Wide(a) * Wide(b);
  if (absl::Uint128High64(product) == 0) {
    return static_cast<int64_t>(absl::Uint128Low64(product) / static_cast<uint64_t>(c));
  }
  return Narrow(product / Wide(c));
}

// The same, rounded up.
int64_t MulDivUp(int64_t a, int64_t b, int64_t c) {
  const uint128 product = Wide(a) * Wide(b);
  if (absl::Uint128High64(product) == 0) {
    const uint64_t low = absl::Uint128Low64(product);
    const auto divisor = static_cast<uint64_t>(c);
    return static_cast<int64_t>(low / divisor + (low % divisor != 0));
  }
  return Narrow((product + Wide(c) - 1) / Wide(c));
}

struct Window {
  int64_t start;
  int64_t end;
};

// The calendar window that holds `now`: groups of whole months or years,
// counted from January 1970, in UTC.
Window CalendarWindow(const Limit& limit, int64_t now_ns) {
  using std::chrono::days;
  using std::chrono::duration_cast;
  using std::chrono::nanoseconds;
  const auto today =
      std::chrono::floor<days>(std::chrono::sys_time<nanoseconds>(nanoseconds(now_ns)));
  const std::chrono::year_month_day date(today);
  const int64_t months_each =
      limit.calendar_units() * (limit.calendar() == Calendar::kYear ? 12 : 1);
  const int64_t month = (static_cast<int64_t>(static_cast<int>(date.year())) - 1970) * 12 +
                        (static_cast<unsigned>(date.month()) - 1);
  const int64_t first = month / months_each * months_each;
  const auto instant = [](int64_t months) {
    const std::chrono::year_month_day day(
        std::chrono::year(static_cast<int>(1970 + months / 12)),
        std::chrono::month(static_cast<unsigned>(months % 12 + 1)), std::chrono::day(1));
    // Computed in seconds first: the end may exceed the nanoseconds of an int64.
    const int64_t seconds = int64_t{86'400} * std::chrono::sys_days(day).time_since_epoch().count();
    return std::min(seconds, kMaxInstantNs / 1'000'000'000 * 2 - 1) * int64_t{1'000'000'000};
  };
  return {instant(first), instant(first + months_each)};
}

Window WindowAt(const Limit& limit, int64_t now_ns) {
  if (limit.calendar() != Calendar::kNone) return CalendarWindow(limit, now_ns);
  const int64_t start = now_ns - now_ns % limit.period_ns();
  return {start, start + limit.period_ns()};
}

// The counts of both window algorithms, as of `now`.
struct Counts {
  Window window;
  int64_t current = 0;
  int64_t previous = 0;  // sliding-window only
  bool behind = false;   // the counts were moved back to the window of `now`
};

// Whether the window of a state starts after `now`; if so, also sets `behind`.
bool Ahead(int64_t start_ns, int64_t now_ns, Counts* counts) {
  if (start_ns <= now_ns) return false;
  counts->behind = start_ns - now_ns > kClockToleranceNs;
  return true;
}

Counts ReadFixed(const Limit& limit, const CellState& state, int64_t now_ns) {
  Counts c;
  const auto end = static_cast<int64_t>(state.w0);
  // The window just before `end`, without a division where that is possible.
  if (end > now_ns) {
    const Window stored = limit.calendar() == Calendar::kNone
                              ? Window{end - limit.period_ns(), end}
                              : CalendarWindow(limit, std::min(end, kMaxInstantNs) - 1);
    c.current = static_cast<int64_t>(state.w1);
    c.window = stored;
    if (Ahead(stored.start, now_ns, &c) && c.behind) {
      c.window = WindowAt(limit, now_ns);
    }
    return c;
  }
  c.window = WindowAt(limit, now_ns);
  return c;
}

CellState WriteFixed(const Counts& c) {
  return {static_cast<uint64_t>(c.window.end), static_cast<uint64_t>(c.current)};
}

Counts ReadSliding(const Limit& limit, const CellState& state, int64_t now_ns) {
  Counts c;
  const int64_t period = limit.period_ns();
  const auto good = static_cast<int64_t>(state.w0);
  if (good <= now_ns || state.w0 == 0) {
    c.window = WindowAt(limit, now_ns);
    return c;
  }
  c.window = {good - 2 * period, good - period};
  c.current = static_cast<int64_t>(state.w1 >> 32);
  c.previous = static_cast<int64_t>(state.w1 & 0xffffffff);
  if (now_ns >= c.window.end) {  // one window later
    c.window = {c.window.end, c.window.end + period};
    c.previous = c.current;
    c.current = 0;
  } else if (Ahead(c.window.start, now_ns, &c) && c.behind) {
    c.window = WindowAt(limit, now_ns);
  }
  return c;
}

CellState WriteSliding(const Limit& limit, const Counts& c) {
  return {static_cast<uint64_t>(c.window.end + limit.period_ns()),
          static_cast<uint64_t>(c.current) << 32 | static_cast<uint64_t>(c.previous)};
}

// The steps of the other algorithms are not inlined into Step(), so that the step of a bucket saves
// no registers for them.

__attribute__((noinline)) Decision StepToWindow(const Limit& limit, const CellState& state,
                                                int64_t now_ns, int64_t cost, CellState* next) {
  Decision d;
  d.limit = &limit;
  Counts c = ReadFixed(limit, state, now_ns);
  d.behind = c.behind;
  if (cost > limit.count()) {
    d.retry_after_ns = Decision::kNever;
  } else if (cost > limit.count() - c.current) {
    d.retry_after_ns = c.window.end - now_ns;
  } else {
    d.allowed = true;
    c.current += cost;
  }
  *next = d.allowed || d.behind ? WriteFixed(c) : state;
  d.used_units = c.current;
  d.reset_after_ns = c.current > 0 ? c.window.end - now_ns : 0;
  return d;
}

// The weight of the previous window, rounded against the caller.
int64_t Weight(const Limit& limit, const Counts& c, int64_t now_ns) {
  if (c.previous == 0) return 0;
  const int64_t left = limit.period_ns() - std::max<int64_t>(0, now_ns - c.window.start);
  return MulDivUp(c.previous, left, limit.period_ns());
}

// The least instant of a window that starts at `start`, at which `previous`
// weighs no more than `room`: previous * (W - e) <= room * W.
int64_t WeightFalls(const Limit& limit, int64_t start, int64_t previous, int64_t room) {
  if (previous <= room) return start;
  return start + limit.period_ns() - MulDiv(room, limit.period_ns(), previous);
}

__attribute__((noinline)) Decision StepSliding(const Limit& limit, const CellState& state,
                                               int64_t now_ns, int64_t cost, CellState* next) {
  Decision d;
  d.limit = &limit;
  Counts c = ReadSliding(limit, state, now_ns);
  d.behind = c.behind;
  const int64_t weight = Weight(limit, c, now_ns);
  if (cost > limit.count()) {
    d.retry_after_ns = Decision::kNever;
  } else if (const int64_t room = limit.count() - c.current - cost; room < 0) {
    const int64_t at = WeightFalls(limit, c.window.end, c.current, limit.count() - cost);
    d.retry_after_ns = at - now_ns;
  } else if (weight > room) {
    d.retry_after_ns = WeightFalls(limit, c.window.start, c.previous, room) - now_ns;
  } else {
    d.allowed = true;
    c.current += cost;
  }
  *next = d.allowed || d.behind ? WriteSliding(limit, c) : state;
  d.used_units = c.current + weight;
  d.used_ns = c.window.end - now_ns;
  d.used_fraction = c.previous;
  if (c.current > 0) {
    d.reset_after_ns = c.window.end + limit.period_ns() - now_ns;
  } else if (c.previous > 0) {
    d.reset_after_ns = c.window.end - now_ns;
  }
  return d;
}

// Whether anything of the state still counts.
bool IsUsed(const Limit& limit, const CellState& state, int64_t now_ns) {
  const auto until = static_cast<int64_t>(state.w0);
  // A bucket's state may lie less than a nanosecond ahead.
  const bool in_part = IsBucket(limit.algorithm()) && until == now_ns && state.w1 != 0;
  return until != 0 && (until > now_ns || in_part);
}

// The time until one unit more than `remaining` is free in a sliding window.
int64_t MoreAfterOfSliding(const Decision& d) {
  const int64_t period = d.limit->period_ns();
  const int64_t left = std::min(d.used_ns, period);
  const int64_t previous = d.used_fraction;
  const int64_t weight = previous == 0 ? 0 : MulDivUp(previous, left, period);
  const int64_t current = d.used_units - weight;
  const int64_t most_used = d.limit->count() - d.remaining() - 1;
  if (weight > 0 && current <= most_used) {
    return WeightFalls(*d.limit, d.used_ns - period, previous, most_used - current);
  }
  // The weight of this window's units begins to fall when it has ended.
  return current == 0 ? 0 : WeightFalls(*d.limit, d.used_ns, current, most_used);
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

// Like StepBucket(). A refusal writes nothing: until a call passes, the state of the other number
// stays, and its units come back at that number's rate.
__attribute__((noinline)) Decision StepKept(const Limit& limit, const CellState& state,
                                            int64_t now_ns, int64_t cost, CellState* next) {
  Kept kept = ReadKept(limit, state, now_ns);
  const uint128 denominator = Wide(limit.denominator());
  const uint128 unit = Wide(limit.numerator());
  const uint128 depth = Wide(limit.burst()) * unit;
  const auto span_parts = static_cast<uint64_t>(limit.span_parts());
  const uint128 divisor = Wide(std::max<int64_t>(1, limit.count())) / denominator;
  Decision d;
  d.limit = &limit;
  *next = state;
  const uint128 span = kept.span_parts / kept.denominator + 1;
  const uint128 longest = std::max(Wide(limit.period_ns()) * span, Wide(limit.depth_ns()));
  if (limit.burst() > 0 && kept.parts / kept.denominator > longest + Wide(kClockToleranceNs)) {
    d.behind = true;
    *next = WriteKept(limit.count(), denominator, depth, span_parts, now_ns);
    kept = ReadKept(limit, *next, now_ns);
  }
  // The same units, in parts of this limit's interval; rounded up, against the caller.
  uint128 used = (kept.parts * kept.divisor + divisor - 1) / divisor;
  // The time in which so many parts come back at the other number's rate.
  constexpr int64_t kLongest = Limit::kMaxPeriodNs;
  const auto wait = [&](uint128 parts) {
    if (parts >> 95 != 0) return kLongest;  // the product would not fit
    const uint128 ns = (parts * divisor + Wide(kept.count) - 1) / Wide(kept.count);
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
        cost > limit.burst() ? Decision::kNever : std::max<int64_t>(1, wait(used + asked - depth));
    d.reset_after_ns = Narrow((kept.parts + kept.denominator - 1) / kept.denominator);
    const uint128 kept_units = used >= depth ? Wide(limit.burst()) : (used + unit - 1) / unit;
    if (kept_units > 0) d.known_more_ns = wait(used - (kept_units - 1) * unit);
  }
  const uint128 shown = std::min(used, depth);
  d.used_ns = Narrow(shown / denominator);
  d.used_fraction = Narrow(shown % denominator);
  return d;
}

// What a state of `limit` itself has in w1 above the fraction.
uint64_t BitsAboveFraction(const Limit& limit) {
  return (static_cast<uint64_t>(limit.count()) << kCountBits) +
         static_cast<uint64_t>(limit.span_parts());
}

// Whether the numbers of `limit` itself wrote the state, or nothing of the state is used. Such a
// state is that of a bucket without an id, except for BitsAboveFraction() in w1.
bool IsOwn(const Limit& limit, const CellState& state, int64_t now_ns) {
  return state.w0 < static_cast<uint64_t>(now_ns) || state.w0 == 0 ||
         state.w1 - BitsAboveFraction(limit) < static_cast<uint64_t>(limit.denominator());
}

Decision StepWithId(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                    CellState* next) {
  BucketOutcome outcome;
  if (limit.burst() > 0 && IsOwn(limit, state, now_ns)) [[likely]] {
    const uint64_t above = BitsAboveFraction(limit);
    StepBucket(limit, state.w0, state.w1 - above, now_ns, cost, outcome);
    if (!outcome.behind) [[likely]] {
      *next = state;
      if (outcome.allowed) *next = {outcome.next_w0, above + outcome.next_w1};
      return MakeDecision(limit, outcome);
    }
  }
  return StepKept(limit, state, now_ns, cost, next);
}

// A bucket whose burst is 0 refuses every cost, and keeps what another number of its id has
// counted.
__attribute__((noinline)) Decision StepBlocking(const Limit& limit, const CellState& state,
                                                int64_t now_ns, CellState* next) {
  BucketOutcome outcome;
  StepBucket(limit, state.w0, state.w1, now_ns, /*cost=*/2, outcome);
  outcome.behind = false;
  *next = state;
  return MakeDecision(limit, outcome);
}

// A bucket without an id.
__attribute__((always_inline)) inline Decision StepPlain(const Limit& limit, const CellState& state,
                                                         int64_t now_ns, int64_t cost,
                                                         CellState* next) {
  BucketOutcome outcome;
  StepBucket(limit, state.w0, state.w1, now_ns, cost, outcome);
  *next = state;
  if (outcome.allowed || outcome.behind) *next = {outcome.next_w0, outcome.next_w1};
  return MakeDecision(limit, outcome);
}

__attribute__((noinline)) Decision StepAnyBucket(const Limit& limit, const CellState& state,
                                                 int64_t now_ns, int64_t cost, CellState* next) {
  if (limit.keeps_count()) return StepWithId(limit, state, now_ns, cost, next);
  if (limit.burst() == 0) return StepBlocking(limit, state, now_ns, next);
  return StepPlain(limit, state, now_ns, cost, next);
}

// Refunds by the count that wrote the state.
CellState RefundKept(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  const Kept kept = ReadKept(limit, state, now_ns);
  if (kept.parts == 0) return state;
  const uint128 back = Wide(cost) * kept.unit;
  return WriteKept(kept.count, kept.denominator, kept.parts > back ? kept.parts - back : 0,
                   kept.span_parts, now_ns);
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

Decision Step(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
              CellState* next) {
  switch (limit.algorithm()) {
    case Algorithm::kFixedWindow:
      if (WindowOutcome out; StepInWindow(limit, state, now_ns, cost, out)) [[likely]] {
        const uint64_t end = state.w0;
        *next = {end, static_cast<uint64_t>(out.used_units)};
        return {.allowed = out.allowed,
                .limit = &limit,
                .retry_after_ns = out.wait_ns,
                .reset_after_ns = out.used_units > 0 ? static_cast<int64_t>(end) - now_ns : 0,
                .used_units = out.used_units};
      }
      return StepToWindow(limit, state, now_ns, cost, next);
    case Algorithm::kSlidingWindow:
      return StepSliding(limit, state, now_ns, cost, next);
    default:
      // Most hits cost one unit. A step that computes the interval of no other cost saves no
      // registers.
      if (cost == 1 && limit.most_plain_cost() > 0) [[likely]] {
        return StepPlain(limit, state, now_ns, 1, next);
      }
      return StepAnyBucket(limit, state, now_ns, cost, next);
  }
}

Decision StepUpTo(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                  CellState* next) {
  // A step that cannot pass charges nothing and reports the state of the limit.
  Decision decision = Step(limit, state, now_ns, limit.capacity() + 1, next);
  const int64_t units = std::min(cost, decision.remaining());
  if (units > 0) decision = Step(limit, state, now_ns, units, next);
  decision.SetCharged(units);
  return decision;
}

CellState Refund(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  if (limit.keeps_count()) return RefundKept(limit, state, now_ns, cost);
  if (!IsUsed(limit, state, now_ns)) return state;
  if (IsBucket(limit.algorithm())) {
    // A refund of more than the burst counts as the burst: the key is full again.
    const Interval back = CostInterval(limit, std::min(cost, limit.burst()));
    int64_t ns = static_cast<int64_t>(state.w0) - back.ns;
    int64_t fraction = static_cast<int64_t>(state.w1) - back.fraction;
    if (fraction < 0) {
      fraction += limit.denominator();
      --ns;
    }
    if (ns < now_ns) return {static_cast<uint64_t>(now_ns), 0};
    return {static_cast<uint64_t>(ns), static_cast<uint64_t>(fraction)};
  }
  const bool fixed = limit.algorithm() == Algorithm::kFixedWindow;
  Counts c = fixed ? ReadFixed(limit, state, now_ns) : ReadSliding(limit, state, now_ns);
  c.current -= std::min(cost, c.current);
  return fixed ? WriteFixed(c) : WriteSliding(limit, c);
}

int64_t Refundable(const Limit& limit, const CellState& state, int64_t now_ns) {
  if (limit.keeps_count()) {
    const Kept kept = ReadKept(limit, state, now_ns);
    return Narrow((kept.parts + kept.unit - 1) / kept.unit);
  }
  if (!IsUsed(limit, state, now_ns)) return 0;
  if (limit.algorithm() == Algorithm::kFixedWindow) return ReadFixed(limit, state, now_ns).current;
  if (limit.algorithm() == Algorithm::kSlidingWindow) {
    return ReadSliding(limit, state, now_ns).current;
  }
  const uint128 used =
      Wide(static_cast<int64_t>(state.w0) - now_ns) * Wide(limit.denominator()) + uint128(state.w1);
  const uint128 unit = Wide(limit.numerator());
  return Narrow(std::min((used + unit - 1) / unit, Wide(limit.burst())));
}

Decision Peek(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  CellState ignored;
  Decision verdict = Step(limit, state, now_ns, cost, &ignored);
  if (!verdict.allowed) return verdict;
  // A hit that cannot pass changes nothing and reports the state of the limit.
  Decision standing = Step(limit, state, now_ns, limit.capacity() + 1, &ignored);
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
