// tidegate._core.RuleSet: compiled rules, from fields that the package has read and checked.
#include "tidegate/rule_set.h"

#include <pybind11/stl.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/gil.h"
#include "rules/rule_set_bytes.h"

namespace tidegate::python {
namespace {

template <typename T>
T Get(const py::dict& given, const char* name) {
  return given[name].cast<T>();
}

using Pairs = std::vector<std::pair<std::string, std::string>>;
using LimitsByTier = std::vector<std::pair<std::string, std::vector<Limit>>>;

RuleCondition ConditionFrom(const py::dict& given) {
  RuleCondition condition;
  condition.endpoints = Get<std::vector<std::string>>(given, "endpoints");
  condition.methods = Get<std::vector<std::string>>(given, "methods");
  condition.tiers = Get<std::vector<std::string>>(given, "tiers");
  condition.networks = Get<std::vector<std::string>>(given, "networks");
  condition.when = Get<Pairs>(given, "when");
  return condition;
}

Rule RuleFrom(const py::dict& given) {
  Rule rule;
  rule.id = Get<std::string>(given, "id");
  rule.by = Get<std::vector<std::string>>(given, "by");
  rule.condition = ConditionFrom(given);
  for (auto& [tier, limits] : Get<LimitsByTier>(given, "limits")) {
    rule.limits.push_back({tier, std::move(limits)});
  }
  rule.replaces = Get<std::vector<std::string>>(given, "replaces");
  rule.also = Get<bool>(given, "also");
  rule.shadow = Get<bool>(given, "shadow");
  rule.counts_requests = Get<bool>(given, "counts_requests");
  rule.counter = Get<std::string>(given, "counter");
  const auto carry_over = Get<std::string>(given, "carry_over");
  rule.carry_over = carry_over == "proportional" ? CarryOver::kShare : CarryOver::kUnits;
  rule.resets = carry_over == "reset";
  rule.reserve = Get<std::array<int, kPriorities>>(given, "reserve");
  return rule;
}

int64_t EndFrom(const py::dict& given) {
  const py::object until_ns = given["until_ns"];
  return until_ns.is_none() ? RuleOverride::kForever : until_ns.cast<int64_t>();
}

RuleOverride OverrideFrom(const py::dict& given) {
  RuleOverride result;
  result.rule = Get<std::string>(given, "rule");
  result.key = Get<std::vector<std::string>>(given, "key");
  result.limits = Get<std::vector<Limit>>(given, "limits");
  result.from_ns = Get<int64_t>(given, "from_ns");
  result.until_ns = EndFrom(given);
  result.reason = Get<std::string>(given, "reason");
  return result;
}

// Called for each item: releases the GIL after every few items, so that requests go on.
void PauseAtTimes(int* items) {
  constexpr int kItems = 128;
  if (++*items % kItems == 0) {
    WithoutGil([] { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
  }
}

RuleSetSpec SpecFrom(const py::dict& given) {
  int items = 0;
  RuleSetSpec spec;
  spec.tiers = Get<std::vector<std::string>>(given, "tiers");
  spec.default_tier = Get<std::string>(given, "default_tier");
  for (const py::handle rule : given["rules"]) {
    PauseAtTimes(&items);
    spec.rules.push_back(RuleFrom(rule.cast<py::dict>()));
  }
  if (!given["otherwise"].is_none()) spec.otherwise = RuleFrom(given["otherwise"]);
  for (const py::handle each : given["overrides"]) {
    PauseAtTimes(&items);
    spec.overrides.push_back(OverrideFrom(each.cast<py::dict>()));
  }
  for (const py::handle each : given["costs"]) {
    const auto cost = each.cast<py::dict>();
    spec.costs.push_back({ConditionFrom(cost), Get<int64_t>(cost, "cost"),
                          *ParsePriority(Get<std::string>(cost, "priority")),
                          Get<bool>(cost, "is_estimate"),
                          Get<std::vector<std::pair<std::string, int64_t>>>(cost, "usage")});
  }
  for (const py::handle each : given["lists"]) {
    const auto entry = each.cast<py::dict>();
    spec.lists.push_back({Get<std::string>(entry, "name"), Get<bool>(entry, "allows"),
                          ConditionFrom(entry), Get<int64_t>(entry, "from_ns"), EndFrom(entry)});
  }
  return spec;
}

// Returns (rule set, problems). The rule set is None if there are problems; each problem is a
// (where, message).
py::tuple CompileSpec(RuleSetSpec spec, const RuleSet* kept = nullptr) {
  std::vector<RuleProblem> problems;
  // A large set takes long to compile; requests go on meanwhile.
  std::shared_ptr<const RuleSet> set = WithoutGil([&] {
    return kept == nullptr ? RuleSet::Compile(std::move(spec), &problems)
                           : RuleSet::CompileKeepingOverrides(std::move(spec), *kept, &problems);
  });
  py::list shown;
  for (const RuleProblem& problem : problems) {
    shown.append(py::make_tuple(problem.where, problem.message));
  }
  return py::make_tuple(std::const_pointer_cast<RuleSet>(set), shown);
}

py::tuple Compile(const py::dict& given, const RuleSet* kept) {
  return CompileSpec(SpecFrom(given), kept);
}

// The specification as bytes, for _compile_bytes() of another process of this build.
py::bytes SpecBytes(const py::dict& given) { return BytesOf(SpecFrom(given)); }

py::tuple CompileBytes(const py::bytes& given) {
  const std::string_view bytes = given;
  auto spec = WithoutGil([bytes] { return SpecOf(bytes); });
  if (!spec.has_value()) throw py::value_error("the bytes are not those of a specification");
  return CompileSpec(*std::move(spec));
}

}  // namespace

void RegisterRuleSet(py::module_& m) {
  py::class_<RuleSet, std::shared_ptr<RuleSet>>(m, "RuleSet")
      .def_static("_compile", &Compile, py::arg("spec"), py::arg("kept") = py::none())
      .def_static("_spec_bytes", &SpecBytes, py::arg("spec"))
      .def_static("_compile_bytes", &CompileBytes, py::arg("bytes"))
      .def_property_readonly("_attributes", &RuleSet::attribute_names)
      .def_property_readonly("_override_bytes", &RuleSet::override_bytes)
      .def_property_readonly("_rule_ids", [](const RuleSet& set) {
        std::vector<std::string> ids;
        for (const Rule& rule : set.rules()) ids.push_back(rule.id);
        return ids;
      });
}

}  // namespace tidegate::python
