#include "tidegate/limiter.h"

#include <algorithm>
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
      store_(std::move(store)),
      has_shadow_(std::any_of(limits_.begin(), limits_.end(),
                              [](const BoundLimit& bound) { return bound.limit.shadow(); })),
      memory_(HasShortWay() ? dynamic_cast<MemoryCells*>(store_.get()) : nullptr),
      shm_(HasShortWay() ? dynamic_cast<ShmCells*>(store_.get()) : nullptr),
      blocks_(store_->blocks()),
      sets_back_(!store_->spans_hosts() || (clock != nullptr && clock->is_common())),
      takes_fingerprints_((memory_ != nullptr || shm_ != nullptr) &&
                          IsBucket(limits_[0].limit.algorithm())),
      clock_(std::move(clock)),
      clock_shift_(store_->clock_shift()),
      refused_(IsSingle() ? 0 : limits_.size()) {}

TIDEGATE_INLINE Decision Limiter::Decide(std::string_view key, int64_t cost, const Moment& moment,
                                         Outcomes* outcomes) {
  if (memory_ != nullptr) return memory_->MemoryCells::Hit({key, limits_.data(), cost}, moment);
  return DecideElsewhere(key, cost, moment, outcomes);
}

__attribute__((noinline)) Decision Limiter::DecideElsewhere(std::string_view key, int64_t cost,
                                                            const Moment& moment,
                                                            Outcomes* outcomes) {
  if (IsSingle()) return store_->Hit({key, limits_.data(), cost}, moment);
  return store_->HitAll(
      PlanFor(key, cost), moment, [this] { return NowNs(); }, outcomes);
}

Limiter::Charges Limiter::PlanFor(std::string_view key, int64_t cost) const {
  Charges plan;
  for (const BoundLimit& limit : limits_) plan.push_back({key, &limit, cost});
  return plan;
}

namespace {

// The decision of a peek.
Decision Uncharged(Decision decision) {
  decision.SetChargedIn(ChargedIn::kNowhere);
  return decision;
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

bool Limiter::HasShortWay() const {
  const Limit& limit = limits_[0].limit;
  return IsSingle() && (!IsBucket(limit.algorithm()) || limit.most_plain_cost() > 0);
}

void Limiter::CountShadow(absl::Span<const Decision> outcomes) {
  for (size_t i = 0; has_shadow_ && i < std::min(outcomes.size(), limits_.size()); ++i) {
    if (limits_[i].limit.shadow() && !outcomes[i].allowed) CountRefusalBy(static_cast<uint32_t>(i));
  }
}

// The fast path of a limiter of one limit. Returns false if it could not decide.
template <typename S>
TIDEGATE_INLINE bool Limiter::HitQuickly(S& store, std::string_view key, int64_t cost,
                                         int64_t& now_ns, BucketOutcome& outcome) {
  const BoundLimit& bound = *limits_.data();
  const int number = OwnThreadNumber();
  if (number <= 0 || !CellCalls::IsShort(bound.limit, cost)) [[unlikely]]
    return false;
  // The key is hashed first: reading the time-stamp counter takes as long as all the rest, and the
  // processor begins no instruction meanwhile, but finishes those under way.
  const Fingerprint print = CellCalls::FingerprintOf(store, key, bound);
  if (clock_ != nullptr) [[unlikely]]
    now_ns = ReadClock();
  const auto clock = [ this, &now_ns ]() __attribute__((always_inline)) {
    if (clock_ == nullptr) [[likely]]
      now_ns = system_.Now() + clock_shift_.ns();
    return now_ns;
  };
  if (!CellCalls::HitQuickly(store, print, bound.limit, cost, clock, number, outcome)) [[unlikely]]
    return false;
  Counts* const counts = counts_.Find(number);
  if (counts == nullptr) [[unlikely]] {
    Count(outcome.allowed ? 1 : 0, outcome.allowed ? 0 : 1);
  } else {
    AddAlone(counts->calls[outcome.allowed], 1);
  }
  return true;
}

template <typename S>
TIDEGATE_INLINE Decision Limiter::HitIn(S& store, std::string_view key, int64_t cost) {
  int64_t now_ns = 0;
  BucketOutcome outcome;
  if (!HitQuickly(store, key, cost, now_ns, outcome)) [[unlikely]]
    return HitAtLength(key, cost);
  return MakeDecision(limits_.data()->limit, outcome, now_ns);
}

template <typename S>
TIDEGATE_INLINE bool Limiter::AllowIn(S& store, std::string_view key, int64_t cost) {
  int64_t now_ns = 0;
  BucketOutcome outcome;
  if (!HitQuickly(store, key, cost, now_ns, outcome)) [[unlikely]]
    return HitAtLength(key, cost).allowed;
  return outcome.allowed;
}

Decision Limiter::Hit(std::string_view key, int64_t cost) {
  if (cost != 1) [[unlikely]]
    return HitSeveral(key, cost);
  return memory_ != nullptr ? HitIn(*memory_, key, 1) : HitElsewhere(key);
}

bool Limiter::Allow(std::string_view key, int64_t cost) {
  if (cost != 1) [[unlikely]]
    return AllowSeveral(key, cost);
  return memory_ != nullptr ? AllowIn(*memory_, key, 1) : AllowElsewhere(key);
}

// Separate, like HitAtLength() and ReadClock(), so that the fast path of a single unit in the
// memory store has the registers to itself.
__attribute__((noinline)) Decision Limiter::HitElsewhere(std::string_view key) {
  return shm_ != nullptr ? HitIn(*shm_, key, 1) : HitWithoutCells(key, 1);
}

__attribute__((noinline)) bool Limiter::AllowElsewhere(std::string_view key) {
  return shm_ != nullptr ? AllowIn(*shm_, key, 1) : HitWithoutCells(key, 1).allowed;
}

__attribute__((noinline)) Decision Limiter::HitSeveral(std::string_view key, int64_t cost) {
  if (memory_ != nullptr) return HitIn(*memory_, key, cost);
  return shm_ != nullptr ? HitIn(*shm_, key, cost) : HitWithoutCells(key, cost);
}

__attribute__((noinline)) bool Limiter::AllowSeveral(std::string_view key, int64_t cost) {
  if (memory_ != nullptr) return AllowIn(*memory_, key, cost);
  return shm_ != nullptr ? AllowIn(*shm_, key, cost) : HitWithoutCells(key, cost).allowed;
}

// For several limits, or a store without cells.
__attribute__((noinline)) Decision Limiter::HitWithoutCells(std::string_view key, int64_t cost) {
  if (blocks_) {
    if (Decision early; HitWithoutWaiting(key, cost, &early)) return early;
  }
  return HitAtLength(key, cost);
}

__attribute__((noinline)) int64_t Limiter::ReadClock() { return clock_->NowNs(); }

__attribute__((noinline)) Decision Limiter::HitAtLength(std::string_view key, int64_t cost) {
  if (!has_shadow_) [[likely]]
    return HitWith(key, cost, nullptr);
  Outcomes outcomes;
  const Decision decision = HitWith(key, cost, &outcomes);
  CountShadow(outcomes);
  return decision;
}

Decision Limiter::HitWith(std::string_view key, int64_t cost, Outcomes* outcomes) {
  const Moment moment{NowNs()};
  Decision decision = Decide(key, cost, moment, outcomes);
  if (decision.behind && sets_back_) [[unlikely]] {
    decision = Decide(key, cost, {NowNs(), /*confirmed=*/true}, outcomes);
  }
  if (!blocks_) decision.at_ns = moment.now_ns;
  CountOne(decision, decision.rule);
  return decision;
}

bool Limiter::HitWithoutWaiting(std::string_view key, int64_t cost, Decision* decision) {
  const Moment moment{store_->reads_clock() ? NowNs() : 0};
  const Charge charge{key, limits_.data(), cost};
  if (IsSingle()) {
    if (!store_->HitWithoutWaiting({&charge, 1}, moment, decision, nullptr)) return false;
  } else {
    Outcomes outcomes;
    Outcomes* const wanted = has_shadow_ ? &outcomes : nullptr;
    if (!store_->HitWithoutWaiting(PlanFor(key, cost), moment, decision, wanted)) return false;
    CountShadow(outcomes);
  }
  Count(*decision, decision->rule);
  return true;
}

std::optional<Decision> Limiter::Submit(Op op, std::string_view key, int64_t cost,
                                        const Decision* hit, Store::Done done) {
  if (!blocks_) {
    if (op == Op::kHit) return Hit(key, cost);
    if (op == Op::kPeek) return Peek(key, cost);
    if (op == Op::kChargeUpTo) return ChargeUpTo(key, cost);
    if (op == Op::kRefund) Refund(key, cost, hit);
    if (op == Op::kRelease) Release(key, cost, *hit);
    if (op == Op::kReset) Reset(key);
    if (op == Op::kForget) Forget(key);
    return Decision();
  }
  const Moment moment{NowNs()};
  const bool gives_back = op == Op::kRefund || op == Op::kRelease;
  const Charges plan = gives_back ? ToGiveBack(op, key, cost, hit, moment) : PlanFor(key, cost);
  if (plan.empty()) return Decision();
  // Kept alive by `finish`.
  const auto outcomes =
      has_shadow_ && op == Op::kHit ? std::make_shared<Outcomes>() : std::shared_ptr<Outcomes>();
  const auto finish = [this, op, outcomes](const Decision& decision) {
    if (op != Op::kHit) return;
    Count(decision, decision.rule);
    if (outcomes != nullptr) CountShadow(*outcomes);
  };
  std::optional<Decision> early = store_->Submit(
      op, plan, hit == nullptr ? Store::kNoInstant : hit->at_ns, moment, ClockToConfirm(),
      outcomes.get(), [finish, op, done = std::move(done)](const Decision& decision) {
        finish(decision);
        if (op == Op::kPeek) return done(Uncharged(decision));
        done(decision);
      });
  if (!early.has_value()) return early;
  finish(*early);
  if (op == Op::kPeek) early->SetChargedIn(ChargedIn::kNowhere);
  return early;
}

Store::Clock Limiter::ClockToConfirm() {
  if (!store_->reads_clock() || !sets_back_) return nullptr;
  return [this] { return NowNs(); };
}

void Limiter::Flush() { store_->Flush(); }

Decision Limiter::Peek(std::string_view key, int64_t cost) {
  const Moment moment{NowNs()};
  Decision decision = store_->PeekAll(PlanFor(key, cost), moment, nullptr);
  if (!blocks_) decision.at_ns = moment.now_ns;
  return Uncharged(decision);
}

Decision Limiter::ChargeUpTo(std::string_view key, int64_t cost) {
  const Charges plan = PlanFor(key, cost);
  Moment moment{NowNs()};
  Decision decision = store_->ChargeAllUpTo(plan, moment);
  if (decision.behind && sets_back_) {
    moment = {NowNs(), /*confirmed=*/true};
    decision = store_->ChargeAllUpTo(plan, moment);
  }
  if (!blocks_) decision.at_ns = moment.now_ns;
  return decision;
}

Decision Limiter::PeekFallback(std::string_view key) {
  const Charge charge{key, limits_.data(), 1};
  return Uncharged(store_->PeekFallback(charge, {NowNs()}));
}

Limiter::Charges Limiter::ToGiveBack(Op op, std::string_view key, int64_t cost, const Decision* hit,
                                     const Moment& moment) {
  Charges plan;
  for (size_t i = 0; i < limits_.size(); ++i) {
    if (op == Op::kRelease && !Releases(limits_[i])) continue;
    Charge charge{key, &limits_[i], cost};
    if (hit != nullptr && hit->charged_in(i) != ChargedIn::kStore) {
      if (hit->charged_in(i) == ChargedIn::kFallback) {
        store_->GiveBackInFallback(charge, hit->at_ns, moment);
      }
      continue;
    }
    if (hit == nullptr) charge.cost -= store_->RefundFallback(charge, moment);
    if (charge.cost > 0) plan.push_back(charge);
  }
  return plan;
}

void Limiter::Refund(std::string_view key, int64_t cost, const Decision* hit) {
  Moment moment{NowNs()};
  const Charges plan = ToGiveBack(Op::kRefund, key, cost, hit, moment);
  const auto is_behind = [&](const Charge& charge) { return store_->Peek(charge, moment).behind; };
  if (!blocks_ && std::any_of(plan.begin(), plan.end(), is_behind)) {
    moment = {NowNs(), /*confirmed=*/true};
  }
  store_->GiveBack(Op::kRefund, plan, hit == nullptr ? Store::kNoInstant : hit->at_ns, moment);
}

void Limiter::Reset(std::string_view key) {
  const Moment moment{NowNs()};
  for (const Charge& charge : PlanFor(key, 1)) store_->Reset(charge, moment);
}

void Limiter::Forget(std::string_view key) {
  const Moment moment{NowNs()};
  for (const Charge& charge : PlanFor(key, 1)) store_->Forget(charge, moment);
}

bool Limiter::Releases(const BoundLimit& limit) const {
  const Algorithm algorithm = limit.limit.algorithm();
  return algorithm == Algorithm::kConcurrency || (IsLog(algorithm) && limits_.size() == 1);
}

void Limiter::Release(std::string_view key, int64_t cost, const Decision& hit) {
  const Moment moment{NowNs()};
  const Charges plan = ToGiveBack(Op::kRelease, key, cost, &hit, moment);
  store_->GiveBack(Op::kRelease, plan, hit.at_ns, moment);
}

std::optional<Decision> Limiter::Extend(std::string_view key, int64_t cost, const Decision& hit) {
  const Moment moment{NowNs()};
  Charges plan;
  int64_t at_ns = hit.at_ns;
  for (size_t i = 0; i < limits_.size(); ++i) {
    if (limits_[i].limit.algorithm() != Algorithm::kConcurrency) continue;
    const Charge charge{key, &limits_[i], cost};
    if (hit.charged_in(i) == ChargedIn::kStore) plan.push_back(charge);
    if (hit.charged_in(i) != ChargedIn::kFallback) continue;
    at_ns = store_->ExtendInFallback(charge, hit.at_ns, moment);
  }
  if (!plan.empty()) at_ns = store_->Extend(plan, hit.at_ns, moment);
  if (at_ns == Store::kNoInstant) return std::nullopt;
  Decision extended = hit;
  extended.at_ns = at_ns;
  return extended;
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
    store_->HitMany(absl::MakeConstSpan(charges, n), {NowNs()}, verdicts);
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
  stats.store = store_->stats();
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
