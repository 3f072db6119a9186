#include "tidegate/rule_limiter.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/on_a_thread.h"

namespace tidegate {

namespace {

Limit Blocking(const std::string& name) {
  LimitSpec spec;
  spec.period_ns = 1'000'000'000;
  spec.name = name;
  return *Limit::Create(std::move(spec));
}

// Whether load makes requests cost more of it. Each place of a concurrency limit is given back
// separately, so load must not add places; and the units of a quota are paid for, and do not come
// back when the load is gone.
bool IsRate(const Limit& limit) {
  return limit.algorithm() != Algorithm::kConcurrency && limit.algorithm() != Algorithm::kQuota;
}

// Without a place there is nothing to release: a plan of one log is not a place.
bool HasPlaces(absl::Span<const Charge> charges) {
  return std::any_of(charges.begin(), charges.end(), [](const Charge& charge) {
    return charge.limit->limit.algorithm() == Algorithm::kConcurrency;
  });
}

int64_t Product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

// Quotas that share their counts share their events, also across successive rule sets, so that the
// events of calls in flight, and those not yet taken, are not lost with a rule set.
void ShareEvents(absl::Span<const BoundLimit> before, std::vector<BoundLimit>* bound) {
  absl::flat_hash_map<std::pair<Fingerprint, std::string>, std::shared_ptr<QuotaEvents>> known;
  const auto shared = [&](const BoundLimit& quota) {
    return known.try_emplace({quota.tag, quota.limit.name()}, quota.events).first->second;
  };
  for (const BoundLimit& each : before) {
    if (each.events != nullptr) shared(each);
  }
  for (BoundLimit& each : *bound) {
    if (each.events != nullptr) each.events = shared(each);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<RuleLimiter>> RuleLimiter::Create(
    std::shared_ptr<const RuleSet> rules, std::shared_ptr<TimedStore> store, std::string_view scope,
    const RuleLimiter* before) {
  std::vector<BoundLimit> bound;
  bound.reserve(rules->limits().size());
  const std::vector<Limit> limits = LimitsAfter(before, *rules, *store);
  for (size_t i = 0; i < limits.size(); ++i) {
    const Limit& limit = limits[i];
    if (absl::Status status = store->store().Accepts(limit); !status.ok()) {
      const Rule& rule = rules->rules()[rules->RuleOf(static_cast<uint32_t>(i))];
      return absl::Status(status.code(),
                          absl::StrCat("the rule '", rule.id, "': ", status.message()));
    }
    bound.push_back(store->store().Bind(limit, scope));
  }
  ShareEvents(before == nullptr ? absl::Span<const BoundLimit>() : before->bound_, &bound);
  return std::shared_ptr<RuleLimiter>(
      new RuleLimiter(std::move(rules), std::move(store), std::move(bound), before));
}

RuleLimiter::RuleLimiter(std::shared_ptr<const RuleSet> rules, std::shared_ptr<TimedStore> store,
                         std::vector<BoundLimit> bound, const RuleLimiter* before)
    : rules_(std::move(rules)),
      store_(std::move(store)),
      bound_(std::move(bound)),
      load_(before == nullptr ? std::make_shared<LoadFactor>() : before->load_),
      has_shadow_(std::any_of(bound_.begin(), bound_.end(),
                              [](const BoundLimit& b) { return b.limit.shadow(); })),
      no_rule_(Limit::Unlimited("")),
      total_(before == nullptr ? std::make_shared<Counts>() : before->total_) {
  for (const ListEntry& entry : rules_->lists()) {
    listed_.push_back(entry.allows ? Limit::Unlimited(entry.name) : Blocking(entry.name));
  }
  absl::flat_hash_map<std::string, std::shared_ptr<Counts>> known;
  if (before != nullptr) known.insert(before->counts_.begin(), before->counts_.end());
  for (const Rule& rule : rules_->rules()) {
    unlimited_.push_back(Limit::Unlimited(rule.id));
    std::shared_ptr<Counts>& counts = known[rule.id];
    if (counts == nullptr) counts = std::make_shared<Counts>();
    counts_.emplace_back(rule.id, counts);
  }
}

RuleLimiter::~RuleLimiter() {
  if (!rules_->takes_long_to_free()) return;
  // Only the parts that grow with the rules. The store may be a Python object, so it is freed on
  // this thread.
  FreeOnAThread(std::move(bound_), std::move(unlimited_), std::move(listed_), std::move(counts_));
}

int64_t RuleLimiter::UnitsOf(const RuleSet::Matched& matched, int64_t cost, Of of) {
  return of == Of::kUsed && matched.is_estimate ? cost : Product(cost, matched.cost);
}

void RuleLimiter::Charges(const Request& request, int64_t cost, int64_t factor, int64_t now_ns,
                          Load load, Charged* charged, Of of) const {
  rules_->Match(request, now_ns, &charged->matched);
  const RuleSet::Matched& matched = charged->matched;
  LoadFactor::Scale scale;
  if (load != Load::kNone) {
    scale = load == Load::kDrawn ? load_->Draw(matched.priority) : load_->Most(matched.priority);
  }
  const int64_t units = UnitsOf(matched, cost, of);
  for (const RuleSet::Applied& applied : matched.rules) {
    const bool counts_requests = rules_->rules()[applied.rule].counts_requests;
    const int64_t own = counts_requests ? 1 : units;
    int64_t loaded = counts_requests ? 1 : Product(scale.Of(own), factor);
    if (loaded != own) loaded = std::min(loaded, std::max(own, MostOf(applied.rule, matched)));
    for (uint32_t i = 0; i < applied.limits.count; ++i) {
      const BoundLimit& bound = bound_[applied.limits.first + i];
      charged->charges.push_back({applied.key, &bound, IsRate(bound.limit) ? loaded : own});
      charged->rules.push_back(applied.rule);
    }
  }
}

template <typename Predicate>
void RuleLimiter::Keep(Predicate is_wanted, Charged* charged) const {
  size_t kept = 0;
  for (size_t i = 0; i < charged->charges.size(); ++i) {
    if (!is_wanted(rules_->rules()[charged->rules[i]])) continue;
    charged->charges[kept] = charged->charges[i];
    charged->rules[kept++] = charged->rules[i];
  }
  charged->charges.resize(kept);
  charged->rules.resize(kept);
}

void RuleLimiter::ChargesOfUsed(const Request& request, int64_t cost, Charged* charged) const {
  Charges(request, cost, 1, store_->NowNs(), Load::kNone, charged, Of::kUsed);
  Keep([](const Rule& rule) { return !rule.counts_requests; }, charged);
}

int RuleLimiter::SaysOfCaller(std::string_view attribute) {
  if (attribute == "ip") return 2;
  const bool of_request = attribute == "endpoint" || attribute == "method" || attribute == "tier" ||
                          attribute == "priority";
  return of_request ? 1 : 3;
}

int RuleLimiter::SaysOfCaller(const Rule& rule) {
  int most = 0;
  for (const std::string& name : rule.by) most = std::max(most, SaysOfCaller(name));
  return most;
}

int RuleLimiter::SaysOfCaller(const Request& request) const {
  int most = 0;
  for (const Rule& rule : rules_->rules()) {
    for (const std::string& name : rule.by) {
      const int number = rules_->AttributeNumber(name);
      if (number >= 0 && request[static_cast<size_t>(number)].data() != nullptr) {
        most = std::max(most, SaysOfCaller(name));
      }
    }
  }
  return most;
}

void RuleLimiter::ChargesToForget(const Request& request, const Ids* only, Charged* charged) const {
  ChargesOf(nullptr, request, 1, charged);
  if (only != nullptr) {
    const auto is_named = [only](const Rule& rule) {
      return std::find(only->begin(), only->end(), rule.id) != only->end();
    };
    Keep(is_named, charged);
    return;
  }
  const int least = SaysOfCaller(request);
  Keep([least](const Rule& rule) { return SaysOfCaller(rule) >= least; }, charged);
}

void RuleLimiter::CountWrittenOff(absl::Span<const Charge> charges,
                                  const Decision& decision) const {
  // All have one cost. Without an answer of the store it is not known what was charged.
  const int64_t left = charges[0].cost - decision.charged;
  if (left > 0 && decision.charged_in(0) != ChargedIn::kNowhere) {
    total_->written_off.fetch_add(left, std::memory_order_relaxed);
  }
}

int64_t RuleLimiter::MostOf(uint32_t rule, const RuleSet::Matched& matched) const {
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const RuleSet::Applied& applied : matched.rules) {
    for (uint32_t i = 0; applied.rule == rule && i < applied.limits.count; ++i) {
      const Limit& limit = bound_[applied.limits.first + i].limit;
      if (IsRate(limit)) most = std::min(most, limit.capacity());
    }
  }
  return most;
}

bool RuleLimiter::IsOnAllowList(const Request& request) const {
  const ListEntry* const listed = rules_->ListedBy(request, store_->NowNs());
  return listed != nullptr && listed->allows;
}

Decision RuleLimiter::WithoutCharges(const Charged& charged) const {
  const RuleSet::Matched& matched = charged.matched;
  Decision decision;
  decision.allowed = true;
  decision.SetChargedIn(ChargedIn::kNowhere);
  decision.at_ns = store_->NowNs();
  if (matched.listed != nullptr) {
    decision.limit = &listed_[static_cast<size_t>(matched.listed - rules_->lists().data())];
    decision.allowed = matched.listed->allows;
    if (!decision.allowed) decision.retry_after_ns = Decision::kNever;
  } else {
    decision.limit = matched.rules.empty() ? &no_rule_ : &unlimited_[matched.rules[0].rule];
  }
  return decision;
}

void RuleLimiter::Count(const Charged& charged, const Decision& decision,
                        const Outcomes* outcomes) const {
  if (charged.charges.empty()) {
    (decision.allowed ? total_->allowed : total_->refused).fetch_add(1, std::memory_order_relaxed);
    for (const RuleSet::Applied& applied : charged.matched.rules) {
      counts_[applied.rule].second->allowed.fetch_add(1, std::memory_order_relaxed);
    }
    return;
  }
  CountFor(charged.rules, decision, outcomes);
}

void RuleLimiter::CountFor(absl::Span<const uint32_t> rules, const Decision& decision,
                           const Outcomes* outcomes) const {
  const auto add = [](std::atomic<int64_t>& count) {
    count.fetch_add(1, std::memory_order_relaxed);
  };
  add(decision.allowed ? total_->allowed : total_->refused);
  if (!decision.allowed) add(counts_[rules[decision.rule]].second->refused);
  // The limits of a rule lie side by side; a request counts once for each rule.
  bool is_counted_in_shadow = false;
  for (size_t i = 0; i < rules.size(); ++i) {
    Counts& counts = *counts_[rules[i]].second;
    const bool is_first = i == 0 || rules[i] != rules[i - 1];
    if (decision.allowed && is_first) add(counts.allowed);
    if (is_first) is_counted_in_shadow = false;
    if (!is_counted_in_shadow && outcomes != nullptr && i < outcomes->size() &&
        !(*outcomes)[i].allowed && (*outcomes)[i].limit->shadow()) {
      is_counted_in_shadow = true;
      add(counts.refused_in_shadow);
      add(total_->refused_in_shadow);
    }
  }
}

Decision RuleLimiter::Hit(const Request& request, int64_t cost, Outcomes* outcomes,
                          int64_t factor) const {
  Outcomes own;
  outcomes = Wanted(outcomes, &own);
  Charged charged;
  ChargesToAsk(Op::kHit, request, cost, factor, &charged);
  const Decision decision = charged.charges.empty()
                                ? WithoutCharges(charged)
                                : store_->Call(Op::kHit, charged.charges, nullptr, outcomes);
  Count(charged, decision, outcomes);
  return decision;
}

Decision RuleLimiter::Peek(const Request& request, int64_t cost, Outcomes* outcomes,
                           int64_t factor) const {
  Charged charged;
  ChargesToAsk(Op::kPeek, request, cost, factor, &charged);
  if (charged.charges.empty()) return WithoutCharges(charged);
  return store_->Call(Op::kPeek, charged.charges, nullptr, outcomes);
}

Decision RuleLimiter::ChargeInFull(const Request& request, int64_t cost) const {
  Charged charged;
  ChargesOfUsed(request, cost, &charged);
  if (charged.charges.empty()) {
    Decision decision = WithoutCharges(charged);
    decision.SetCharged(0);
    return decision;
  }
  const Decision decision = store_->Call(Op::kCharge, charged.charges);
  CountWrittenOff(charged.charges, decision);
  return decision;
}

std::optional<Decision> RuleLimiter::HitWithoutWaiting(const Request& request, int64_t cost,
                                                       Outcomes* outcomes, int64_t factor) const {
  Outcomes own;
  outcomes = Wanted(outcomes, &own);
  Charged charged;
  ChargesToAsk(Op::kHit, request, cost, factor, &charged);
  Decision decision;
  if (charged.charges.empty()) {
    decision = WithoutCharges(charged);
  } else if (!store_->HitWithoutWaiting(charged.charges, &decision, outcomes)) {
    return std::nullopt;
  }
  Count(charged, decision, outcomes);
  return decision;
}

std::optional<Decision> RuleLimiter::Submit(Op op, const Request& request, int64_t cost,
                                            const Decision* hit, Outcomes* outcomes,
                                            Store::Done done, int64_t factor) const {
  Charged charged;
  if (!IsDecision(op)) {
    if (op == Op::kReset || op == Op::kForget) {
      ChargesToForget(request, nullptr, &charged);
    } else {
      ChargesOf(hit, request, cost, &charged);
    }
    if (op == Op::kRelease && !HasPlaces(charged.charges)) return Decision();
    const auto finish = [](const Decision& decision) { return decision; };
    return store_->Submit(op, charged.charges, hit, nullptr, finish, std::move(done));
  }
  if (op == Op::kCharge) {
    if (!store_->blocks()) return ChargeInFull(request, cost);
    ChargesOfUsed(request, cost, &charged);
    if (charged.charges.empty()) return ChargeInFull(request, cost);
    const auto count = [this, charges = charged.charges](const Decision& decision) {
      CountWrittenOff(charges, decision);
      return decision;
    };
    return store_->Submit(op, charged.charges, nullptr, nullptr, count, std::move(done));
  }
  ChargesToAsk(op, request, cost, factor, &charged);
  if (charged.charges.empty()) {
    const Decision decision = WithoutCharges(charged);
    if (op == Op::kHit) Count(charged, decision, nullptr);
    return decision;
  }
  // Kept alive by `finish`.
  const auto own = has_shadow_ ? std::make_shared<Outcomes>() : std::shared_ptr<Outcomes>();
  Outcomes* const wanted = Wanted(outcomes, own.get());
  const auto finish = [this, op, rules = charged.rules, own, wanted](const Decision& decision) {
    if (op == Op::kHit) CountFor(rules, decision, wanted);
    return decision;
  };
  return store_->Submit(op, charged.charges, nullptr, wanted, finish, std::move(done));
}

void RuleLimiter::Refund(const Request& request, int64_t cost, const Decision* hit) const {
  Charged charged;
  ChargesOf(hit, request, cost, &charged);
  store_->Call(Op::kRefund, charged.charges, hit);
}

void RuleLimiter::RefundCost(const Request& request, int64_t cost) const {
  Charged charged;
  ChargesOfUsed(request, cost, &charged);
  store_->Call(Op::kRefund, charged.charges);
}

void RuleLimiter::Release(const Request& request, int64_t cost, const Decision& hit) const {
  Charged charged;
  ChargesOf(&hit, request, cost, &charged);
  if (HasPlaces(charged.charges)) store_->Call(Op::kRelease, charged.charges, &hit);
}

std::optional<Decision> RuleLimiter::Extend(const Request& request, int64_t cost,
                                            const Decision& hit) const {
  Charged charged;
  ChargesOf(&hit, request, cost, &charged);
  if (!HasPlaces(charged.charges)) return std::nullopt;
  return store_->Extend(charged.charges, hit);
}

void RuleLimiter::Reset(const Request& request, const Ids* only) const {
  Charged charged;
  ChargesToForget(request, only, &charged);
  store_->Call(Op::kReset, charged.charges);
}

std::optional<Decision> RuleLimiter::SubmitReset(const Request& request, const Ids* only,
                                                 Store::Done done) const {
  Charged charged;
  ChargesToForget(request, only, &charged);
  const auto finish = [](const Decision& decision) { return decision; };
  return store_->Submit(Op::kReset, charged.charges, nullptr, nullptr, finish, std::move(done));
}

void RuleLimiter::Forget(const Request& request, const Ids* only) const {
  Charged charged;
  ChargesToForget(request, only, &charged);
  store_->Call(Op::kForget, charged.charges);
}

std::optional<Decision> RuleLimiter::SubmitStatus(const Request& known, Status* status,
                                                  Store::Done done) const {
  RuleSet::KnownRules found = rules_->MatchKnown(known, store_->NowNs(), Status::kMostRules);
  status->listed = found.listed;
  status->is_cut = found.is_cut;
  absl::InlinedVector<Charge, 6> charges;
  for (RuleSet::Known& one : found.rules) {
    RuleState state{one.rule, std::move(one.endpoints), static_cast<uint32_t>(charges.size()), 0};
    for (const RuleSet::LimitRange& range : one.limits) {
      for (uint32_t i = 0; i < range.count; ++i) {
        charges.push_back({one.key, &bound_[range.first + i], 1});
      }
    }
    state.count = static_cast<uint32_t>(charges.size()) - state.first;
    status->rules.push_back(std::move(state));
  }
  if (charges.empty()) return Decision();
  const auto finish = [](const Decision& decision) { return decision; };
  return store_->Submit(Op::kPeek, charges, nullptr, &status->outcomes, finish, std::move(done));
}

LimiterStats RuleLimiter::stats() const {
  return {total_->allowed.load(), total_->refused.load(), total_->refused_in_shadow.load(),
          store_->store().stats(), total_->written_off.load()};
}

std::vector<RuleLimiter::RuleStats> RuleLimiter::rule_stats() const {
  std::vector<RuleStats> stats;
  stats.reserve(counts_.size());
  for (const auto& [id, counts] : counts_) {
    stats.push_back(
        {counts->allowed.load(), counts->refused.load(), counts->refused_in_shadow.load()});
  }
  return stats;
}

std::optional<uint32_t> RuleLimiter::LimitNumber(const Limit* limit) const {
  const auto at = std::find_if(bound_.begin(), bound_.end(),
                               [&](const BoundLimit& b) { return &b.limit == limit; });
  if (at == bound_.end()) return std::nullopt;
  return static_cast<uint32_t>(at - bound_.begin());
}

}  // namespace tidegate
