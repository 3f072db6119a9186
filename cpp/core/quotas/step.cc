#include "quotas/step.h"

#include <algorithm>
#include <iterator>

#include "absl/container/inlined_vector.h"
#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "base/time_units.h"
#include "tidegate/step.h"

// GCC 12 mistakes the copy of an empty InlinedVector for a use of its uninitialized elements.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace tidegate {
namespace {

// `used` saturates here, so that sums with it stay below 2^53.
constexpr int64_t kMostUsed = int64_t{1} << 52;

int64_t SumOf(const QuotaState& state, int64_t (*of)(const QuotaGrant&)) {
  int64_t sum = of(state.base);
  for (const QuotaGrant& grant : state.carried) sum += of(grant);
  for (const QuotaTopUp& top_up : state.top_ups) sum += of(top_up);
  return sum;
}

// The units that are left; what is owed if it is negative.
int64_t LeftOf(const QuotaState& state) {
  return SumOf(state, [](const QuotaGrant& grant) { return grant.left(); });
}

int64_t AvailableOf(const QuotaState& state) { return std::max<int64_t>(0, LeftOf(state)); }

using Period = QuotaTerms::Period;

// The share of `units` for the rest of the period.
int64_t Prorated(int64_t units, int64_t now_s, const Period& period) {
  const auto rest = static_cast<uint64_t>(period.end_s - std::max(now_s, period.start_s));
  const auto whole = static_cast<uint64_t>(period.end_s - period.start_s);
  return static_cast<int64_t>(absl::uint128(static_cast<uint64_t>(units)) * rest / whole);
}

// Reduces a grant to its unspent units.
void Settle(QuotaGrant* grant) { *grant = {std::max<int64_t>(0, grant->left()), 0}; }

// The units that the counts of a period grant: those of the first, and a share of each larger one.
struct Base {
  int64_t limit;  // the largest count
  int64_t units;

  // Adds the share of a count that is in force from `at_s` on.
  void Raise(int64_t count, int64_t at_s, const Period& period) {
    if (count <= limit) return;
    units += Prorated(count - limit, at_s, period);
    limit = count;
  }
  // Adds the shares of the recorded counts in the part of the period up to `until_s`.
  void RaiseAsRecorded(const Limit& quota, int64_t until_s, const Period& period) {
    const std::vector<FormerCount>& former = quota.quota()->spec().former;
    for (size_t i = 0; i < former.size(); ++i) {
      const int64_t at_s = former[i].until_s;
      if (at_s <= period.start_s || at_s >= period.end_s || at_s > until_s) continue;
      Raise(i + 1 < former.size() ? former[i + 1].count : quota.count(), at_s, period);
    }
  }
};

// The base that a period without calls has at `until_s`.
Base UntouchedBase(const Limit& limit, int64_t until_s, const Period& period) {
  const int64_t first = limit.quota()->CountAt(limit.count(), period.start_s);
  Base base{first, first};
  base.RaiseAsRecorded(limit, until_s, period);
  return base;
}

// Raises the base of the state.
template <typename Raise>
void RaiseBase(QuotaState* state, Raise raise) {
  Base base{state->limit, state->base.units};
  raise(base);
  state->limit = base.limit;
  state->base.units = base.units;
}

Period PeriodOf(const QuotaTerms& terms, int64_t index) {
  return {index, terms.Edge(index), terms.Edge(index + 1)};
}

// Brings the state forward to a later period `to`. `is_recorded`: the terms had the count of the
// state.
void Roll(const Limit& limit, bool is_recorded, QuotaState* state, const Period& to) {
  const QuotaTerms& terms = *limit.quota();
  const auto lasting = static_cast<size_t>(terms.carried_periods());
  const auto missed = static_cast<size_t>(to.index - state->period - 1);
  const bool changed = !terms.spec().former.empty();
  // By age: grants of the untouched periods in between, of the state's period, and of earlier ones.
  absl::InlinedVector<QuotaGrant, 1> carried;
  for (size_t age = 1; age <= std::min(missed, lasting); ++age) {
    Base base{state->count, state->count};
    if (is_recorded && changed) {
      const Period period = PeriodOf(terms, to.index - static_cast<int64_t>(age));
      base = UntouchedBase(limit, period.end_s, period);
    }
    carried.push_back({terms.CarriedOf(base.limit, base.units), 0});
  }
  if (carried.size() < lasting) {
    if (is_recorded && changed) {
      const Period own = PeriodOf(terms, state->period);
      RaiseBase(state, [&](Base& base) { base.RaiseAsRecorded(limit, own.end_s, own); });
    }
    carried.push_back({terms.CarriedOf(state->limit, std::max<int64_t>(0, state->base.left())), 0});
  }
  for (QuotaGrant& older : state->carried) {
    if (carried.size() == lasting) break;
    Settle(&older);
    carried.push_back(older);
  }
  carried.resize(lasting);
  state->carried = std::move(carried);
  int64_t first = terms.CountAt(limit.count(), to.start_s);
  if (!is_recorded) first = std::min(first, state->count);
  state->base = {first, 0};
  state->limit = first;
  state->used = 0;
  state->events = 0;
  for (QuotaTopUp& top_up : state->top_ups) Settle(&top_up);
}

bool IsFresh(const QuotaTerms& terms, const QuotaState& state, int64_t now_s) {
  return state.period == 0 || ForgottenAt(terms, state) <= now_s;
}

void Begin(const Limit& limit, QuotaState* state, int64_t now_s, const Period& period) {
  const QuotaTerms& terms = *limit.quota();
  *state = QuotaState();
  state->carried.resize(static_cast<size_t>(terms.carried_periods()));
  if (terms.spec().first_prorated) {
    const int64_t count = terms.CountAt(limit.count(), now_s);
    state->base = {Prorated(count, now_s, period), 0};
    state->limit = count;
    return;
  }
  // A key that made no call before a change is not distinguished from one that is new after it.
  const Base base = UntouchedBase(limit, now_s, period);
  state->base = {base.units, 0};
  state->limit = base.limit;
}

// Brings the state forward to `now`; returns whether the state lies further ahead than the clock
// tolerance. Its usage then counts for the period of `now`.
bool BringForward(const Limit& limit, QuotaState* state, int64_t now_ns) {
  const QuotaTerms& terms = *limit.quota();
  const int64_t now_s = now_ns / kSecondNs;
  Period period = terms.PeriodAt(now_s);
  const int64_t count = terms.CountAt(limit.count(), now_s);
  const bool is_recorded = terms.HadCount(limit.count(), state->count, state->end_s);
  bool behind = false;
  bool is_raised = false;  // as recorded
  if (IsFresh(terms, *state, now_s)) {
    Begin(limit, state, now_s, period);
    is_raised = true;
  } else if (state->period < period.index) {
    Roll(limit, is_recorded, state, period);
  } else if (state->period > period.index) {
    const int64_t start_s = terms.Edge(state->period);
    behind = start_s > now_s + 1 || start_s * kSecondNs - now_ns > kClockToleranceNs;
    if (!behind) period = {state->period, start_s, terms.Edge(state->period + 1)};
  }
  state->period = period.index;
  state->end_s = period.end_s;
  // The terms of a limit with an id may have changed.
  state->carried.resize(static_cast<size_t>(terms.carried_periods()));
  RaiseBase(state, [&](Base& base) {
    if (is_recorded && !is_raised) base.RaiseAsRecorded(limit, now_s, period);
    base.Raise(count, now_s, period);
  });
  state->count = count;
  std::vector<QuotaTopUp>& top_ups = state->top_ups;
  top_ups.erase(std::remove_if(top_ups.begin(), top_ups.end(),
                               [now_s](const QuotaTopUp& t) { return t.expires_s <= now_s; }),
                top_ups.end());
  return behind;
}

// The instant at which units carried from `age` periods ago expire.
int64_t ExpiryOf(const QuotaTerms& terms, const QuotaState& state, size_t age) {
  const auto more = static_cast<int64_t>(state.carried.size() - age);
  return more == 0 ? state.end_s : terms.Edge(state.period + more + 1);
}

// The grants in the order of spending. At equal expiry carried units come first, then the base,
// then top-ups.
using Order = absl::InlinedVector<QuotaGrant*, 4>;
Order OrderOf(const QuotaTerms& terms, QuotaState* state) {
  Order order;
  auto top_up = state->top_ups.begin();
  const auto add_top_ups = [&](int priority, int64_t before_s) {
    for (; top_up != state->top_ups.end() &&
           (top_up->priority < priority ||
            (top_up->priority == priority && top_up->expires_s < before_s));
         ++top_up) {
      order.push_back(&*top_up);
    }
  };
  const auto add = [&](QuotaGrant* grant, auto expires_s) {
    if (top_up != state->top_ups.end()) add_top_ups(0, expires_s());
    order.push_back(grant);
  };
  const auto at_end = [state] { return state->end_s; };
  size_t age = state->carried.size();
  if (age > 0) add(&state->carried[age - 1], at_end);
  add(&state->base, at_end);
  while (age-- > 1) {
    add(&state->carried[age - 1], [&] { return ExpiryOf(terms, *state, age); });
  }
  add_top_ups(QuotaTopUp::kMostPriority + 1, 0);
  return order;
}

// Notes the soft events that have happened, and returns the new ones.
uint8_t NoteEvents(QuotaState* state) {
  const int64_t total = state->used + AvailableOf(*state);
  uint8_t happened = 0;
  for (size_t i = 0; i < std::size(kQuotaEvents); ++i) {
    // The units below the threshold, rounded up.
    const int64_t below = (100 - kQuotaEvents[i]);
    const int64_t spare = total / 100 * below + total % 100 * below / 100;
    if (total > 0 && state->used >= total - spare) happened |= static_cast<uint8_t>(1U << i);
  }
  happened &= static_cast<uint8_t>(~state->events);
  state->events |= happened;
  return happened;
}

// The time until a call of `cost` passes, without other calls in between.
int64_t WaitFor(const Limit& limit, const QuotaState& state, int64_t now_ns, int64_t cost) {
  const QuotaTerms& terms = *limit.quota();
  const auto passes_at = [&](int64_t at_s) {
    QuotaState later = state;
    BringForward(limit, &later, at_s * kSecondNs);
    return cost <= AvailableOf(later);
  };
  // Room grows only at the edges of periods and when the count changes, and no more after all
  // carried units have expired.
  int64_t since_s = now_ns / kSecondNs;
  for (int64_t i = 1; i <= terms.carried_periods() + 1; ++i) {
    const int64_t edge_s = terms.Edge(state.period + i);
    for (const FormerCount& former : terms.spec().former) {
      const int64_t at_s = former.until_s;
      if (since_s < at_s && at_s < edge_s && passes_at(at_s)) return at_s * kSecondNs - now_ns;
    }
    if (passes_at(edge_s)) return edge_s * kSecondNs - now_ns;
    since_s = edge_s;
  }
  return Decision::kNever;
}

Decision Describe(const Limit& limit, const QuotaState& state, int64_t now_ns) {
  Decision d;
  d.limit = &limit;
  d.used_units = limit.count() - LeftOf(state);
  const bool is_touched = SumOf(state, [](const QuotaGrant& grant) { return grant.spent; }) > 0;
  d.reset_after_ns = is_touched ? std::max<int64_t>(1, state.end_s * kSecondNs - now_ns) : 0;
  d.known_more_ns = d.reset_after_ns;
  return d;
}

}  // namespace

void SpendQuota(const QuotaTerms& terms, QuotaState* state, int64_t units) {
  state->used = std::min(state->used + units, kMostUsed);
  for (QuotaGrant* grant : OrderOf(terms, state)) {
    const int64_t here = std::clamp<int64_t>(grant->left(), 0, units);
    grant->spent += here;
    units -= here;
    if (units == 0) return;
  }
  state->base.spent += units;  // what is owed
}

int64_t ForgottenAt(const QuotaTerms& terms, const QuotaState& state) {
  int64_t at_s = state.end_s + terms.kept_s();
  for (const QuotaTopUp& top_up : state.top_ups) {
    if (top_up.left() > 0) at_s = std::max(at_s, top_up.expires_s);
  }
  return at_s;
}

Decision StepQuota(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost,
                   uint8_t* happened) {
  *happened = 0;
  const bool behind = BringForward(limit, state, now_ns);
  const bool allowed = cost <= AvailableOf(*state);
  if (allowed) {
    SpendQuota(*limit.quota(), state, cost);
    *happened = NoteEvents(state);
  }
  Decision d = Describe(limit, *state, now_ns);
  d.allowed = allowed;
  d.behind = behind;
  if (!allowed) d.retry_after_ns = WaitFor(limit, *state, now_ns, cost);
  return d;
}

Decision StepQuotaCharge(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost,
                         int64_t most_debt, uint8_t* happened) {
  *happened = 0;
  Decision d;
  const bool behind = BringForward(limit, state, now_ns);
  const int64_t most = std::min(LeftOf(*state) + most_debt, kMostUsed - state->used);
  const int64_t units = std::clamp<int64_t>(most, 0, cost);
  if (units > 0) {
    SpendQuota(*limit.quota(), state, units);
    *happened = NoteEvents(state);
  }
  d = Describe(limit, *state, now_ns);
  d.behind = behind;
  d.SetCharged(units);
  return d;
}

Decision PeekQuota(const Limit& limit, QuotaState state, int64_t now_ns, int64_t cost) {
  const bool behind = BringForward(limit, &state, now_ns);
  Decision d = Describe(limit, state, now_ns);
  d.behind = behind;
  d.allowed = cost <= AvailableOf(state);
  if (!d.allowed) d.retry_after_ns = WaitFor(limit, state, now_ns, cost);
  return d;
}

int64_t RefundQuota(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost) {
  BringForward(limit, state, now_ns);
  const int64_t units = std::min(cost, state->used);
  state->used -= units;
  const int64_t owed = std::clamp<int64_t>(-state->base.left(), 0, units);
  state->base.spent -= owed;
  int64_t left = units - owed;
  const Order order = OrderOf(*limit.quota(), state);
  for (auto grant = order.rbegin(); grant != order.rend(); ++grant) {
    const int64_t back = std::min(left, (*grant)->spent);
    (*grant)->spent -= back;
    left -= back;
  }
  return units;
}

absl::Status AddTopUp(const Limit& limit, QuotaState* state, int64_t now_ns,
                      const QuotaTopUp& top_up) {
  if (top_up.expires_s <= now_ns / kSecondNs) {
    return absl::InvalidArgumentError(absl::StrCat("the top-up expires at ", top_up.expires_s,
                                                   ", and it is ", now_ns / kSecondNs,
                                                   " now; expected a later instant"));
  }
  QuotaState next = *state;
  BringForward(limit, &next, now_ns);
  std::vector<QuotaTopUp>& all = next.top_ups;
  all.erase(std::remove_if(all.begin(), all.end(),
                           [](const QuotaTopUp& t) { return t.units == t.spent; }),
            all.end());
  if (all.size() >= QuotaTerms::kMostTopUps) {
    return absl::InvalidArgumentError(absl::StrCat("the key has ", all.size(),
                                                   " top-ups with units left; expected at most ",
                                                   QuotaTerms::kMostTopUps, " at a time"));
  }
  int64_t most = QuotaTopUp::kMostUnits;
  for (const QuotaTopUp& other : all) most -= other.units;
  if (most == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the key has top-ups of ", QuotaTopUp::kMostUnits,
        " units that are not spent; expected at most that many of all top-ups together"));
  }
  if (top_up.units < 1 || top_up.units > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("the top-up is of ", top_up.units, " units; expected 1 to ", most));
  }
  const auto later = [](const QuotaTopUp& a, const QuotaTopUp& b) {
    return a.priority != b.priority ? a.priority < b.priority : a.expires_s < b.expires_s;
  };
  all.insert(std::upper_bound(all.begin(), all.end(), top_up, later), top_up);
  *state = std::move(next);
  return absl::OkStatus();
}

void BringQuotaForward(const Limit& limit, QuotaState* state, int64_t now_ns) {
  BringForward(limit, state, now_ns);
}

bool ResetQuota(const Limit& limit, QuotaState* state, int64_t now_ns) {
  if (IsFresh(*limit.quota(), *state, now_ns / kSecondNs)) return false;
  BringForward(limit, state, now_ns);
  state->base.spent = 0;
  state->used = 0;
  state->events = 0;
  // Otherwise a refund of later usage would give back units that were spent before.
  for (QuotaGrant& grant : state->carried) Settle(&grant);
  for (QuotaTopUp& top_up : state->top_ups) Settle(&top_up);
  return true;
}

QuotaStatus StatusOfQuota(const Limit& limit, QuotaState state, int64_t now_ns) {
  using Kind = QuotaStatus::Kind;
  BringForward(limit, &state, now_ns);
  QuotaStatus status;
  status.base = state.base.units;
  status.used = state.used;
  status.available = AvailableOf(state);
  status.resets_s = state.end_s;
  for (const QuotaGrant& grant : state.carried) status.carried += grant.units;
  for (const QuotaTopUp& top_up : state.top_ups) status.topped_up += top_up.units;
  for (const QuotaGrant* grant : OrderOf(*limit.quota(), &state)) {
    if (grant->units == 0 && grant != &state.base) continue;
    const int64_t left = std::max<int64_t>(0, grant->left());
    QuotaStatus::Grant shown{Kind::kBase, grant->units, left, state.end_s, 0};
    if (const auto age = static_cast<size_t>(grant - state.carried.data());
        grant >= state.carried.data() && age < state.carried.size()) {
      shown.kind = Kind::kCarried;
      shown.expires_s = ExpiryOf(*limit.quota(), state, age + 1);
    } else if (grant != &state.base) {
      const auto& top_up = static_cast<const QuotaTopUp&>(*grant);
      shown.kind = Kind::kTopUp;
      shown.expires_s = top_up.expires_s;
      shown.priority = top_up.priority;
    }
    status.grants.push_back(shown);
  }
  return status;
}

namespace {

constexpr int kUnitBytes = 7;  // below 2^53
constexpr int kInstantBytes = 5;
constexpr int kHasCount = 0x80;  // in the byte of the soft events

void Put(std::string* bytes, int64_t value, int width) {
  for (int i = width - 1; i >= 0; --i) *bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

// Reads big-endian numbers. Beyond the end it returns 0, and ok() is false.
class Bytes {
 public:
  explicit Bytes(std::string_view bytes) : rest_(bytes) {}
  int64_t Number(int width) {
    if (rest_.size() < static_cast<size_t>(width)) {
      ok_ = false;
      return 0;
    }
    uint64_t value = 0;
    for (int i = 0; i < width; ++i) {
      value = value << 8 | static_cast<unsigned char>(rest_[static_cast<size_t>(i)]);
    }
    rest_.remove_prefix(static_cast<size_t>(width));
    return static_cast<int64_t>(value);
  }
  QuotaGrant Grant(int64_t most_owed = 0) {
    QuotaGrant grant;
    grant.units = Number(kUnitBytes);
    grant.spent = Number(kUnitBytes);
    ok_ = ok_ && grant.spent - grant.units <= most_owed && grant.units <= QuotaTopUp::kMostUnits;
    return grant;
  }
  bool ok() const { return ok_; }
  bool AtEnd() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

void PutGrant(std::string* bytes, const QuotaGrant& grant) {
  Put(bytes, grant.units, kUnitBytes);
  Put(bytes, grant.spent, kUnitBytes);
}

}  // namespace

std::string PackQuota(const QuotaState& state) {
  std::string bytes;
  if (state.period == 0) return bytes;
  Put(&bytes, state.period, 4);
  Put(&bytes, state.end_s, kInstantBytes);
  Put(&bytes, state.limit, kUnitBytes);
  Put(&bytes, state.used, kUnitBytes);
  const bool has_count = state.count != state.limit;
  Put(&bytes, state.events | (has_count ? kHasCount : 0), 1);
  Put(&bytes, static_cast<int64_t>(state.carried.size()), 1);
  if (has_count) Put(&bytes, state.count, kUnitBytes);
  PutGrant(&bytes, state.base);
  for (const QuotaGrant& grant : state.carried) PutGrant(&bytes, grant);
  for (const QuotaTopUp& top_up : state.top_ups) {
    PutGrant(&bytes, top_up);
    Put(&bytes, top_up.expires_s, kInstantBytes);
    Put(&bytes, top_up.priority + QuotaTopUp::kMostPriority, 1);
  }
  return bytes;
}

std::optional<QuotaState> UnpackQuota(std::string_view packed) {
  QuotaState state;
  if (packed.empty()) return state;
  Bytes bytes(packed);
  state.period = bytes.Number(4);
  state.end_s = bytes.Number(kInstantBytes);
  state.limit = bytes.Number(kUnitBytes);
  state.used = bytes.Number(kUnitBytes);
  const int64_t flags = bytes.Number(1);
  state.events = static_cast<uint8_t>(flags & ~kHasCount);
  const int64_t ages = bytes.Number(1);
  state.count = (flags & kHasCount) == 0 ? state.limit : bytes.Number(kUnitBytes);
  if (state.period == 0 || state.limit > Limit::kMaxQuotaCount ||
      state.count > Limit::kMaxQuotaCount || state.used > kMostUsed ||
      ages > QuotaTerms::kMostPeriods) {
    return std::nullopt;
  }
  state.base = bytes.Grant(/*most_owed=*/kMostUsed);
  for (int64_t i = 0; i < ages; ++i) state.carried.push_back(bytes.Grant());
  int64_t sum = 0;
  while (bytes.ok() && !bytes.AtEnd()) {
    QuotaTopUp top_up;
    static_cast<QuotaGrant&>(top_up) = bytes.Grant();
    top_up.expires_s = bytes.Number(kInstantBytes);
    top_up.priority = static_cast<int>(bytes.Number(1)) - QuotaTopUp::kMostPriority;
    state.top_ups.push_back(top_up);
    sum = std::min(sum, QuotaTopUp::kMostUnits) + top_up.units;
  }
  if (!bytes.ok() || state.top_ups.size() > QuotaTerms::kMostTopUps ||
      sum > QuotaTopUp::kMostUnits) {
    return std::nullopt;
  }
  return state;
}

}  // namespace tidegate
