#include "tidegate/limiter.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/gate.h"
#include "stores/memory_cells.h"
#include "stores/shm_cells.h"
#include "table/cell_calls_inl.h"

namespace tidegate {

absl::StatusOr<std::unique_ptr<Limiter>> Limiter::Create(const std::vector<Limit>& limits,
                                                         std::shared_ptr<Store> store,
                                                         std::shared_ptr<Clock> clock,
                                                         std::string_view scope) {
  if (limits.empty()) {
    return absl::InvalidArgumentError("no limit was given; expected at least one");
  }
  if (limits.size() > kMostLimits) {
    return absl::InvalidArgumentError(
        absl::StrCat(limits.size(), " limits were given; expected at most ", kMostLimits));
  }
  if (store == nullptr) {
    return absl::InvalidArgumentError("no store was given; expected one");
  }
  std::vector<BoundLimit> bound;
  bound.reserve(limits.size());
  for (const Limit& limit : limits) {
    if (absl::Status status = store->Accepts(limit); !status.ok()) return status;
    // Equal limits of one scope share a cell, so only one of them is kept.
    const auto known = std::find_if(bound.begin(), bound.end(), [&](const BoundLimit& b) {
      return b.limit.algorithm() == limit.algorithm() && b.limit.identity() == limit.identity();
    });
    if (known != bound.end() && known->limit.ToString() != limit.ToString()) {
      return absl::InvalidArgumentError(
          absl::StrCat("two limits have the id '", limit.id(), "': ", known->limit.ToString(),
                       " and ", limit.ToString(), "; expected an id of its own for each"));
    }
    if (known == bound.end()) {
      bound.push_back(store->Bind(limit, scope));
    } else if (known->limit.shadow() && !limit.shadow()) {
      *known = store->Bind(limit, scope);
    }
  }
  return std::unique_ptr<Limiter>(
      new Limiter(std::move(bound), std::move(store), std::move(clock)));
}

Limiter::Limiter(std::vector<BoundLimit> limits, std::shared_ptr<Store> store,
                 std::shared_ptr<Clock> clock)
    : limits_(std::move(limits)),
      store_(std::move(store), std::move(clock)),
      has_shadow_(std::any_of(limits_.begin(), limits_.end(),
                              [](const BoundLimit& bound) { return bound.limit.shadow(); })),
      memory_(HasShortWay() ? dynamic_cast<MemoryCells*>(&store_.store()) : nullptr),
      shm_(HasShortWay() ? dynamic_cast<ShmCells*>(&store_.store()) : nullptr),
      leased_(IsSingle() && limits_[0].leasing != nullptr ? &store_.store() : nullptr),
      takes_fingerprints_((memory_ != nullptr || shm_ != nullptr) &&
                          IsBucket(limits_[0].limit.algorithm())),
      refused_(IsSingle() ? 0 : limits_.size()) {}

Limiter::Charges Limiter::PlanFor(std::string_view key, int64_t cost) const {
  Charges plan;
  for (const BoundLimit& limit : limits_) plan.push_back({key, &limit, cost});
  return plan;
}

namespace {

// The two answers to a hit.
template <typename Answer>
Answer AnswerOf(const Limit& limit, const BucketOutcome& outcome, int64_t now_ns);

template <>
TIDEGATE_INLINE Decision AnswerOf(const Limit& limit, const BucketOutcome& outcome,
                                  int64_t now_ns) {
  return MakeDecision(limit, outcome, now_ns);
}

template <>
TIDEGATE_INLINE bool AnswerOf(const Limit&, const BucketOutcome& outcome, int64_t) {
  return outcome.allowed;
}

// For counters that only one thread writes.
TIDEGATE_INLINE void AddAlone(std::atomic<int64_t>& count, int64_t n) {
  count.store(count.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

}  // namespace

Limiter::ThreadCounts::~ThreadCounts() {
  for (const auto& counts : counts_) delete counts.load();
}

Limiter::Counts& Limiter::ThreadCounts::Get(int thread) {
  static_assert(kMostThreads == kThreads);
  if (Counts* const counts = Find(thread); counts != nullptr) return *counts;
  auto made = std::make_unique<Counts>();
  // Threads share number 0.
  Counts* counts = nullptr;
  if (counts_[static_cast<size_t>(thread)].compare_exchange_strong(counts, made.get())) {
    counts = made.release();
  }
  return *counts;
}

int64_t Limiter::ThreadCounts::Sum(bool allowed) const {
  int64_t sum = 0;
  for (const auto& pointer : counts_) {
    const Counts* const counts = pointer.load();
    if (counts != nullptr) sum += counts->calls[allowed].load(std::memory_order_relaxed);
  }
  return sum;
}

__attribute__((noinline)) void Limiter::Count(int64_t allowed, int64_t denied) {
  const int thread = ThreadNumber();
  Counts& counts = counts_.Get(thread);
  if (thread == 0) [[unlikely]] {
    counts.calls[true].fetch_add(allowed, std::memory_order_relaxed);
    counts.calls[false].fetch_add(denied, std::memory_order_relaxed);
    return;
  }
  AddAlone(counts.calls[true], allowed);
  AddAlone(counts.calls[false], denied);
}

TIDEGATE_INLINE void Limiter::CountOne(bool allowed) {
  const int thread = ThreadNumber();
  Counts* const counts = counts_.Find(thread);
  if (thread == 0 || counts == nullptr) [[unlikely]] {
    return Count(allowed ? 1 : 0, allowed ? 0 : 1);
  }
  AddAlone(counts->calls[allowed], 1);
}

TIDEGATE_INLINE void Limiter::CountOne(const Decision& decision, uint32_t rule) {
  CountOne(decision.allowed);
  if (!decision.allowed) CountRefusalBy(rule);
}

void Limiter::Count(const Decision& decision, uint32_t rule) { CountOne(decision, rule); }

void Limiter::CountWrittenOff(const Decision& decision, int64_t cost) {
  // Without an answer of the store it is not known what was charged.
  if (decision.charged == cost || decision.charged_in(0) == ChargedIn::kNowhere) return;
  written_off_.fetch_add(cost - decision.charged, std::memory_order_relaxed);
}

bool Limiter::HasShortWay() const {
  const Limit& limit = limits_[0].limit;
  return IsSingle() && (!IsBucket(limit.algorithm()) || limit.most_plain_cost() > 0);
}

void Limiter::CountShadow(absl::Span<const Decision> outcomes) {
  for (size_t i = 0; has_shadow_ && i < std::min(outcomes.size(), limits_.size()); ++i) {
    if (limits_[i].limit.shadow() && !outcomes[i].allowed) CountRefusalBy(static_cast<uint32_t>(i));
  }
}

// One straight line without a call. What it cannot decide, it charges nothing for.
template <typename Answer, typename S>
TIDEGATE_INLINE Answer Limiter::HitQuickly(S& store, std::string_view key, int64_t cost) {
  const BoundLimit& bound = *limits_.data();
  const int number = OwnThreadNumber();
  if (number <= 0 || !CellCalls::IsShort(bound.limit, cost)) [[unlikely]]
    return static_cast<Answer>(HitAtLength(store, key, cost));
  // The key is hashed first: reading the time-stamp counter takes as long as all the rest, and the
  // processor begins no instruction meanwhile, but finishes those under way.
  const Fingerprint print = CellCalls::FingerprintOf(store, key, bound);
  int64_t now_ns = 0;
  if (store_.has_own_clock()) [[unlikely]]
    now_ns = store_.OwnNowNs();
  const auto clock = [ this, &now_ns ]() __attribute__((always_inline)) {
    if (!store_.has_own_clock()) [[likely]]
      now_ns = store_.SystemNowNs();
    return now_ns;
  };
  BucketOutcome outcome;
  if (!CellCalls::HitQuickly(store, print, bound.limit, cost, clock, number, outcome)) [[unlikely]]
    return static_cast<Answer>(HitAtLength(store, key, cost));
  Counts* const counts = counts_.Find(number);
  if (counts == nullptr) [[unlikely]] {
    Count(outcome.allowed ? 1 : 0, outcome.allowed ? 0 : 1);
  } else {
    AddAlone(counts->calls[outcome.allowed], 1);
  }
  return AnswerOf<Answer>(bound.limit, outcome, now_ns);
}

template <typename S>
TIDEGATE_INLINE bool Limiter::SettleQuickly(S& store, std::string_view key, int64_t actual,
                                            const Reservation& reservation, Decision* decision) {
  const BoundLimit& bound = *limits_.data();
  const int number = OwnThreadNumber();
  if (number <= 0 || !IsBucket(bound.limit.algorithm())) [[unlikely]]
    return false;
  const Fingerprint print = CellCalls::FingerprintOf(store, key, bound);
  const int64_t now_ns = store_.NowNs();
  const bool has_end = reservation.ttl_ns > 0;
  if (has_end && now_ns - reservation.admitted_ns >= reservation.ttl_ns) [[unlikely]]
    return false;
  BucketOutcome outcome;
  if (!CellCalls::SettleQuickly(store, print, bound.limit, reservation.parts[0], actual, now_ns,
                                number, outcome)) [[unlikely]]
    return false;
  new (decision) Decision(MakeDecision(bound.limit, outcome, now_ns));
  decision->SetCharged(actual);
  return true;
}

bool Limiter::SettleQuickly(std::string_view key, int64_t actual, const Reservation& reservation,
                            Decision* decision) {
  if (!reservation.unrecorded || reservation.parts.size() != 1 ||
      reservation.parts[0].units == Reservation::kNone || actual > Reservation::kMostUnits)
      [[unlikely]] {
    return false;
  }
  if (memory_ != nullptr) [[likely]]
    return SettleQuickly(*memory_, key, actual, reservation, decision);
  return shm_ != nullptr && SettleQuickly(*shm_, key, actual, reservation, decision);
}

template <typename S>
__attribute__((noinline)) Decision Limiter::HitAtLength(S& store, std::string_view key,
                                                        int64_t cost) {
  const Charge charge{key, limits_.data(), cost};
  Decision decision =
      store_.Confirmed([&](const Moment& moment) { return store.Hit(charge, moment); });
  CountOne(decision.allowed);
  return decision;
}

// Separate, like HitAtLength(), so that the fast path of a single unit in the memory store has the
// registers to itself.
template <typename Answer, bool is_one>
__attribute__((noinline)) Answer Limiter::HitElsewhere(std::string_view key, int64_t cost) {
  if (is_one) cost = 1;
  if (!is_one && memory_ != nullptr) return HitQuickly<Answer>(*memory_, key, cost);
  if (shm_ != nullptr) return HitQuickly<Answer>(*shm_, key, cost);
  if (Decision early; leased_ != nullptr && HitWithoutWaiting(key, cost, &early)) {
    return static_cast<Answer>(early);
  }
  return static_cast<Answer>(HitPlan(key, cost));
}

__attribute__((noinline)) Decision Limiter::HitPlan(std::string_view key, int64_t cost) {
  if (IsSingle() && !blocks()) return HitAtLength(store(), key, cost);
  Outcomes outcomes;
  const Decision decision =
      store_.Call(Op::kHit, PlanFor(key, cost), nullptr, has_shadow_ ? &outcomes : nullptr);
  CountOne(decision, decision.rule);
  CountShadow(outcomes);
  return decision;
}

Decision Limiter::Hit(std::string_view key, int64_t cost) {
  if (cost != 1) [[unlikely]]
    return HitElsewhere<Decision, /*is_one=*/false>(key, cost);
  return memory_ != nullptr ? HitQuickly<Decision>(*memory_, key, 1)
                            : HitElsewhere<Decision, /*is_one=*/true>(key, 1);
}

bool Limiter::Allow(std::string_view key, int64_t cost) {
  if (cost != 1) [[unlikely]]
    return HitElsewhere<bool, /*is_one=*/false>(key, cost);
  return memory_ != nullptr ? HitQuickly<bool>(*memory_, key, 1)
                            : HitElsewhere<bool, /*is_one=*/true>(key, 1);
}

bool Limiter::HitWithoutWaiting(std::string_view key, int64_t cost, Decision* decision) {
  if (leased_ != nullptr) {
    if (!leased_->HitLeased({key, limits_.data(), cost}, decision)) return false;
    CountOne(*decision, decision->rule);
    return true;
  }
  if (IsSingle()) {
    const Charge charge{key, limits_.data(), cost};
    if (!store_.HitWithoutWaiting({&charge, 1}, decision, nullptr)) return false;
    CountOne(*decision, decision->rule);
    return true;
  }
  Outcomes outcomes;
  if (!store_.HitWithoutWaiting(PlanFor(key, cost), decision, has_shadow_ ? &outcomes : nullptr)) {
    return false;
  }
  CountShadow(outcomes);
  Count(*decision, decision->rule);
  return true;
}

std::optional<Decision> Limiter::Submit(Op op, std::string_view key, int64_t cost,
                                        const Decision* hit, Store::Done done) {
  if (op == Op::kHit && !blocks()) return Hit(key, cost);
  // Kept alive by `finish`.
  const auto outcomes =
      has_shadow_ && op == Op::kHit ? std::make_shared<Outcomes>() : std::shared_ptr<Outcomes>();
  const auto finish = [this, op, cost, outcomes](const Decision& decision) {
    if (op == Op::kHit) Count(decision, decision.rule);
    if (op == Op::kCharge) CountWrittenOff(decision, cost);
    if (outcomes != nullptr) CountShadow(*outcomes);
    return decision;
  };
  return store_.Submit(op, PlanFor(key, cost), hit, outcomes.get(), finish, std::move(done));
}

void Limiter::Flush() { store().Flush(); }

Decision Limiter::Peek(std::string_view key, int64_t cost) {
  return store_.Call(Op::kPeek, PlanFor(key, cost));
}

Decision Limiter::ChargeInFull(std::string_view key, int64_t cost) {
  const Decision decision = store_.Call(Op::kCharge, PlanFor(key, cost));
  CountWrittenOff(decision, cost);
  return decision;
}

Decision Limiter::ChargeUpTo(std::string_view key, int64_t cost) {
  return store_.Call(Op::kChargeUpTo, PlanFor(key, cost));
}

Decision Limiter::PeekFallback(std::string_view key) {
  Decision decision = store().PeekFallback({key, limits_.data(), 1}, {NowNs()});
  decision.SetChargedIn(ChargedIn::kNowhere);
  return decision;
}

void Limiter::Refund(std::string_view key, int64_t cost, const Decision* hit) {
  store_.Call(Op::kRefund, PlanFor(key, cost), hit);
}

void Limiter::Reset(std::string_view key) { store_.Call(Op::kReset, PlanFor(key, 1)); }

void Limiter::Forget(std::string_view key) { store_.Call(Op::kForget, PlanFor(key, 1)); }

void Limiter::Release(std::string_view key, int64_t cost, const Decision& hit) {
  store_.Call(Op::kRelease, PlanFor(key, cost), &hit);
}

std::optional<Decision> Limiter::Extend(std::string_view key, int64_t cost, const Decision& hit) {
  return store_.Extend(PlanFor(key, cost), hit);
}

void Limiter::HitMany(absl::Span<const std::string_view> keys, absl::Span<const int64_t> costs,
                      bool* allowed) {
  const auto cost_of = [&](size_t i) { return costs.empty() ? 1 : costs[i]; };
  if (!IsSingle()) {
    for (size_t i = 0; i < keys.size(); ++i) {
      allowed[i] = Hit(keys[i], cost_of(i)).allowed;
    }
    return;
  }
  constexpr size_t kBatch = 256;
  Charge charges[kBatch];
  Verdict verdicts[kBatch];
  for (size_t start = 0; start < keys.size(); start += kBatch) {
    const size_t n = std::min(kBatch, keys.size() - start);
    for (size_t i = 0; i < n; ++i) {
      charges[i] = {keys[start + i], limits_.data(), cost_of(start + i)};
    }
    // One reading for each batch: the time it takes is far within the tolerance.
    store().HitMany(absl::MakeConstSpan(charges, n), {NowNs()}, verdicts);
    int64_t passed = 0;
    int64_t decided = 0;
    for (size_t i = 0; i < n; ++i) {
      if (verdicts[i] == Verdict::kUnconfirmed) [[unlikely]] {
        allowed[start + i] = Hit(charges[i].key, charges[i].cost).allowed;
        continue;
      }
      allowed[start + i] = verdicts[i] == Verdict::kAllowed;
      passed += allowed[start + i];
      ++decided;
    }
    Count(passed, decided - passed);
  }
}

Fingerprint Limiter::FingerprintOf(std::string_view key) const {
  return memory_ != nullptr ? CellCalls::FingerprintOf(*memory_, key, limits_[0])
                            : CellCalls::FingerprintOf(*shm_, key, limits_[0]);
}

void Limiter::HitBatch(absl::Span<const Fingerprint> keys, const Moment& moment,
                       Verdict* verdicts) {
  const auto one_each = [](size_t) { return int64_t{1}; };
  if (memory_ != nullptr) {
    CellCalls::HitBuckets(*memory_, limits_[0], keys, one_each, moment, verdicts);
  } else {
    CellCalls::HitBuckets(*shm_, limits_[0], keys, one_each, moment, verdicts);
  }
}

void Limiter::HitMany(absl::Span<const Fingerprint> keys, bool* allowed) {
  constexpr size_t kBatch = 1024;
  Verdict verdicts[kBatch];
  for (size_t start = 0; start < keys.size(); start += kBatch) {
    const absl::Span<const Fingerprint> batch = keys.subspan(start, kBatch);
    // One reading for each batch, as above.
    HitBatch(batch, {NowNs()}, verdicts);
    // Each loop does one thing, so that the compiler vectorises it.
    bool all_confirmed = true;
    for (size_t i = 0; i < batch.size(); ++i) {
      all_confirmed &= verdicts[i] != Verdict::kUnconfirmed;
    }
    for (size_t i = 0; !all_confirmed && i < batch.size(); ++i) {
      if (verdicts[i] == Verdict::kUnconfirmed) {
        HitBatch(batch.subspan(i, 1), {NowNs(), /*confirmed=*/true}, &verdicts[i]);
      }
    }
    int64_t passed = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      allowed[start + i] = verdicts[i] == Verdict::kAllowed;
      passed += allowed[start + i];
    }
    Count(passed, static_cast<int64_t>(batch.size()) - passed);
  }
}

LimiterStats Limiter::stats() const {
  LimiterStats stats;
  stats.allowed = counts_.Sum(true);
  stats.denied = counts_.Sum(false);
  for (const int64_t refused : refused_in_shadow()) stats.denied_in_shadow += refused;
  stats.written_off = written_off_.load(std::memory_order_relaxed);
  stats.store = store().stats();
  return stats;
}

std::vector<int64_t> Limiter::Refused(bool shadow) const {
  std::vector<int64_t> refused(limits_.size());
  for (size_t i = 0; i < refused_.size(); ++i) {
    if (limits_[i].limit.shadow() == shadow) refused[i] = refused_[i].load();
  }
  return refused;
}

std::vector<int64_t> Limiter::refused() const {
  if (IsSingle()) return {stats().denied};
  return Refused(/*shadow=*/false);
}

std::vector<int64_t> Limiter::refused_in_shadow() const { return Refused(/*shadow=*/true); }

}  // namespace tidegate
