// The calls of RuleLimiter on its quotas.
#include "tidegate/rule_limiter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "quotas/parse.h"

namespace tidegate {

namespace {

// The former counts of a quota that replaces `old` now.
std::vector<FormerCount> FormerAfter(const Limit& old, int64_t count, int64_t now_s) {
  const int64_t in_force = old.quota()->CountAt(old.count(), now_s);
  std::vector<FormerCount> former = old.quota()->spec().former;
  while (!former.empty() && former.back().until_s > now_s) former.pop_back();  // only planned
  const bool is_later = now_s > 0 && (former.empty() || former.back().until_s < now_s);
  if (in_force != count && is_later) former.push_back({in_force, now_s});
  const auto excess = static_cast<std::ptrdiff_t>(former.size()) - QuotaTerms::kMostFormer;
  if (excess > 0) former.erase(former.begin(), former.begin() + excess);
  return former;
}

}  // namespace

std::vector<Limit> RuleLimiter::LimitsAfter(const RuleLimiter* before, const RuleSet& rules,
                                            const TimedStore& store) {
  std::vector<Limit> limits = rules.limits();
  if (before == nullptr || !HasQuota(limits)) return limits;
  const int64_t now_s = store.NowNs() / 1'000'000'000;
  const RuleSet& old_rules = before->rules();
  absl::flat_hash_map<std::string_view, uint32_t> rule_numbers;
  for (uint32_t i = 0; i < old_rules.rules().size(); ++i) {
    rule_numbers.emplace(old_rules.rules()[i].id, i);
  }
  const auto old_tier = [&](size_t tier) -> size_t {
    const std::vector<std::string>& known = old_rules.tiers();
    if (tier == rules.tiers().size()) return known.size();
    return static_cast<size_t>(std::find(known.begin(), known.end(), rules.tiers()[tier]) -
                               known.begin());
  };
  for (uint32_t rule = 0; rule < rules.rules().size(); ++rule) {
    const auto old_rule = rule_numbers.find(rules.rules()[rule].id);
    if (old_rule == rule_numbers.end()) continue;
    const std::vector<RuleSet::LimitRange>& ranges = rules.LimitsByTier(rule);
    for (size_t tier = 0; tier < ranges.size(); ++tier) {
      const RuleSet::LimitRange old = old_rules.LimitsByTier(old_rule->second)[old_tier(tier)];
      for (uint32_t i = ranges[tier].first; i < ranges[tier].first + ranges[tier].count; ++i) {
        Limit& limit = limits[i];
        if (limit.quota() == nullptr || !limit.quota()->spec().former.empty()) continue;
        for (uint32_t j = old.first; j < old.first + old.count; ++j) {
          const Limit& other = before->bound_[j].limit;
          if (other.quota() == nullptr || other.identity() != limit.identity()) continue;
          limit = limit.WithFormer(FormerAfter(other, limit.count(), now_s));
          break;
        }
      }
    }
  }
  return limits;
}

absl::StatusOr<std::vector<std::pair<const Limit*, QuotaStatus>>> RuleLimiter::StatusOf(
    const Request& request) const {
  Charged charged;
  ChargesOf(nullptr, request, 1, &charged);
  std::vector<std::pair<const Limit*, QuotaStatus>> all;
  for (const Charge& charge : charged.charges) {
    if (charge.limit->limit.quota() == nullptr) continue;
    auto status = store_->store().StatusOf(charge, {store_->NowNs()});
    if (!status.ok()) return status.status();
    all.emplace_back(&charge.limit->limit, *std::move(status));
  }
  return all;
}

absl::Status RuleLimiter::TopUp(const Request& request, std::string_view quota,
                                const QuotaTopUp& top_up) const {
  Charged charged;
  ChargesOf(nullptr, request, 1, &charged);
  const Charge* found = nullptr;
  int number = 0;
  for (const Charge& charge : charged.charges) {
    const Limit& limit = charge.limit->limit;
    if (limit.quota() == nullptr || (!quota.empty() && limit.name() != quota)) continue;
    found = &charge;
    ++number;
  }
  if (number != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        number, " quotas", quota.empty() ? "" : absl::StrCat(" of the name ", Quote(quota)),
        " apply to the request; expected one for a top-up",
        quota.empty() && number > 1 ? ", given by its name" : ""));
  }
  return store_->store().TopUp(*found, top_up, {store_->NowNs()});
}

absl::Status RuleLimiter::BringForward(const Request& request) const {
  Charged charged;
  ChargesOf(nullptr, request, 1, &charged);
  for (const Charge& charge : charged.charges) {
    if (charge.limit->limit.quota() == nullptr) continue;
    absl::Status status = store_->store().BringForward(charge, {store_->NowNs()});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<std::pair<const Limit*, QuotaEvents::Event>> RuleLimiter::TakeEvents() const {
  std::vector<std::pair<const Limit*, QuotaEvents::Event>> all;
  for (const BoundLimit& bound : bound_) {
    if (bound.events == nullptr) continue;
    for (QuotaEvents::Event& event : bound.events->Take()) {
      all.emplace_back(&bound.limit, std::move(event));
    }
  }
  return all;
}

}  // namespace tidegate
