// RuleSet::Compile(): checks a specification and builds the indexes that requests are matched
// against.
#include <algorithm>
#include <functional>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "quotas/parse.h"
#include "rules/circle.h"
#include "rules/endpoint.h"
#include "rules/network.h"
#include "rules/rule_index.h"
#include "rules/rule_key.h"
#include "rules/rule_overrides.h"
#include "tidegate/rule_set.h"

namespace tidegate {

class RuleCompiler {
 public:
  RuleCompiler(RuleSetSpec spec, std::vector<RuleProblem>* problems)
      : spec_(std::move(spec)), problems_(*problems), set_(new RuleSet) {}

  std::shared_ptr<const RuleSet> Compile();

 private:
  using Index = RuleSet::Index;

  // A condition after parsing. The index gets an entry for each pair of an endpoint and a network.
  struct Condition {
    std::vector<EndpointPattern> endpoints;
    std::vector<Network> networks;
    absl::InlinedVector<std::pair<uint32_t, std::string_view>, 2> when;
    NumberSet tiers = kAllNumbers;
    NumberSet methods = kAllNumbers;
  };

  void Add(std::string where, std::string message) {
    problems_.push_back({std::move(where), std::move(message)});
  }
  uint32_t AttributeFor(const std::string& name);
  void ReadAttributes();
  void ReadTiers();
  void ReadMethods();
  void ReadIds();
  void ReadReplaces();
  void ReadRules();
  std::string CounterOf(uint32_t rule) const;
  void CheckCounters();
  void ReadLimits(const std::string& where, uint32_t rule);
  void ReadOverrides();
  void ReadCosts();
  void ReadLists();
  std::string WhereRule(size_t rule) const;
  static NumberSet NumbersOf(const std::vector<std::string>& given,
                             const std::vector<std::string>& known);
  Condition Read(const std::string& where, const RuleCondition& condition);
  // Puts the condition into the index. `describe` returns the name of a target for messages.
  void Put(Index& index, const std::string& where, const Condition& condition, uint32_t target,
           uint32_t dimension, bool wins_ties,
           const std::function<std::string(uint32_t)>& describe);
  RuleSet::LimitRange AddLimits(const std::string& where, uint32_t rule,
                                const std::vector<Limit>& limits, size_t tier = 0);
  // Adds what the rule's reserve leaves of `limits` to requests of this priority.
  RuleSet::LimitRange AddLeft(const std::string& where, uint32_t rule,
                              const std::vector<Limit>& limits, Priority priority);

  RuleSetSpec spec_;
  std::vector<RuleProblem>& problems_;
  std::unique_ptr<RuleSet> set_;
  absl::flat_hash_map<std::string, uint32_t> rule_numbers_;
  // The ranges that AddLimits() has returned so far, by the text of the limits.
  absl::flat_hash_map<std::string, RuleSet::LimitRange> known_limits_;
};

std::shared_ptr<const RuleSet> RuleSet::Compile(RuleSetSpec spec,
                                                std::vector<RuleProblem>* problems) {
  problems->clear();
  return RuleCompiler(std::move(spec), problems).Compile();
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
  ReadOverrides();
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
      } else {
        set_->replaces_[i].push_back(known->second);
        set_->any_replaces_ = true;
      }
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
                       uint32_t target, uint32_t dimension, bool wins_ties,
                       const std::function<std::string(uint32_t)>& describe) {
  Index::Entry entry;
  entry.target = target;
  entry.dimension = dimension;
  entry.when = condition.when;
  entry.tiers = condition.tiers;
  entry.methods = condition.methods;
  entry.wins_ties = wins_ties;
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

// The name that identifies the usage of a rule. If the rule resets, the name changes with any
// number of any rule that has the same counter.
std::string RuleCompiler::CounterOf(uint32_t number) const {
  const auto counter_of = [](const Rule& rule) -> const std::string& {
    return rule.counter.empty() ? rule.id : rule.counter;
  };
  const std::string& counter = counter_of(set_->rules_[number]);
  if (!set_->rules_[number].resets) return counter;
  std::string numbers;
  for (const Rule& rule : set_->rules_) {
    if (counter_of(rule) != counter) continue;
    for (const TierLimits& limits : rule.limits) {
      for (const Limit& limit : limits.limits) absl::StrAppend(&numbers, limit.name(), ";");
    }
  }
  // FNV-1a: the same in every process and version.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : numbers) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return absl::StrCat(counter, " ", absl::Hex(hash));
}

// Rules that count together must have the same carry_over.
void RuleCompiler::CheckCounters() {
  absl::flat_hash_map<std::string, uint32_t> first_of;
  for (uint32_t i = 0; i < set_->rules_.size(); ++i) {
    const Rule& rule = set_->rules_[i];
    if (rule.counter.empty()) continue;
    const Rule& other = set_->rules_[first_of.try_emplace(rule.counter, i).first->second];
    if (other.carry_over == rule.carry_over && other.resets == rule.resets) continue;
    Add(WhereRule(i) + ".carry_over",
        absl::StrCat("differs from that of the rule '", other.id, "', which has the counter '",
                     rule.counter, "' too; expected one carry_over for all rules of a counter"));
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
      Add(where + ".limits", absl::StrCat("there is no limit for the tier ", Quote(tier),
                                          "; expected one for each tier of the rule"));
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

void RuleCompiler::ReadRules() {
  std::vector<absl::InlinedVector<uint32_t, 2>> dimensions;
  const auto describe = [&](uint32_t rule) {
    return absl::StrCat("the rule '", set_->rules_[rule].id, "'");
  };
  for (uint32_t i = 0; i < set_->rules_.size(); ++i) {
    const Rule& rule = set_->rules_[i];
    const std::string where = WhereRule(i);
    Condition condition = Read(where, rule.condition);
    ReadLimits(where, i);
    if (set_->has_otherwise_ && i + 1 == set_->rules_.size()) continue;
    if (rule.condition.tiers.empty()) condition.tiers = set_->TiersOf(rule);
    // The order of attributes matters to keys, but not to dimensions.
    absl::InlinedVector<uint32_t, 2> by = set_->by_[i];
    std::sort(by.begin(), by.end());
    // A rule that counts requests and one that counts costs both apply: they are two dimensions.
    if (rule.counts_requests) by.push_back(UINT32_MAX);
    const auto at = std::find(dimensions.begin(), dimensions.end(), by);
    const auto dimension = static_cast<uint32_t>(at - dimensions.begin());
    if (at == dimensions.end()) dimensions.push_back(by);
    Put(*set_->index_, where, condition, i, dimension, /*wins_ties=*/false, describe);
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
      const std::string_view value =
          by[k] == "ip" ? CountedAddress(given.key[k], &room) : std::string_view(given.key[k]);
      if (by.size() == 1) {
        key = value;
      } else {
        AppendToKey(value, k == 0, &key);
      }
    }
    if (!set_->overrides_->Add(rule->second, key, AddLimits(where, rule->second, given.limits),
                               given.until_ns, given.reason)) {
      Add(where, absl::StrCat("the rule '", given.rule, "' has another override of the key ",
                              Quote(key), "; expected one for each key"));
    }
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
    set_->costs_.push_back({{}, spec_.costs[i].cost, spec_.costs[i].priority});
    Put(*set_->cost_index_, where, Read(where, spec_.costs[i].condition), i, 0,
        /*wins_ties=*/false, describe);
  }
}

void RuleCompiler::ReadLists() {
  set_->lists_ = std::move(spec_.lists);
  const auto describe = [&](uint32_t entry) { return set_->lists_[entry].name; };
  for (uint32_t i = 0; i < set_->lists_.size(); ++i) {
    const ListEntry& entry = set_->lists_[i];
    // Of two equally specific entries, the one that refuses wins.
    Put(*set_->list_index_, entry.name, Read(entry.name, entry.condition), i, 0,
        /*wins_ties=*/!entry.allows, describe);
  }
}

}  // namespace tidegate
