// The limits of rules, by tier and priority, and the names that identify their usage.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "quotas/parse.h"
#include "rules/rule_compiler.h"

namespace tidegate {

// The id of a limit comes from its rule, so that usage stays when the limit's number changes.
RuleSet::LimitRange RuleCompiler::AddLimits(const std::string& where, uint32_t number,
                                            const std::vector<Limit>& limits, size_t tier) {
  const Rule& rule = set_->rules_[number];
  // The quotas of two tiers may be equal now and have had other counts before.
  std::string text = absl::StrCat(number, " ", HasQuota(limits) ? tier : 0);
  std::vector<Limit> named;
  for (const Limit& limit : limits) {
    LimitSpec spec = limit.spec();
    spec.rule = spec.name = rule.id;
    if (limits.size() > 1) absl::StrAppend(&spec.name, ":", limit.name());
    spec.id = absl::StrCat(CounterOf(number), " by ", absl::StrJoin(rule.by, "+"));
    spec.carry_over = rule.carry_over;
    auto own = Limit::Create(std::move(spec));
    if (!own.ok()) {
      const char* part = rule.carry_over == CarryOver::kUnits ? "" : ".carry_over";
      Add(where + part, std::string(own.status().message()));
      return {};
    }
    for (const Limit& other : named) {
      if (other.algorithm() != own->algorithm() || other.identity() != own->identity()) continue;
      Add(where, absl::StrCat("has the limits ", other.ToString(), " and ", own->ToString(),
                              ", of one period and one algorithm; expected one of them"));
    }
    absl::StrAppend(&text, ";", Absl(AlgorithmName(own->algorithm())), " ", own->ToString(),
                    own->shadow() ? " in shadow" : "");
    named.push_back(*std::move(own));
  }
  const auto [known, is_new] = known_limits_.try_emplace(std::move(text));
  if (!is_new) return known->second;
  std::vector<Limit>& all = set_->limits_;
  known->second = {static_cast<uint32_t>(all.size()), static_cast<uint32_t>(named.size())};
  all.insert(all.end(), named.begin(), named.end());
  set_->limit_rules_.resize(all.size(), number);
  return known->second;
}

namespace {

// What the rule's counts are known by.
const std::string& CounterOfRule(const Rule& rule) {
  return rule.counter.empty() ? rule.id : rule.counter;
}

}  // namespace

// The name that identifies the usage of a rule. If the rule resets, the name changes with any
// number of any rule that has the same counter.
std::string RuleCompiler::CounterOf(uint32_t number) const {
  const std::string& counter = CounterOfRule(set_->rules_[number]);
  if (!set_->rules_[number].resets) return counter;
  std::string numbers;
  for (const Rule& rule : set_->rules_) {
    if (CounterOfRule(rule) != counter) continue;
    for (const TierLimits& limits : rule.limits) {
      for (const Limit& limit : limits.limits) absl::StrAppend(&numbers, limit.name(), ";");
    }
  }
  // FNV-1a: the same in every process and version.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : numbers) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return absl::StrCat(counter, " ", absl::Hex(hash));
}

// One request must not be charged twice for one count, so rules that count together must be of one
// dimension.
void RuleCompiler::CheckChargedOnce(uint32_t number, const Rule& other) {
  const Rule& rule = set_->rules_[number];
  if (&rule == &other || rule.by != other.by) return;
  const std::string together = absl::StrCat("the rules '", other.id, "' and '", rule.id,
                                            "' have the counter '", CounterOfRule(rule), "', ");
  const auto refuse = [&](const char* field, const char* difference) {
    Add(absl::StrCat(WhereRule(number), ".", field),
        absl::StrCat(together, difference,
                     ", so that a request might be charged by both; "
                     "expected rules of one counter that are alike in it"));
  };
  if (rule.also || other.also) {
    Add(WhereRule(number) + ".counter",
        absl::StrCat(together, "and one of them has `also`, so that a request might be charged by ",
                     "both; expected a counter of its own"));
  } else if (rule.counts_requests != other.counts_requests) {
    refuse("counts", "and differ in `counts`");
  } else if (rule.shadow != other.shadow) {
    refuse("shadow", "and differ in `shadow`");
  } else if (MayHaveQuota(rule) != MayHaveQuota(other)) {
    refuse("limits", "and only one of them has a quota");
  }
}

// Rules that count together must have the same carry_over.
void RuleCompiler::CheckCounters() {
  absl::flat_hash_map<std::string_view, uint32_t> first_of;
  // The first of each counter and what is counted by, where rules share the counter.
  absl::flat_hash_map<std::string, uint32_t> first_by;
  const auto first_alike = [&](uint32_t number) {
    const Rule& rule = set_->rules_[number];
    const std::string counts = absl::StrCat(CounterOfRule(rule), " ", absl::StrJoin(rule.by, "+"));
    return first_by.try_emplace(counts, number).first->second;
  };
  for (uint32_t i = 0; i < set_->rules_.size(); ++i) {
    const Rule& rule = set_->rules_[i];
    const auto [first, is_first] = first_of.try_emplace(CounterOfRule(rule), i);
    // Two rules of one id are a problem of their own.
    if (is_first || set_->rules_[first->second].id == rule.id) continue;
    first_alike(first->second);
    const Rule& other = set_->rules_[first->second];
    CheckChargedOnce(i, set_->rules_[first_alike(i)]);
    if (other.carry_over == rule.carry_over && other.resets == rule.resets) continue;
    Add(WhereRule(i) + ".carry_over",
        absl::StrCat("differs from that of the rule '", other.id, "', which has the counter '",
                     CounterOfRule(rule),
                     "' too; expected one carry_over for all rules of a counter"));
  }
}

RuleSet::LimitRange RuleCompiler::AddLeft(const std::string& where, uint32_t number,
                                          const std::vector<Limit>& limits, Priority priority) {
  const Rule& rule = set_->rules_[number];
  const int percent = rule.reserve[static_cast<size_t>(priority)];
  if (percent == 0) return {};
  const RuleSet::LimitRange range{static_cast<uint32_t>(set_->limits_.size()),
                                  static_cast<uint32_t>(limits.size())};
  // Ids and counters have no spaces, so this text cannot be part of one.
  const std::string whom = absl::StrCat(" for ", Absl(PriorityName(priority)));
  for (const Limit& limit : limits) {
    const auto left = [percent](int64_t units) {
      return units / 100 * (100 - percent) + units % 100 * (100 - percent) / 100;
    };
    LimitSpec spec = limit.spec();
    spec.count = left(spec.count);
    if (spec.burst.has_value()) spec.burst = left(*spec.burst);
    const bool leaves_some = spec.count > 0 && spec.burst.value_or(1) > 0;
    const bool may_block = percent == 100 && limit.algorithm() != Algorithm::kConcurrency;
    if (!leaves_some && limit.count() > 0) {
      if (!may_block) {
        Add(where + ".reserve",
            absl::StrCat("a reserve of ", percent, "% leaves nothing of ", limit.ToString(),
                         "; expected a larger limit, or a smaller reserve"));
        return {};
      }
      spec.count = 0;
      spec.burst.reset();
    }
    spec.rule = rule.id;
    spec.name = rule.id + whom;
    if (limits.size() > 1) absl::StrAppend(&spec.name, ":", limit.name());
    spec.id = absl::StrCat(CounterOf(number), whom, " by ", absl::StrJoin(rule.by, "+"));
    spec.carry_over = rule.carry_over;
    auto own = Limit::Create(std::move(spec));
    if (!own.ok()) return {};  // AddLimits() reports the same problem for the whole limit
    set_->limits_.push_back(*std::move(own));
    set_->limit_rules_.push_back(number);
  }
  return range;
}

void RuleCompiler::ReadLimits(const std::string& where, uint32_t number) {
  const Rule& rule = set_->rules_[number];
  // One for each tier, and the last for requests without a tier.
  std::vector<const TierLimits*> of_tier(set_->tiers_.size() + 1, nullptr);
  const TierLimits* other = nullptr;
  for (const TierLimits& limits : rule.limits) {
    if (limits.tier.empty()) {
      other = &limits;
      continue;
    }
    const auto at = std::find(set_->tiers_.begin(), set_->tiers_.end(), limits.tier);
    if (at == set_->tiers_.end()) continue;
    of_tier[static_cast<size_t>(at - set_->tiers_.begin())] = &limits;
    const auto& tiers = rule.condition.tiers;
    if (!tiers.empty() && std::find(tiers.begin(), tiers.end(), limits.tier) == tiers.end()) {
      Add(absl::StrCat(where, ".limits.", limits.tier),
          absl::StrCat("the rule is not for the tier ", Quote(limits.tier), "; expected ",
                       absl::StrJoin(tiers, ", ")));
    }
  }
  if (rule.limits.empty()) Add(where, "no limit was given; expected at least one");
  for (const std::string& tier : rule.condition.tiers) {
    const auto at = std::find(set_->tiers_.begin(), set_->tiers_.end(), tier);
    if (at == set_->tiers_.end() || other != nullptr) continue;
    if (of_tier[static_cast<size_t>(at - set_->tiers_.begin())] == nullptr) {
      Add(where + ".limits", absl::StrCat("the tier ", Quote(tier),
                                          " has no limit; expected one for each tier of the rule"));
    }
  }
  std::vector<RuleSet::LimitRange>& ranges = set_->tier_limits_.emplace_back();
  std::vector<RuleSet::LeftToPriority> left_to;
  for (const TierLimits* limits : of_tier) {
    if (limits == nullptr) limits = other;
    ranges.push_back(limits == nullptr ? RuleSet::LimitRange{}
                                       : AddLimits(where, number, limits->limits, ranges.size()));
    auto& left = left_to.emplace_back();
    for (size_t i = 0; i < kPriorities && limits != nullptr; ++i) {
      left[i] = AddLeft(where, number, limits->limits, static_cast<Priority>(i));
    }
  }
  const auto& reserve = rule.reserve;
  if (std::any_of(reserve.begin(), reserve.end(), [](int percent) { return percent > 0; })) {
    const auto is_in_shadow = [](const TierLimits& tier) {
      return !tier.limits.empty() && tier.limits[0].shadow();
    };
    if (std::any_of(rule.limits.begin(), rule.limits.end(), is_in_shadow)) {
      Add(where + ".reserve",
          "a reserve is given for a rule in shadow, whose limits are counted apart; expected one "
          "for a rule that is enforced");
    }
    set_->left_by_reserve_.emplace(number, std::move(left_to));
  }
}

}  // namespace tidegate
