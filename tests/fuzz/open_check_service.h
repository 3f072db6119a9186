// A check service without tokens, for fuzzers.
#ifndef TIDEGATE_TESTS_FUZZ_OPEN_CHECK_SERVICE_H_
#define TIDEGATE_TESTS_FUZZ_OPEN_CHECK_SERVICE_H_

#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "server/checks/check_service.h"
#include "tidegate/memory_store.h"

namespace tidegate::server {

inline constexpr int64_t kNowNs = 1'700'000'000'123'456'789;

inline CheckService& OpenCheckService() {
  static CheckService* const service = [] {
    RuleSetSpec spec;
    Rule rule;
    rule.id = "api";
    rule.by = {"user", "tenant"};
    rule.limits.push_back({"", {*Limit::Parse("100/minute")}});
    Rule by_endpoint = rule;
    by_endpoint.id = "endpoint";
    by_endpoint.by = {"endpoint"};
    by_endpoint.condition.endpoints = {"/api/{id}", "/a/**"};
    spec.rules = {std::move(rule), std::move(by_endpoint)};
    std::vector<RuleProblem> problems;
    auto rules = RuleSet::Compile(std::move(spec), &problems);
    auto store = std::make_shared<TimedStore>(*MemoryStore::Create({.capacity = 1024}),
                                              std::make_shared<ManualClock>(kNowNs));
    CheckOptions options;
    options.requires_token = false;
    return new CheckService(*RuleLimiter::Create(std::move(rules), std::move(store)),
                            std::move(options), std::make_shared<Recorder>(64));
  }();
  return *service;
}

// The answer, which the service gives at once.
inline Answer Ask(const Request& request) {
  Answer answer;
  const bool is_answered = OpenCheckService().Handle(
      request, &answer, []() -> std::unique_ptr<Pending> { std::abort(); });
  if (!is_answered) std::abort();
  return answer;
}

inline void Check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace tidegate::server

#endif  // TIDEGATE_TESTS_FUZZ_OPEN_CHECK_SERVICE_H_
