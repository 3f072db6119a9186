#include "rules/rule_compiler.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "quotas/parse.h"
#include "rules/circle.h"
#include "rules/rule_key.h"
#include "rules/rule_overrides.h"

namespace tidegate {

std::shared_ptr<const RuleSet> RuleSet::Compile(RuleSetSpec spec,
                                                std::vector<RuleProblem>* problems) {
  problems->clear();
  return RuleCompiler(std::move(spec), nullptr, problems).Compile();
}

std::shared_ptr<const RuleSet> RuleSet::CompileKeepingOverrides(
    RuleSetSpec spec, const RuleSet& kept, std::vector<RuleProblem>* problems) {
  problems->clear();
  return RuleCompiler(std::move(spec), &kept, problems).Compile();
}

std::shared_ptr<const RuleSet> RuleCompiler::Compile() {
  set_->index_ = std::make_unique<Index>();
  set_->cost_index_ = std::make_unique<Index>();
  set_->list_index_ = std::make_unique<Index>();
  set_->overrides_ = std::make_unique<RuleSet::Overrides>();
  set_->has_otherwise_ = spec_.otherwise.has_value();
  set_->rules_ = std::move(spec_.rules);
  if (spec_.otherwise.has_value()) set_->rules_.push_back(*std::move(spec_.otherwise));
  ReadTiers();
  ReadAttributes();
  ReadMethods();
  ReadIds();
  ReadReplaces();
  CheckCounters();
  ReadRules();
  kept_ == nullptr ? ReadOverrides() : KeepOverrides();
  ReadCosts();
  ReadLists();
  if (!problems_.empty()) return nullptr;
  for (Index* index : {set_->index_.get(), set_->cost_index_.get(), set_->list_index_.get()}) {
    index->Finish();
  }
  return RuleSet::Shared(std::move(set_));
}

std::string RuleCompiler::WhereRule(size_t rule) const {
  const bool is_otherwise = set_->has_otherwise_ && rule + 1 == set_->rules_.size();
  return is_otherwise ? "default" : absl::StrCat("rules[", rule, "]");
}

void RuleCompiler::ReadTiers() {
  std::vector<std::string>& tiers = set_->tiers_;
  const bool are_given = !spec_.tiers.empty();
  tiers = std::move(spec_.tiers);
  const auto know = [&](const std::string& where, const std::string& tier) {
    if (tier.empty() || std::find(tiers.begin(), tiers.end(), tier) != tiers.end()) return;
    if (are_given) {
      Add(where, absl::StrCat("there is no tier ", Quote(tier), "; expected one of ",
                              absl::StrJoin(tiers, ", ")));
    } else {
      tiers.push_back(tier);
    }
  };
  std::set<std::string> used;
  const auto know_all = [&](const std::string& where, const std::vector<std::string>& names) {
    for (size_t i = 0; i < names.size(); ++i) {
      know(absl::StrCat(where, ".tiers[", i, "]"), names[i]);
      used.insert(names[i]);
    }
  };
  bool any_takes_all = false;
  for (size_t i = 0; i < set_->rules_.size(); ++i) {
    const Rule& rule = set_->rules_[i];
    know_all(WhereRule(i), rule.condition.tiers);
    bool has_other = false;
    for (const TierLimits& limits : rule.limits) {
      know(absl::StrCat(WhereRule(i), ".limits.", limits.tier), limits.tier);
      used.insert(limits.tier);
      has_other |= limits.tier.empty();
    }
    any_takes_all |= rule.condition.tiers.empty() && has_other;
  }
  for (size_t i = 0; i < spec_.costs.size(); ++i) {
    know_all(absl::StrCat("costs[", i, "]"), spec_.costs[i].condition.tiers);
  }
  for (size_t i = 0; i < spec_.lists.size(); ++i) {
    know_all(spec_.lists[i].name, spec_.lists[i].condition.tiers);
  }
  if (tiers.size() > kMostNumbers) {
    Add("tiers",
        absl::StrCat("there are ", tiers.size(), " tiers; expected at most ", kMostNumbers));
    tiers.resize(kMostNumbers);
  }
  set_->default_tier_ = tiers.size();
  if (!spec_.default_tier.empty()) {
    const auto at = std::find(tiers.begin(), tiers.end(), spec_.default_tier);
    if (at == tiers.end()) {
      Add("default_tier",
          absl::StrCat("there is no tier ", Quote(spec_.default_tier), "; expected ",
                       tiers.empty() ? "a tier that a rule names"
                                     : absl::StrCat("one of ", absl::StrJoin(tiers, ", "))));
    }
    set_->default_tier_ = static_cast<size_t>(at - tiers.begin());
  }
  for (size_t i = 0; are_given && !any_takes_all && i < tiers.size(); ++i) {
    if (used.find(tiers[i]) != used.end() || set_->rules_.empty()) continue;
    Add(absl::StrCat("tiers[", i, "]"),
        absl::StrCat("no rule is for the tier ", Quote(tiers[i]),
                     "; expected limits for it, or a rule for every tier"));
  }
}

uint32_t RuleCompiler::AttributeFor(const std::string& name) {
  auto& names = set_->attributes_;
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end()) {
    names.push_back(name);
    return static_cast<uint32_t>(names.size() - 1);
  }
  return static_cast<uint32_t>(at - names.begin());
}

void RuleCompiler::ReadAttributes() {
  set_->attributes_ = {"endpoint", "method", "tier", "ip", "priority"};
  const auto read = [&](const RuleCondition& condition) {
    for (const auto& [name, value] : condition.when) AttributeFor(name);
  };
  for (size_t i = 0; i < set_->rules_.size(); ++i) {
    const Rule& rule = set_->rules_[i];
    absl::InlinedVector<uint32_t, 2> by;
    for (const std::string& name : rule.by) {
      const uint32_t number = AttributeFor(name);
      if (std::find(by.begin(), by.end(), number) != by.end()) {
        Add(WhereRule(i) + ".by", absl::StrCat("counts by ", Quote(name), " twice"));
      }
      by.push_back(number);
    }
    set_->by_.push_back(std::move(by));
    read(rule.condition);
  }
  for (const OperationCost& cost : spec_.costs) read(cost.condition);
  for (const ListEntry& entry : spec_.lists) read(entry.condition);
}

void RuleCompiler::ReadMethods() {
  std::vector<std::string>& methods = set_->methods_;
  const auto read = [&](RuleCondition& condition) {
    for (std::string& method : condition.methods) {
      absl::AsciiStrToUpper(&method);
      if (std::find(methods.begin(), methods.end(), method) == methods.end()) {
        methods.push_back(method);
      }
    }
  };
  for (Rule& rule : set_->rules_) read(rule.condition);
  for (OperationCost& cost : spec_.costs) read(cost.condition);
  for (ListEntry& entry : spec_.lists) read(entry.condition);
  if (methods.size() > kMostNumbers) {
    Add("rules", absl::StrCat("the rules name ", methods.size(), " methods; expected at most ",
                              kMostNumbers));
    methods.resize(kMostNumbers);
  }
}

void RuleCompiler::ReadIds() {
  for (uint32_t i = 0; i < set_->rules_.size(); ++i) {
    const std::string& id = set_->rules_[i].id;
    if (id.empty()) Add(WhereRule(i) + ".id", "the id is empty; expected a name for the rule");
    const auto [known, is_new] = rule_numbers_.try_emplace(id, i);
    if (!is_new) {
      Add(WhereRule(i) + ".id",
          absl::StrCat("the id ", Quote(id), " is the id of ", WhereRule(known->second),
                       " too; expected a different id for each rule"));
    }
  }
}

void RuleCompiler::ReadReplaces() {
  set_->replaces_.resize(set_->rules_.size());
  for (uint32_t i = 0; i < set_->rules_.size(); ++i) {
    const auto& names = set_->rules_[i].replaces;
    for (size_t k = 0; k < names.size(); ++k) {
      const std::string where = absl::StrCat(WhereRule(i), ".replaces[", k, "]");
      const auto known = rule_numbers_.find(names[k]);
      if (known == rule_numbers_.end()) {
        Add(where, absl::StrCat("there is no rule ", Quote(names[k]), "; expected the id of one"));
      } else if (known->second == i) {
        Add(where, "a rule replaces itself; expected the id of another rule");
      } else if (set_->rules_[known->second].also) {
        Add(where, absl::StrCat("the rule ", Quote(names[k]),
                                " has `also`, and no rule replaces it; expected another rule"));
      } else if (set_->MayReplace(i, known->second)) {
        set_->replaces_[i].push_back(known->second);
        set_->any_replaces_ = true;
      }
    }
    if (set_->rules_[i].also && !names.empty()) {
      Add(WhereRule(i) + ".replaces",
          "is given beside `also`, by which a rule replaces none; expected one of them");
    }
  }
  const std::vector<uint32_t> circle = FindCircle(set_->replaces_);
  if (circle.empty()) return;
  std::string shown;
  for (const uint32_t rule : circle) {
    absl::StrAppend(&shown, "'", set_->rules_[rule].id, "' replaces ");
  }
  Add(WhereRule(circle[0]) + ".replaces",
      absl::StrCat("rules replace each other in a circle: ", shown, "'", set_->rules_[circle[0]].id,
                   "'"));
}

NumberSet RuleCompiler::NumbersOf(const std::vector<std::string>& given,
                                  const std::vector<std::string>& known) {
  if (given.empty()) return kAllNumbers;
  NumberSet numbers = 0;
  for (const std::string& name : given) {
    const auto at = std::find(known.begin(), known.end(), name);
    if (at != known.end()) numbers |= NumberSet{1} << (at - known.begin());
  }
  return numbers;
}

RuleCompiler::Condition RuleCompiler::Read(const std::string& where,
                                           const RuleCondition& condition) {
  Condition result;
  for (size_t i = 0; i < condition.endpoints.size(); ++i) {
    auto pattern = EndpointPattern::Parse(condition.endpoints[i]);
    if (pattern.ok()) {
      result.endpoints.push_back(*std::move(pattern));
    } else {
      Add(absl::StrCat(where, ".endpoints[", i, "]"), std::string(pattern.status().message()));
    }
  }
  for (size_t i = 0; i < condition.networks.size(); ++i) {
    const auto network = Network::Parse(condition.networks[i]);
    if (network.ok()) {
      result.networks.push_back(*network);
    } else {
      Add(absl::StrCat(where, ".networks[", i, "]"), std::string(network.status().message()));
    }
  }
  for (const auto& [name, value] : condition.when) {
    const uint32_t number = AttributeFor(name);
    if (number <= RuleSet::kIp) {
      Add(absl::StrCat(where, ".when.", name),
          absl::StrCat("'", name, "' has a condition of its own; expected it in ",
                       number == RuleSet::kEndpoint ? "endpoints"
                       : number == RuleSet::kMethod ? "methods"
                       : number == RuleSet::kTier   ? "tiers"
                                                    : "networks"));
    }
    result.when.emplace_back(number, value);
  }
  std::sort(result.when.begin(), result.when.end());
  result.methods = NumbersOf(condition.methods, set_->methods_);
  result.tiers = NumbersOf(condition.tiers, set_->tiers_);
  return result;
}

void RuleCompiler::Put(Index& index, const std::string& where, const Condition& condition,
                       uint32_t target, uint32_t dimension,
                       const std::function<std::string(uint32_t)>& describe) {
  Index::Entry entry;
  entry.target = target;
  entry.dimension = dimension;
  entry.when = condition.when;
  entry.tiers = condition.tiers;
  entry.methods = condition.methods;
  const size_t endpoints = std::max<size_t>(1, condition.endpoints.size());
  const size_t networks = std::max<size_t>(1, condition.networks.size());
  for (size_t e = 0; e < endpoints; ++e) {
    entry.endpoint = condition.endpoints.empty() ? nullptr : &condition.endpoints[e];
    for (size_t n = 0; n < networks; ++n) {
      entry.network = condition.networks.empty() ? nullptr : &condition.networks[n];
      uint32_t other = 0;
      if (index.Add(entry, &other)) continue;
      Add(where, absl::StrCat("meets the same requests as ", describe(other),
                              " and is no more specific; expected conditions that tell them "
                              "apart"));
      return;
    }
  }
}

bool RuleCompiler::MayHaveQuota(const Rule& rule) {
  return std::any_of(rule.limits.begin(), rule.limits.end(),
                     [](const TierLimits& tier) { return HasQuota(tier.limits); });
}

absl::InlinedVector<uint32_t, 2> RuleCompiler::DimensionOf(uint32_t number) const {
  constexpr uint32_t kCountsRequests = UINT32_MAX;
  constexpr uint32_t kQuota = UINT32_MAX - 1;
  constexpr uint32_t kShadow = UINT32_MAX - 2;
  constexpr uint32_t kAlso = UINT32_MAX - 3;
  const Rule& rule = set_->rules_[number];
  if (rule.also) return {kAlso, number};
  // The order of attributes matters to keys, but not to dimensions.
  absl::InlinedVector<uint32_t, 2> marks = set_->by_[number];
  std::sort(marks.begin(), marks.end());
  if (rule.counts_requests) marks.push_back(kCountsRequests);
  if (MayHaveQuota(rule)) marks.push_back(kQuota);
  if (rule.shadow) marks.push_back(kShadow);
  return marks;
}

void RuleCompiler::ReadRules() {
  const auto describe = [&](uint32_t rule) {
    return absl::StrCat("the rule '", set_->rules_[rule].id, "'");
  };
  absl::flat_hash_map<absl::InlinedVector<uint32_t, 2>, uint32_t> dimensions;
  for (uint32_t i = 0; i < set_->rules_.size(); ++i) {
    const Rule& rule = set_->rules_[i];
    const std::string where = WhereRule(i);
    Condition condition = Read(where, rule.condition);
    ReadLimits(where, i);
    if (set_->has_otherwise_ && i + 1 == set_->rules_.size()) continue;
    if (rule.condition.tiers.empty()) condition.tiers = set_->TiersOf(rule);
    const auto next = static_cast<uint32_t>(dimensions.size());
    const uint32_t dimension = dimensions.try_emplace(DimensionOf(i), next).first->second;
    set_->dimensions_.push_back(dimension);
    Put(*set_->index_, where, condition, i, dimension, describe);
  }
}

void RuleCompiler::ReadOverrides() {
  set_->overrides_->Reserve(spec_.overrides.size());
  for (size_t i = 0; i < spec_.overrides.size(); ++i) {
    const RuleOverride& given = spec_.overrides[i];
    const std::string where = absl::StrCat("overrides[", i, "]");
    const auto rule = rule_numbers_.find(given.rule);
    if (rule == rule_numbers_.end()) {
      Add(where + ".rule",
          absl::StrCat("there is no rule ", Quote(given.rule), "; expected the id of one"));
      continue;
    }
    const auto& by = set_->rules_[rule->second].by;
    if (by.empty() || given.key.size() != by.size()) {
      Add(where + ".key", by.empty()
                              ? absl::StrCat("the rule '", given.rule,
                                             "' counts all requests together and has no keys")
                              : absl::StrCat("the key has ", given.key.size(), " values; expected ",
                                             absl::StrJoin(by, ", ")));
      continue;
    }
    std::string key;
    for (size_t k = 0; k < by.size(); ++k) {
      std::string room;
      const std::string_view value = by[k] == "ip"         ? CountedAddress(given.key[k], &room)
                                     : by[k] == "endpoint" ? CanonicalEndpoint(given.key[k], &room)
                                     : by[k] == "method"   ? CountedMethod(given.key[k], &room)
                                                           : std::string_view(given.key[k]);
      if (by.size() == 1) {
        key = value;
      } else {
        AppendToKey(value, k == 0, &key);
      }
    }
    if (!set_->overrides_->Add(rule->second, set_->rules_[rule->second], key, given,
                               AddLimits(where, rule->second, given.limits))) {
      Add(where, absl::StrCat("the rule '", given.rule, "' has another override of the key ",
                              Quote(key), " for the same time; expected one"));
    }
  }
}

void RuleCompiler::KeepOverrides() {
  set_->overrides_->Share(*kept_->overrides_);
  for (const RuleSet::Overrides::Group& group : set_->overrides_->groups()) {
    const auto rule = rule_numbers_.find(group.rule);
    if (rule == rule_numbers_.end() || set_->rules_[rule->second].by != group.by) {
      Add("overrides", absl::StrCat("the rule ", Quote(group.rule), " is not what it was"));
      continue;
    }
    set_->overrides_->Place(group, rule->second,
                            AddLimits("overrides", rule->second, group.limits));
  }
}

void RuleCompiler::ReadCosts() {
  const auto describe = [](uint32_t cost) { return absl::StrCat("costs[", cost, "]"); };
  for (uint32_t i = 0; i < spec_.costs.size(); ++i) {
    const std::string where = describe(i);
    if (spec_.costs[i].cost < 1) {
      Add(where + ".cost",
          absl::StrCat("the cost is ", spec_.costs[i].cost, "; expected 1 or more"));
    }
    set_->costs_.push_back({{},
                            spec_.costs[i].cost,
                            spec_.costs[i].priority,
                            spec_.costs[i].is_estimate,
                            std::move(spec_.costs[i].usage)});
    Put(*set_->cost_index_, where, Read(where, spec_.costs[i].condition), i, 0, describe);
  }
}

void RuleCompiler::ReadLists() {
  // Of two entries that are equally specific, the first in this order applies.
  std::stable_partition(spec_.lists.begin(), spec_.lists.end(),
                        [](const ListEntry& entry) { return !entry.allows; });
  set_->lists_ = std::move(spec_.lists);
  set_->list_index_->KeepEqual();
  for (uint32_t i = 0; i < set_->lists_.size(); ++i) {
    const ListEntry& entry = set_->lists_[i];
    Put(*set_->list_index_, entry.name, Read(entry.name, entry.condition), i, 0, nullptr);
    if (entry.from_ns != 0 || entry.until_ns != RuleOverride::kForever) {
      set_->list_index_->SetTimes(i, entry.from_ns, entry.until_ns);
    }
  }
}

}  // namespace tidegate
