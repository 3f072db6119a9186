#include "algorithms/windows.h"

#include <algorithm>
#include <chrono>

#include "absl/numeric/int128.h"
#include "algorithms/debt.h"
#include "algorithms/wide.h"

namespace tidegate {
namespace {

using absl::uint128;

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

int64_t MonthsEach(const Limit& limit) {
  return limit.calendar_units() * (limit.calendar() == Calendar::kYear ? 12 : 1);
}

// The calendar window that is the `number`th from January 1970 on.
Window CalendarWindowOf(const Limit& limit, int64_t number) {
  const int64_t months_each = MonthsEach(limit);
  const auto instant = [](int64_t months) {
    const std::chrono::year_month_day day(
        std::chrono::year(static_cast<int>(1970 + months / 12)),
        std::chrono::month(static_cast<unsigned>(months % 12 + 1)), std::chrono::day(1));
    // Computed in seconds first: the end may exceed the nanoseconds of an int64.
    const int64_t seconds = int64_t{86'400} * std::chrono::sys_days(day).time_since_epoch().count();
    return std::min(seconds, kMaxInstantNs / 1'000'000'000 * 2 - 1) * int64_t{1'000'000'000};
  };
  return {instant(number * months_each), instant((number + 1) * months_each)};
}

// The number of the calendar window that holds `now`: groups of whole months or years, in UTC.
int64_t CalendarNumber(const Limit& limit, int64_t now_ns) {
  using std::chrono::days;
  using std::chrono::duration_cast;
  using std::chrono::nanoseconds;
  const auto today =
      std::chrono::floor<days>(std::chrono::sys_time<nanoseconds>(nanoseconds(now_ns)));
  const std::chrono::year_month_day date(today);
  const int64_t month = (static_cast<int64_t>(static_cast<int>(date.year())) - 1970) * 12 +
                        (static_cast<unsigned>(date.month()) - 1);
  return month / MonthsEach(limit);
}

Window CalendarWindow(const Limit& limit, int64_t now_ns) {
  return CalendarWindowOf(limit, CalendarNumber(limit, now_ns));
}

// Inlined for StepSliding(), which calls it for each window that begins.
__attribute__((always_inline)) inline Window PeriodAt(const Limit& limit, int64_t now_ns) {
  const int64_t start = now_ns - now_ns % limit.period_ns();
  return {start, start + limit.period_ns()};
}

Window WindowAt(const Limit& limit, int64_t now_ns) {
  return limit.calendar() == Calendar::kNone ? PeriodAt(limit, now_ns)
                                             : CalendarWindow(limit, now_ns);
}

// The window that follows `window` by `n`; one before it if `n` is negative.
Window WindowAfter(const Limit& limit, const Window& window, int64_t n) {
  if (limit.calendar() == Calendar::kNone) {
    return {window.start + n * limit.period_ns(), window.end + n * limit.period_ns()};
  }
  return CalendarWindowOf(limit, CalendarNumber(limit, window.start) + n);
}

// How many windows `to` is later than `from`.
int64_t WindowsBetween(const Limit& limit, const Window& from, const Window& to) {
  if (limit.calendar() == Calendar::kNone) return (to.start - from.start) / limit.period_ns();
  return CalendarNumber(limit, to.start) - CalendarNumber(limit, from.start);
}

// The counts of both window algorithms, as of `now`.
struct Counts {
  Window window;
  int64_t current = 0;
  int64_t previous = 0;  // sliding-window only
  bool behind = false;   // the counts were moved back to the window of `now`
  // `current` may exceed the count: the windows after this one then begin with the rest. Otherwise
  // a count above that of the limit is that of another number of its id.
  bool owes = false;
};

// How many full windows are before the last one that the debt reaches.
int64_t FullWindows(const Limit& limit, const Counts& c) {
  if (!c.owes) [[likely]]
    return 0;
  return c.current > limit.count() && limit.count() > 0 ? (c.current - 1) / limit.count() : 0;
}

// The counts of a state that owes, as of a window before `last`, which the debt reaches.
Counts ReadOwing(const Limit& limit, const Window& last, int64_t units, uint64_t code,
                 int64_t now_ns) {
  Counts c;
  c.owes = true;
  c.window = WindowAt(limit, now_ns);
  const int64_t count = std::max<int64_t>(limit.count(), 1);
  const int64_t most = std::min(DebtOfCode(code), (Limit::kMaxCount - units) / count);
  int64_t full = WindowsBetween(limit, c.window, last);
  if (full > most) {
    full = most;
    const Window first = WindowAfter(limit, last, -most);
    if (first.start - now_ns > kClockToleranceNs) {
      c.behind = true;
    } else {
      c.window = first;
    }
  }
  // Any server may have sent it: what is owed is paid within the longest period.
  const uint128 longest = Wide(Limit::kMaxPeriodNs / limit.period_ns()) * Wide(count);
  c.current = Narrow(std::min(Wide(units + full * limit.count()), longest));
  return c;
}

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
    const Window stored = limit.calendar() == Calendar::kNone ? Window{end - limit.period_ns(), end}
                                                              : CalendarWindow(limit, end - 1);
    c.current = static_cast<int64_t>(WithoutDebtCode(state.w1));
    c.window = stored;
    if (const uint64_t code = DebtCodeIn(state.w1); code != 0 && stored.start > now_ns) {
      return ReadOwing(limit, stored, c.current, code, now_ns);
    }
    if (Ahead(stored.start, now_ns, &c) && c.behind) {
      c.window = WindowAt(limit, now_ns);
    }
    return c;
  }
  c.window = WindowAt(limit, now_ns);
  return c;
}

CellState WriteFixed(const Limit& limit, const Counts& c) {
  const int64_t full = FullWindows(limit, c);
  const int64_t end = full == 0 ? c.window.end : WindowAfter(limit, c.window, full).end;
  return {static_cast<uint64_t>(end),
          static_cast<uint64_t>(c.current - full * limit.count()) | CodeOfDebt(full) << kDebtShift};
}

// Whether the units of the window before are the code of a debt instead.
bool HasSlidingCode(const Limit& limit, const CellState& state) {
  return (state.w1 & 0xffffffff) >= uint64_t{kSlidingDebtMark} && limit.count() < kSlidingDebtMark;
}

// Requires !HasSlidingCode(). Inlined, as is DecideSliding(): counts in memory are written one by
// one and read in pairs, which a processor waits for. They were half the time of a step.
__attribute__((always_inline)) inline Counts ReadWithoutCode(const Limit& limit,
                                                             const CellState& state,
                                                             int64_t now_ns) {
  Counts c;
  const int64_t period = limit.period_ns();
  const auto good = static_cast<int64_t>(state.w0);
  if (good <= now_ns || state.w0 == 0) {
    c.window = PeriodAt(limit, now_ns);
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

Counts ReadSliding(const Limit& limit, const CellState& state, int64_t now_ns) {
  if (!HasSlidingCode(limit, state)) [[likely]]
    return ReadWithoutCode(limit, state, now_ns);
  const int64_t period = limit.period_ns();
  if (const auto good = static_cast<int64_t>(state.w0); good > now_ns) {
    const Window last{good - 2 * period, good - period};
    const uint64_t code = (state.w1 & 0xffffffff) - uint64_t{kSlidingDebtMark};
    if (now_ns < last.start)
      return ReadOwing(limit, last, static_cast<int64_t>(state.w1 >> 32), code, now_ns);
  }
  // The windows before the last one were full.
  const CellState full{state.w0, state.w1 >> 32 << 32 | static_cast<uint64_t>(limit.count())};
  return ReadWithoutCode(limit, full, now_ns);
}

CellState WriteSlidingAs(const Limit& limit, int64_t end, int64_t current, int64_t previous) {
  return {static_cast<uint64_t>(end + limit.period_ns()),
          static_cast<uint64_t>(current) << 32 | static_cast<uint64_t>(previous)};
}

CellState WriteSliding(const Limit& limit, const Counts& c) {
  if (!c.owes) [[likely]]
    return WriteSlidingAs(limit, c.window.end, c.current, c.previous);
  const int64_t full = FullWindows(limit, c);
  // What the window before had is not known any more; while units are owed it does not matter.
  if (full == 0) return WriteSlidingAs(limit, c.window.end, c.current, limit.count());
  return WriteSlidingAs(limit, WindowAfter(limit, c.window, full).end,
                        c.current - full * limit.count(),
                        kSlidingDebtMark + static_cast<int64_t>(CodeOfDebt(full)));
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

// The decision where no window after this one is owed.
__attribute__((always_inline)) inline Decision DecideSliding(const Limit& limit, Counts c,
                                                             const CellState& state, int64_t now_ns,
                                                             int64_t cost, CellState* next) {
  Decision d;
  d.limit = &limit;
  d.behind = c.behind;
  const int64_t weight = Weight(limit, c, now_ns);
  const int64_t left_ns = c.window.end - now_ns;
  if (cost > limit.count()) {
    d.retry_after_ns = Decision::kNever;
  } else if (const int64_t room = limit.count() - c.current - cost; room < 0) {
    d.retry_after_ns = WeightFalls(limit, left_ns, c.current, limit.count() - cost);
  } else if (weight > room) {
    d.retry_after_ns = WeightFalls(limit, c.window.start - now_ns, c.previous, room);
  } else {
    d.allowed = true;
    c.current += cost;
  }
  *next = d.allowed || d.behind ? WriteSliding(limit, c) : state;
  d.used_units = c.current + weight;
  d.used_ns = left_ns;
  d.used_fraction = c.previous;
  if (c.current > 0) {
    d.reset_after_ns = left_ns + limit.period_ns();
  } else if (c.previous > 0) {
    d.reset_after_ns = left_ns;
  }
  return d;
}

__attribute__((noinline)) Decision StepSlidingWithCode(const Limit& limit, const CellState& state,
                                                       int64_t now_ns, int64_t cost,
                                                       CellState* next) {
  const Counts c = ReadSliding(limit, state, now_ns);
  const int64_t full = FullWindows(limit, c);
  if (full == 0) return DecideSliding(limit, c, state, now_ns, cost, next);
  const Window last = WindowAfter(limit, c.window, full);
  const int64_t in_last = c.current - full * limit.count();
  const auto wait = [&](int64_t units) {
    const int64_t room = limit.count() - in_last - units;
    const int64_t at = room < 0 ? WeightFalls(limit, last.end, in_last, limit.count() - units)
                                : WeightFalls(limit, last.start, limit.count(), room);
    return at - now_ns;
  };
  *next = c.behind ? WriteSliding(limit, c) : state;
  Decision d;
  d.limit = &limit;
  d.behind = c.behind;
  d.retry_after_ns = cost > limit.count() ? Decision::kNever : wait(cost);
  d.known_more_ns = wait(1);
  d.used_units = c.current;
  d.reset_after_ns = last.end + limit.period_ns() - now_ns;
  return d;
}

// Where units of a window that is not over are known.
__attribute__((noinline)) Decision StepInKnownWindow(const Limit& limit, const CellState& state,
                                                     int64_t now_ns, int64_t cost,
                                                     CellState* next) {
  Decision d;
  d.limit = &limit;
  Counts c = ReadFixed(limit, state, now_ns);
  d.behind = c.behind;
  const int64_t full = FullWindows(limit, c);
  const Window last = full == 0 ? c.window : WindowAfter(limit, c.window, full);
  const int64_t in_last = c.current - full * limit.count();
  const auto wait = [&](int64_t units) {
    return (full > 0 && units <= limit.count() - in_last ? last.start : last.end) - now_ns;
  };
  if (cost > limit.count()) {
    d.retry_after_ns = Decision::kNever;
  } else if (cost > limit.count() - c.current) {
    d.retry_after_ns = wait(cost);
  } else {
    d.allowed = true;
    c.current += cost;
  }
  *next = d.allowed || d.behind ? WriteFixed(limit, c) : state;
  d.used_units = c.current;
  d.reset_after_ns = c.current > 0 ? last.end - now_ns : 0;
  if (full > 0) d.known_more_ns = wait(1);
  return d;
}

}  // namespace

// Not inlined: see Step().
__attribute__((noinline)) Decision StepFixed(const Limit& limit, const CellState& state,
                                             int64_t now_ns, int64_t cost, CellState* next) {
  if (static_cast<int64_t>(state.w0) > now_ns)
    return StepInKnownWindow(limit, state, now_ns, cost, next);
  // Constructed in the caller's place: copying a struct that was just written stalls.
  if (cost > limit.count()) {
    *next = state;
    return {.limit = &limit, .retry_after_ns = Decision::kNever};
  }
  const int64_t end = WindowAt(limit, now_ns).end;
  *next = {static_cast<uint64_t>(end), static_cast<uint64_t>(cost)};
  return {.allowed = true,
          .limit = &limit,
          .reset_after_ns = cost > 0 ? end - now_ns : 0,
          .used_units = cost};
}

// Begins a line of the cache: where it lies otherwise makes a hit up to 5 % slower.
__attribute__((noinline, aligned(64))) Decision StepSliding(const Limit& limit,
                                                            const CellState& state, int64_t now_ns,
                                                            int64_t cost, CellState* next) {
  if (HasSlidingCode(limit, state)) [[unlikely]]
    return StepSlidingWithCode(limit, state, now_ns, cost, next);
  return DecideSliding(limit, ReadWithoutCode(limit, state, now_ns), state, now_ns, cost, next);
}

Charging ChargeWindow(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                      int64_t most_debt, CellState* next) {
  const bool fixed = limit.algorithm() == Algorithm::kFixedWindow;
  Counts c = fixed ? ReadFixed(limit, state, now_ns) : ReadSliding(limit, state, now_ns);
  // Both are below 2^53, as is their sum with what is used.
  const int64_t used = c.current + (fixed ? 0 : Weight(limit, c, now_ns));
  const int64_t room = limit.count() + most_debt - used;
  const int64_t units = std::clamp<int64_t>(room, 0, cost);
  c.current += units;
  c.owes = c.owes || (units > 0 && c.current > limit.count());
  *next = state;
  if (units > 0 || c.behind) *next = fixed ? WriteFixed(limit, c) : WriteSliding(limit, c);
  return {units, c.behind};
}

CellState RefundToWindow(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  const bool fixed = limit.algorithm() == Algorithm::kFixedWindow;
  Counts c = fixed ? ReadFixed(limit, state, now_ns) : ReadSliding(limit, state, now_ns);
  c.current -= std::min(cost, c.current);
  return fixed ? WriteFixed(limit, c) : WriteSliding(limit, c);
}

int64_t RefundableInWindow(const Limit& limit, const CellState& state, int64_t now_ns) {
  return limit.algorithm() == Algorithm::kFixedWindow ? ReadFixed(limit, state, now_ns).current
                                                      : ReadSliding(limit, state, now_ns).current;
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

}  // namespace tidegate
