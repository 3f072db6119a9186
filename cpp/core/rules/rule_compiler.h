// Checks a specification of rules and builds the indexes that requests are matched against: the
// work of RuleSet::Compile().
#ifndef TIDEGATE_RULES_RULE_COMPILER_H_
#define TIDEGATE_RULES_RULE_COMPILER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "rules/endpoint.h"
#include "rules/network.h"
#include "rules/rule_index.h"
#include "tidegate/rule_set.h"

namespace tidegate {

class RuleCompiler {
 public:
  RuleCompiler(RuleSetSpec spec, const RuleSet* kept, std::vector<RuleProblem>* problems)
      : spec_(std::move(spec)), kept_(kept), problems_(*problems), set_(new RuleSet) {}

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
  void CheckChargedOnce(uint32_t rule, const Rule& other);
  void ReadLimits(const std::string& where, uint32_t rule);
  void ReadOverrides();
  void KeepOverrides();
  void ReadCosts();
  void ReadLists();
  static bool MayHaveQuota(const Rule& rule);  // for a request of some tier
  // What makes the rule's dimension: the attributes that it counts by, and marks.
  absl::InlinedVector<uint32_t, 2> DimensionOf(uint32_t rule) const;
  std::string WhereRule(size_t rule) const;
  static NumberSet NumbersOf(const std::vector<std::string>& given,
                             const std::vector<std::string>& known);
  Condition Read(const std::string& where, const RuleCondition& condition);
  // Puts the condition into the index. `describe` returns the name of a target for messages.
  void Put(Index& index, const std::string& where, const Condition& condition, uint32_t target,
           uint32_t dimension, const std::function<std::string(uint32_t)>& describe);
  RuleSet::LimitRange AddLimits(const std::string& where, uint32_t rule,
                                const std::vector<Limit>& limits, size_t tier = 0);
  // Adds what the rule's reserve leaves of `limits` to requests of this priority.
  RuleSet::LimitRange AddLeft(const std::string& where, uint32_t rule,
                              const std::vector<Limit>& limits, Priority priority);

  RuleSetSpec spec_;
  // Whose overrides the set has; if null, it has those of `spec_`.
  const RuleSet* const kept_;
  std::vector<RuleProblem>& problems_;
  std::unique_ptr<RuleSet> set_;
  absl::flat_hash_map<std::string, uint32_t> rule_numbers_;
  // The ranges that AddLimits() has returned so far, by the text of the limits.
  absl::flat_hash_map<std::string, RuleSet::LimitRange> known_limits_;
};

}  // namespace tidegate

#endif  // TIDEGATE_RULES_RULE_COMPILER_H_
