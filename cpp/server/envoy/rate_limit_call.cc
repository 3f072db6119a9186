#include "server/envoy/rate_limit_call.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/envoy/request_caller.h"
#include "tidegate/rate_fields.h"

namespace tidegate::server::envoy {

namespace {

using Node = DescriptorTree::Node;

// The rule under which refusals by a limit that came with the request are recorded.
constexpr std::string_view kOverrideRule = "override";

void Add(std::atomic<int64_t>& count, int64_t n = 1) {
  count.fetch_add(n, std::memory_order_relaxed);
}

uint32_t AsUint32(int64_t n) {
  return static_cast<uint32_t>(std::clamp<int64_t>(n, 0, std::numeric_limits<uint32_t>::max()));
}

// Whether `a` is the stricter outcome: a refusal, then the longer wait, then the smaller rest.
bool Binds(const Decision& a, const Decision& b) {
  if (a.allowed != b.allowed) return !a.allowed;
  return a.allowed ? a.remaining() < b.remaining() : a.retry_after_ns > b.retry_after_ns;
}

// The time until a fixed window ends that leaves a unit in the next one; for other limits, until
// the call would pass, or until the limit is unused again.
int64_t UntilResetNs(const Decision& decision) {
  const Limit& limit = *decision.limit;
  if (limit.algorithm() == Algorithm::kFixedWindow && limit.calendar() == Calendar::kNone) {
    const int64_t windows = decision.debt() / std::max<int64_t>(limit.count(), 1);
    return (windows + 1) * limit.period_ns() - decision.at_ns % limit.period_ns();
  }
  const bool waits = !decision.allowed && decision.retry_after_ns != Decision::kNever;
  return waits ? decision.retry_after_ns : decision.reset_after_ns;
}

}  // namespace

absl::Status RateLimitCall::Prepare(const RateLimitRequest& request, const Penalties* penalties) {
#ifdef __GLIBC__
  // Both are allocated for each request. malloc() of glibc keeps blocks of up to this size ready
  // for the thread that freed them; larger ones take it ten times as many instructions.
  constexpr size_t kKeptReady = 1032;
  constexpr size_t kOfSharedPointer = 16;
  static_assert(sizeof(RateLimitCall) + kOfSharedPointer <= kKeptReady);
  static_assert(sizeof(Group) <= kKeptReady);
#endif
  asked_.resize(request.descriptors.size());
  if (options().request_metadata) request_ = std::make_unique<Metadata>(Metadata::Of(request));
  const Node* const domain = Match(request);
  for (size_t i = 0; i < asked_.size(); ++i) {
    if (absl::Status status = Choose(request, i); !status.ok()) return status;
  }
  caller_ = CallerOf(request, options().user_key);
  caller_.user = NameOfUser(caller_.user, &name_);
  if (penalties != nullptr) Punish(request, *penalties);
  if (caller_.user.empty() && caller_.ip.empty() && state_->recorder != nullptr) {
    caller_.user = name_ = JoinedEntries(request);
  }
  const bool together =
      domain == nullptr || !domain->all_or_none_given ? options().all_or_none : domain->all_or_none;
  if (!is_blocked()) groups_ = std::vector<Group>(together ? 1 : asked_.size());
  for (Group& group : groups_) group.is_apart = !together;
  for (size_t i = 0; i < asked_.size(); ++i) {
    Group* const group = groups_.empty() ? nullptr : &groups_[together ? 0 : i];
    Charges* const charges = ChargesFor(asked_[i], group);
    if (charges != nullptr) AddCharges(static_cast<uint32_t>(i), charges);
  }
  return absl::OkStatus();
}

RateLimitCall::Charges* RateLimitCall::ChargesFor(const Asked& asked, Group* group) {
  if (asked.kind == Kind::kReport) {
    if (reports_ == nullptr) reports_ = std::make_unique<Reports>();
    return &reports_->charges;
  }
  if (group == nullptr) return nullptr;
  return asked.kind == Kind::kHit    ? &group->hits
         : asked.kind == Kind::kPeek ? &group->peeks
                                     : &group->refunds;
}

const Node* RateLimitCall::Match(const RateLimitRequest& request) {
  const Node* domain = nullptr;
  bool any_replaces = false;
  for (size_t i = 0; i < asked_.size(); ++i) {
    const Descriptor& descriptor = request.descriptors[i];
    const auto matched = tree_->tree().Match(request.domain, descriptor.entries);
    domain = matched.domain;
    asked_[i].has_own = domain != nullptr && descriptor.limit.has_value();
    asked_[i].node = asked_[i].has_own ? nullptr : matched.node;
    any_replaces |= asked_[i].node != nullptr && !asked_[i].node->spec.replaces.empty();
  }
  if (domain == nullptr) Add(counters().unknown_domain);
  if (any_replaces) DropReplaced();
  return domain;
}

void RateLimitCall::DropReplaced() {
  const auto is_replaced = [&](const std::string& name) {
    return std::any_of(asked_.begin(), asked_.end(), [&](const Asked& asked) {
      if (asked.node == nullptr) return false;
      const auto& names = asked.node->spec.replaces;
      return std::find(names.begin(), names.end(), name) != names.end();
    });
  };
  absl::InlinedVector<Asked*, 4> replaced;
  for (Asked& asked : asked_) {
    const bool has_name = asked.node != nullptr && !asked.node->spec.name.empty();
    if (has_name && is_replaced(asked.node->spec.name)) replaced.push_back(&asked);
  }
  for (Asked* const asked : replaced) asked->node = nullptr;
}

absl::Status RateLimitCall::Choose(const RateLimitRequest& request, size_t i) {
  const Descriptor& descriptor = request.descriptors[i];
  Asked& asked = asked_[i];
  asked.hits = static_cast<int64_t>(request.HitsOf(descriptor));
  const bool is_told = asked.node != nullptr && asked.node->spec.reports.has_value();
  const bool reports = is_told ? *asked.node->spec.reports : descriptor.hits_addend.has_value();
  asked.kind = asked.hits == 0               ? Kind::kPeek
               : descriptor.is_negative_hits ? Kind::kRefund
               : reports                     ? Kind::kReport
                                             : Kind::kHit;
  if (asked.has_own) {
    auto own = tree_->Override(*descriptor.limit);
    if (!own.ok()) return own.status();
    asked.own = *std::move(own);
    asked.own_shown = {descriptor.limit->requests_per_unit, descriptor.limit->unit, {}};
    asked.counters = tree_->CountersOf(request.domain, descriptor.entries);
  } else if (asked.node != nullptr) {
    has_quota_ |= asked.node->spec.quota;
    asked.counters = tree_->CountersOf(*asked.node, descriptor.entries);
  } else {
    Add(counters().no_limit);
    return absl::OkStatus();
  }
  asked.key = CountKey(request.domain, descriptor.entries, asked.node);
  return absl::OkStatus();
}

void RateLimitCall::Punish(const RateLimitRequest& request, const Penalties& penalties) {
  const auto is_refund = [](const Asked& asked) { return asked.kind == Kind::kRefund; };
  if (std::all_of(asked_.begin(), asked_.end(), is_refund)) return;
  penalty_ = penalties.Of(caller_.user, caller_.ip);
  if (!penalty_.has_value()) return;
  const Caller sent = CallerOf(request, options().user_key);
  for (size_t i = 0; i < asked_.size(); ++i) {
    asked_[i].is_of_caller = Names(request.descriptors[i], options().user_key, sent);
  }
}

int64_t RateLimitCall::CostOf(const Asked& asked, const BoundLimit& limit) const {
  const int64_t cost = std::max<int64_t>(asked.hits, 1);
  if (!asked.is_of_caller || asked.kind == Kind::kRefund) return cost;
  if (asked.kind == Kind::kReport) return cost * penalty_->factor();
  // A request that would pass an unused limit still does.
  return std::max(cost, std::min(cost * penalty_->factor(), limit.limit.capacity()));
}

void RateLimitCall::AddCharges(uint32_t descriptor, Charges* charges) const {
  const Asked& asked = asked_[descriptor];
  const auto add = [&](const BoundLimit& limit) {
    const int64_t cost = CostOf(asked, limit);
    auto& plan = charges->plan;
    const auto same = std::find_if(plan.begin(), plan.end(), [&](const Charge& charge) {
      return charge.limit->tag == limit.tag && charge.key == asked.key;
    });
    charges->of.push_back({descriptor, static_cast<uint32_t>(same - plan.begin())});
    if (same == plan.end()) {
      plan.push_back({asked.key, &limit, cost});
      return;
    }
    // Descriptors that are given twice share their usage, which the stricter limit is charged with.
    const Limit& other = same->limit->limit;
    const bool is_stricter = limit.limit.shadow() != other.shadow()
                                 ? other.shadow()
                                 : limit.limit.count() < other.count();
    if (is_stricter) same->limit = &limit;
    same->cost += cost;
  };
  if (asked.own != nullptr) add(*asked.own);
  if (asked.node == nullptr) return;
  for (size_t i = 0; i < asked.node->limits.size(); ++i) add(tree_->limit(*asked.node, i));
}

bool RateLimitCall::Begin(absl::FunctionRef<Decided()> later) {
  // The reports are one of those that keep it undecided.
  undecided_.store(groups_.size() + 2, std::memory_order_relaxed);
  if (Report()) undecided_.fetch_sub(1, std::memory_order_acq_rel);
  if (undecided_.load(std::memory_order_acquire) == 1) return true;
  kept_.Keep(caller_);
  caller_ = kept_.view();
  answer_ = later();
  Leave();
  return false;
}

void RateLimitCall::Leave() {
  if (undecided_.fetch_sub(1, std::memory_order_acq_rel) == 1) std::move(answer_)(*this);
}

bool RateLimitCall::Report() {
  if (reports_ == nullptr) {
    BeginGroups();
    return true;
  }
  const auto& plan = reports_->charges.plan;
  auto& decisions = reports_->decisions;
  reports_->undecided.store(plan.size() + 1, std::memory_order_relaxed);
  decisions.resize(plan.size());
  for (size_t i = 0; i < plan.size(); ++i) {
    const auto take = [&decisions, i](const Decision& decision) { return decisions[i] = decision; };
    const auto go_on = [self = shared_from_this()](const Decision&) {
      if (!self->Reported()) return;
      self->store().store().Flush();
      self->Leave();
    };
    const auto decision = store().Submit(Op::kCharge, {&plan[i], 1}, nullptr, nullptr, take, go_on);
    if (decision.has_value()) reports_->undecided.fetch_sub(1, std::memory_order_acq_rel);
  }
  return Reported();
}

bool RateLimitCall::Reported() {
  if (reports_->undecided.fetch_sub(1, std::memory_order_acq_rel) > 1) return false;
  TakeReports();
  BeginGroups();
  return true;
}

void RateLimitCall::BeginGroups() {
  for (Group& group : groups_) {
    if (Peek(&group)) undecided_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void RateLimitCall::TakeReports() {
  absl::InlinedVector<int64_t, 4> beyond;
  for (size_t i = 0; i < reports_->decisions.size(); ++i) {
    Decision& outcome = reports_->decisions[i];
    const Charge& charge = reports_->charges.plan[i];
    outcome.limit = &charge.limit->limit;
    const bool is_charged = outcome.charged_in(0) != ChargedIn::kNowhere;
    const int64_t written_off = is_charged ? charge.cost - outcome.charged : 0;
    Add(counters().written_off, written_off);
    beyond.push_back(std::min(charge.cost, outcome.debt() + written_off));
    // As if it had been asked for: the limit is exceeded.
    outcome.allowed = beyond.back() == 0;
    outcome.retry_after_ns = outcome.allowed ? 0 : outcome.more_after_ns();
  }
  // Of equal descriptors the last ones are the first to find no room.
  const auto& of = reports_->charges.of;
  absl::InlinedVector<int64_t, 4> counted(beyond.size(), 0);
  absl::InlinedVector<int64_t, 4> later(of.size());
  for (size_t i = of.size(); i-- > 0;) {
    const Charges::For& each = of[i];
    Asked& asked = asked_[each.descriptor];
    const int64_t hits = std::min(asked.hits, beyond[each.charge]);
    beyond[each.charge] -= hits;
    asked.beyond = std::max(asked.beyond, hits);
    later[i] = counted[each.charge];
    counted[each.charge] += asked.hits - hits;
  }
  for (size_t i = 0; i < of.size(); ++i) {
    Asked& asked = asked_[of[i].descriptor];
    asked.outcomes.push_back(reports_->decisions[of[i].charge]);
    if (BindingOf(asked) + 1 == asked.outcomes.size()) asked.later = later[i];
  }
}

// The hits are charged only if no peek is over its limit, and the refunds only if no hit was
// refused.
bool RateLimitCall::Peek(Group* group) {
  return Call(Op::kPeek, group->peeks, group, &RateLimitCall::Hit);
}

bool RateLimitCall::Hit(Group* group) {
  return Call(group->refused ? Op::kPeek : Op::kHit, group->hits, group, &RateLimitCall::UseUp);
}

bool RateLimitCall::UseUp(Group* group) {
  // A quota refuses only beside others, so the store cannot: what it has charged is given back.
  if (!group->is_apart && !group->refused && IsOutOfQuota()) {
    group->refused = true;
    for (size_t i = 0; i < group->outcomes.size(); ++i) {
      // A limit in shadow that was exceeded has counted nothing.
      if (group->outcomes[i].allowed) group->returned.plan.push_back(group->hits.plan[i]);
    }
    for (const Charges::For& each : group->hits.of) {
      asked_[each.descriptor].returned = group->hits.plan[each.charge].cost;
    }
    return Call(Op::kRefund, group->returned, group, &RateLimitCall::Refund);
  }
  if (!group->refused || !group->is_apart) return Refund(group);
  return Call(Op::kChargeUpTo, group->hits, group, &RateLimitCall::Refund);
}

bool RateLimitCall::Refund(Group* group) {
  if (group->refused) return PeekRefunded(group);
  return Call(Op::kRefund, group->refunds, group, &RateLimitCall::PeekRefunded);
}

bool RateLimitCall::PeekRefunded(Group* group) {
  return Call(Op::kPeek, group->refunds, group, &RateLimitCall::IsDecided);
}

bool RateLimitCall::Call(Op op, const Charges& charges, Group* group, Next next) {
  if (charges.plan.empty()) return (this->*next)(group);
  const bool has_outcomes = op == Op::kHit || op == Op::kPeek;
  group->outcomes.clear();
  const auto take = [this, op, &charges, group](const Decision& decision) {
    Take(op, charges, decision, group);
    return decision;
  };
  const auto go_on = [self = shared_from_this(), group, next](const Decision&) {
    if ((self.get()->*next)(group)) return self->Leave();
    self->store().store().Flush();
  };
  const auto decision = store().Submit(op, charges.plan, nullptr,
                                       has_outcomes ? &group->outcomes : nullptr, take, go_on);
  return decision.has_value() && (this->*next)(group);
}

void RateLimitCall::Take(Op op, const Charges& charges, const Decision& decision, Group* group) {
  group->degraded |= decision.degraded;
  if (op != Op::kHit && op != Op::kPeek) return;
  // A refund is not refused, whatever is left after it.
  if (&charges != &group->refunds) group->refused |= !decision.allowed;
  for (const Charges::For& each : charges.of) {
    const bool is_told = each.charge < group->outcomes.size();
    Decision outcome = is_told ? group->outcomes[each.charge] : decision;
    outcome.limit = &charges.plan[each.charge].limit->limit;
    asked_[each.descriptor].outcomes.push_back(outcome);
  }
}

bool RateLimitCall::IsOutOfQuota() const {
  if (!has_quota_) return false;
  bool has_quota = false;
  for (const Asked& asked : asked_) {
    const bool counts = asked.node != nullptr && asked.node->spec.quota &&
                        !asked.node->spec.shadow && asked.kind != Kind::kRefund;
    if (!counts || asked.outcomes.empty()) continue;
    has_quota = true;
    const auto is_within = [](const Decision& outcome) { return outcome.allowed; };
    if (std::all_of(asked.outcomes.begin(), asked.outcomes.end(), is_within)) return false;
  }
  return has_quota;
}

bool RateLimitCall::IsDegraded() const {
  const auto is_degraded = [](const auto& decided) { return decided.degraded; };
  if (std::any_of(groups_.begin(), groups_.end(), is_degraded)) return true;
  if (reports_ == nullptr) return false;
  const auto& decisions = reports_->decisions;
  return std::any_of(decisions.begin(), decisions.end(), is_degraded);
}

RateLimitResponse RateLimitCall::Finish() {
  if (is_blocked()) return FinishBlocked();
  RateLimitResponse response;
  response.request = std::move(request_);
  out_of_quota_ = IsOutOfQuota();
  bool refused = out_of_quota_;
  for (const Group& group : groups_) refused |= group.refused;
  const bool degraded = IsDegraded();
  Record(refused, degraded);
  for (size_t i = 0; i < asked_.size(); ++i) {
    const Asked& asked = asked_[i];
    response.statuses.push_back(StatusOf(asked, static_cast<uint32_t>(i), &response));
    const bool is_over = response.statuses.back().code == Code::kOverLimit;
    const bool is_quota = asked.node != nullptr && asked.node->spec.quota;
    refused |= asked.kind == Kind::kReport && is_over && !is_quota;
    const bool is_within = !asked.outcomes.empty() && response.statuses.back().code == Code::kOk;
    if (!is_within || asked.node == nullptr) continue;
    const Metadata& metadata = asked.node->spec.metadata;
    if (!metadata.empty()) response.metadata.Merge(metadata);
  }
  if (refused) Add(counters().over_limit);
  if (refused && options().shadow_mode) Add(counters().shadow_mode);
  if (degraded) Add(counters().degraded);
  if (penalty_.has_value()) Add(counters().throttled);
  response.overall_code = refused && !options().shadow_mode ? Code::kOverLimit : Code::kOk;
  if (options().response_headers) AddHeaders(&response);
  return response;
}

RateLimitResponse RateLimitCall::FinishBlocked() {
  RateLimitResponse response;
  response.request = std::move(request_);
  const bool degraded = IsDegraded();
  for (const Asked& asked : asked_) {
    DescriptorStatus& status = response.statuses.emplace_back();
    if (asked.kind == Kind::kReport && !asked.outcomes.empty()) {
      CountReport(asked, asked.outcomes[BindingOf(asked)]);
    }
    if (!asked.is_of_caller) continue;
    status.code = Code::kOverLimit;
    status.current_limit = {0, Unit::kUnknown, kBlockRule};
    status.until_reset_ns = penalty_->left_ns;
  }
  Add(counters().over_limit);
  Add(counters().blocked);
  if (degraded) Add(counters().degraded);
  if (options().shadow_mode) Add(counters().shadow_mode);
  Record(/*refused=*/true, degraded);
  response.overall_code = options().shadow_mode ? Code::kOk : Code::kOverLimit;
  if (options().response_headers) AddHeaders(&response);
  return response;
}

std::string_view RateLimitCall::RuleOf(const Asked& asked) const {
  if (asked.node == nullptr) return kOverrideRule;
  return asked.node->spec.name.empty() ? asked.node->path : asked.node->spec.name;
}

// A request is one decision, however many descriptors it has.
void RateLimitCall::Record(bool refused, bool degraded) const {
  if (state_->recorder == nullptr) return;
  int64_t hits = 0, reported = 0;
  for (const Asked& asked : asked_) {
    if (asked.kind == Kind::kHit) hits = std::max(hits, asked.hits);
    if (asked.kind == Kind::kReport) reported = std::max(reported, asked.hits);
  }
  if (hits == 0 && reported == 0) return;
  std::string_view refusing = is_blocked() ? kBlockRule : std::string_view();
  Recorded recorded{caller_.user, caller_.endpoint, {}, {}, caller_.ip, {}};
  const auto record_shadow = [&](std::string_view rule) {
    Recorded in_shadow = recorded;
    in_shadow.rule = rule;
    in_shadow.sums = {.refused_in_shadow = 1};
    state_->recorder->Record(in_shadow);
  };
  if (hits == 0) {
    // The request has passed, and where it was asked about before by a peek, that was not recorded.
    recorded.sums = {.allowed = 1, .degraded = degraded ? 1 : 0, .cost = reported};
    state_->recorder->Record(recorded);
    return;
  }
  for (const Asked& asked : asked_) {
    if (asked.kind == Kind::kReport) continue;
    bool is_in_shadow = false;
    for (const Decision& outcome : asked.outcomes) {
      if (outcome.allowed) continue;
      const bool in_shadow = IsInShadow(asked, outcome);
      if (!in_shadow && refusing.empty()) refusing = RuleOf(asked);
      is_in_shadow |= in_shadow;
    }
    if (is_in_shadow) record_shadow(RuleOf(asked));
  }
  if (refused && options().shadow_mode) record_shadow(refusing);
  const bool is_refused = refused && !options().shadow_mode;
  if (is_refused) recorded.rule = refusing;
  recorded.sums = {.allowed = is_refused ? 0 : 1,
                   .refused = is_refused ? 1 : 0,
                   .degraded = degraded ? 1 : 0,
                   .cost = is_refused ? reported : std::max(hits, reported)};
  state_->recorder->Record(recorded);
}

size_t RateLimitCall::BindingOf(const Asked& asked) {
  size_t binding = 0;
  for (size_t i = 1; i < asked.outcomes.size(); ++i) {
    if (Binds(asked.outcomes[i], asked.outcomes[binding])) binding = i;
  }
  return binding;
}

DescriptorStatus RateLimitCall::StatusOf(const Asked& asked, uint32_t descriptor,
                                         RateLimitResponse* response) {
  DescriptorStatus status;
  if (asked.outcomes.empty()) {
    if (asked.node == nullptr) return status;
    status.limit_remaining = std::numeric_limits<uint32_t>::max();  // unlimited
    if (asked.kind == Kind::kHit || asked.kind == Kind::kReport) {
      Add(asked.counters->total_hits, asked.hits);
      Add(asked.counters->within_limit, asked.hits);
    }
    return status;
  }
  const size_t binding = BindingOf(asked);
  const Decision& decision = asked.outcomes[binding];
  if (asked.node != nullptr) {
    status.current_limit = asked.node->limits[binding].shown;
    status.current_limit->name = asked.node->spec.name;
  } else {
    status.current_limit = asked.own_shown;
  }
  const auto group = groups_.size() == 1 ? 0 : descriptor;
  const bool is_used_up = groups_[group].is_apart && groups_[group].refused;
  const int64_t returned = decision.allowed ? asked.returned : 0;
  status.limit_remaining = is_used_up ? 0 : AsUint32(decision.remaining() + returned);
  status.until_reset_ns = UntilResetNs(decision);
  const bool is_quota = asked.node != nullptr && asked.node->spec.quota;
  const bool is_shadow = asked.node != nullptr && asked.node->spec.shadow;
  const bool is_over = !decision.allowed && asked.kind != Kind::kRefund;
  if (is_over && !is_shadow) status.code = Code::kOverLimit;
  response->has_quota_mode |= is_quota;
  if (is_over && is_quota && !is_shadow) response->quota_mode_violations.push_back(descriptor);
  if (asked.kind == Kind::kHit) Count(asked, decision);
  if (asked.kind == Kind::kReport) CountReport(asked, decision);
  return status;
}

bool RateLimitCall::IsInShadow(const Asked& asked, const Decision& outcome) const {
  if (!outcome.limit->shadow()) return false;
  return !out_of_quota_ || asked.node == nullptr || asked.node->spec.shadow;
}

void RateLimitCall::Count(const Asked& asked, const Decision& binding) const {
  Counters& counters = *asked.counters;
  Add(counters.total_hits, asked.hits);
  if (!binding.allowed) {
    Add(counters.over_limit, asked.hits);
    if (IsInShadow(asked, binding) || options().shadow_mode) Add(counters.shadow_mode, asked.hits);
    return;
  }
  const auto group = groups_.size() == 1 ? 0 : static_cast<size_t>(&asked - asked_.data());
  if (groups_[group].refused) return;  // the group was not charged
  Add(counters.within_limit, asked.hits);
  const auto capacity = static_cast<double>(binding.limit->capacity());
  const auto used = capacity - static_cast<double>(binding.remaining());
  if (used > capacity * options().near_ratio) Add(counters.near_limit, asked.hits);
}

// Each hit counts for what it was, as in envoyproxy/ratelimit.
void RateLimitCall::CountReport(const Asked& asked, const Decision& binding) const {
  Counters& counters = *asked.counters;
  const int64_t within = asked.hits - asked.beyond;
  Add(counters.total_hits, asked.hits);
  Add(counters.within_limit, within);
  Add(counters.over_limit, asked.beyond);
  if (IsInShadow(asked, binding) || options().shadow_mode) {
    Add(counters.shadow_mode, asked.beyond);
  }
  const int64_t capacity = binding.limit->capacity();
  const auto near = static_cast<int64_t>(static_cast<double>(capacity) * options().near_ratio);
  const int64_t used = capacity - binding.remaining() - asked.later;
  Add(counters.near_limit, std::clamp<int64_t>(used - near, 0, within));
}

void RateLimitCall::AddHeaders(RateLimitResponse* response) {
  const DescriptorStatus* closest = nullptr;
  for (const DescriptorStatus& status : response->statuses) {
    if (!status.current_limit.has_value()) continue;
    const bool is_closer =
        closest == nullptr || status.code > closest->code ||
        (status.code == closest->code && status.limit_remaining < closest->limit_remaining);
    if (is_closer) closest = &status;
  }
  if (closest == nullptr) return;
  // Envoy's clients read X-RateLimit-Reset as the time until then.
  const RateFieldValues values{closest->limit_remaining, CeilSeconds(*closest->until_reset_ns),
                               std::nullopt, std::nullopt};
  RateFieldTexts texts;
  texts.capacity = absl::StrCat(closest->current_limit->requests_per_unit);
  WriteRateFields(texts, values, kXRateLimitFields,
                  [response](RateField field, std::string_view value) {
                    response->response_headers.emplace_back(NameOf(field), value);
                  });
}

}  // namespace tidegate::server::envoy
