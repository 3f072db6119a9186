// Rules and requests for the tests of rules.
#ifndef TIDEGATE_TESTS_CPP_RULE_TESTING_H_
#define TIDEGATE_TESTS_CPP_RULE_TESTING_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tidegate/rule_set.h"

namespace tidegate::testing {

// The names and values of attributes.
using Values = std::vector<std::pair<std::string_view, std::string_view>>;

inline Rule MakeRule(std::string id, std::vector<std::string> by, std::string_view limit,
                     std::vector<std::string> endpoints = {}) {
  Rule rule;
  rule.id = std::move(id);
  rule.by = std::move(by);
  rule.condition.endpoints = std::move(endpoints);
  rule.limits.push_back({"", {*Limit::Parse(limit)}});
  return rule;
}

inline std::shared_ptr<const RuleSet> Compiled(RuleSetSpec spec) {
  std::vector<RuleProblem> problems;
  auto set = RuleSet::Compile(std::move(spec), &problems);
  for (const RuleProblem& problem : problems) ADD_FAILURE() << problem.where << problem.message;
  return set;
}

inline Request RequestOf(const RuleSet& set, const Values& values) {
  Request request(set.attributes());
  for (const auto& [name, value] : values) {
    const int number = set.AttributeNumber(name);
    if (number >= 0) request[static_cast<size_t>(number)] = value;
  }
  return request;
}

}  // namespace tidegate::testing

#endif  // TIDEGATE_TESTS_CPP_RULE_TESTING_H_
