#include "tidegate/rule_set.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rule_testing.h"
#include "testing.h"
#include "tidegate/rule_limiter.h"

namespace tidegate::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ProblemOf(RuleSetSpec spec) {
  std::vector<RuleProblem> problems;
  EXPECT_EQ(RuleSet::Compile(std::move(spec), &problems), nullptr);
  return problems.empty() ? "" : problems[0].where + ": " + problems[0].message;
}

std::vector<std::string> Matching(const RuleSet& set, const Values& values) {
  RuleSet::Matched matched;
  set.Match(RequestOf(set, values), kStart, &matched);
  std::vector<std::string> found;
  for (const RuleSet::Applied& applied : matched.rules) {
    found.push_back(set.rules()[applied.rule].id + "=" + std::string(applied.key));
  }
  return found;
}

TEST(RuleSetTest, CountsByAMethodInUpperCase) {
  RuleSetSpec spec;
  spec.rules = {MakeRule("one", {"method"}, "1/second"),
                MakeRule("two", {"method", "user"}, "1/second")};
  const std::string most(100, 'm');
  const auto set = Compiled(spec);
  for (const char* const given : {"get", "gEt", "GET"}) {
    EXPECT_THAT(Matching(*set, {{"method", given}, {"user", "u"}}),
                ElementsAre("one=GET", "two=GET|u"));
  }
  const std::string upper(100, 'M');
  EXPECT_THAT(Matching(*set, {{"method", most}, {"user", "u"}}),
              ElementsAre("one=" + upper, "two=" + upper + "|u"));
}

TEST(RuleSetTest, FindsTheMostSpecificEndpointOfEachDimension) {
  RuleSetSpec spec;
  spec.rules = {
      MakeRule("any", {"user"}, "1/second"),
      MakeRule("below", {"user"}, "1/second", {"/api/**"}),
      MakeRule("part", {"user"}, "1/second", {"/api/*"}),
      MakeRule("exact", {"user"}, "1/second", {"/api/posts"}),
      MakeRule("named", {"user"}, "1/second", {"/users/{id}/posts"}),
      MakeRule("all", {}, "1/second"),
  };
  const auto set = Compiled(spec);
  const auto at = [&](std::string_view endpoint) {
    return Matching(*set, {{"user", "u"}, {"endpoint", endpoint}});
  };
  EXPECT_THAT(at("/api/posts"), ElementsAre("exact=u", "all=*"));
  EXPECT_THAT(at("//api/posts/"), ElementsAre("exact=u", "all=*"));
  EXPECT_THAT(at("/api/x"), ElementsAre("part=u", "all=*"));
  EXPECT_THAT(at("/api/x/y"), ElementsAre("below=u", "all=*"));
  EXPECT_THAT(at("/api"), ElementsAre("below=u", "all=*"));
  EXPECT_THAT(at("/users/7/posts"), ElementsAre("named=u", "all=*"));
  EXPECT_THAT(Matching(*set, {{"user", "u"}}), ElementsAre("any=u", "all=*"));
  EXPECT_THAT(Matching(*set, {{"endpoint", "/api/posts"}}), ElementsAre("all=*"));
}

TEST(RuleSetTest, KeepsEachKeyIfTheirMemoryGrows) {
  RuleSetSpec spec;
  for (int i = 0; i < 8; ++i) {
    const std::string name = "a" + std::to_string(i);
    spec.rules.push_back(MakeRule("r" + std::to_string(i), {"user", name}, "1/second"));
  }
  const auto set = Compiled(spec);
  const std::string user(100, 'u');
  std::vector<std::pair<std::string_view, std::string_view>> values = {{"user", user}};
  std::vector<std::string> names;
  for (int i = 0; i < 8; ++i) names.push_back("a" + std::to_string(i));
  for (const std::string& name : names) values.emplace_back(name, name);
  std::vector<std::string> expected;
  for (int i = 0; i < 8; ++i) {
    expected.push_back("r" + std::to_string(i) + "=" + user + "|a" + std::to_string(i));
  }
  EXPECT_THAT(Matching(*set, values), ::testing::UnorderedElementsAreArray(expected));
}

TEST(RuleSetTest, ReportsEachProblemWithItsPlace) {
  RuleSetSpec spec;
  spec.rules = {MakeRule("a", {"user"}, "1/second"), MakeRule("b", {"user"}, "2/second")};
  EXPECT_THAT(ProblemOf(spec), HasSubstr("rules[1]: meets the same requests as the rule 'a'"));
  spec.rules = {MakeRule("a", {"user"}, "1/second"), MakeRule("a", {"ip"}, "2/second")};
  EXPECT_THAT(ProblemOf(spec), HasSubstr("rules[1].id"));
  spec.rules = {MakeRule("a", {"user"}, "1/second", {"/a/**/b"})};
  EXPECT_THAT(ProblemOf(spec), HasSubstr("'**' before its end"));
  spec.rules = {MakeRule("a", {"user"}, "1/second", {"/a/x*"})};
  EXPECT_THAT(ProblemOf(spec), HasSubstr("for a whole part"));
  spec.rules = {MakeRule("a", {"user"}, "1/second")};
  spec.overrides = {{"b", {"u"}, {*Limit::Parse("1/hour")}, RuleOverride::kForever, ""}};
  EXPECT_THAT(ProblemOf(spec), HasSubstr("overrides[0].rule: there is no rule 'b'"));
}

TEST(RuleSetTest, RefusesEquallySpecificConditionsThatOneRequestMayMeet) {
  RuleSetSpec spec;
  spec.rules = {MakeRule("a", {"user"}, "1/second"), MakeRule("b", {"user"}, "2/second")};
  spec.rules[0].condition.when = {{"region", "eu"}, {"app", "x"}};
  spec.rules[1].condition.when = {{"plan", "p"}, {"app", "x"}};
  EXPECT_THAT(ProblemOf(spec), HasSubstr("meets the same requests"));
  spec.rules[1].condition.when = {{"plan", "p"}, {"app", "y"}};
  EXPECT_NE(Compiled(spec), nullptr);
}

TEST(RuleSetTest, AnOverrideTakesLessThanAHundredBytes) {
  RuleSetSpec spec;
  spec.rules = {MakeRule("a", {"user"}, "1/second")};
  const Limit more = *Limit::Parse("100/second");
  for (int i = 0; i < 100'000; ++i) {
    spec.overrides.push_back({"a", {"user" + std::to_string(i)}, {more}, kStart + i, "contract"});
  }
  const auto set = Compiled(std::move(spec));
  EXPECT_EQ(set->overrides(), 100'000U);
  EXPECT_LE(set->override_bytes(), 100'000U * 100U);
}

class RuleLimiterTest : public ::testing::Test {
 protected:
  static RuleSetSpec Spec(int64_t user, int64_t all) {
    RuleSetSpec spec;
    spec.rules = {MakeRule("user", {"user"}, std::to_string(user) + "/hour"),
                  MakeRule("all", {}, std::to_string(all) + "/hour")};
    return spec;
  }

  std::shared_ptr<RuleLimiter> Make(RuleSetSpec spec, const RuleLimiter* before = nullptr) {
    return *RuleLimiter::Create(Compiled(std::move(spec)), timed_, "tg", before);
  }

  const std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>(kStart);
  const std::shared_ptr<TimedStore> timed_ = std::make_shared<TimedStore>(MakeStore(), clock_);
};

TEST_F(RuleLimiterTest, ChargesAllRulesOrNone) {
  const auto limiter = Make(Spec(2, 100));
  const Request request = RequestOf(limiter->rules(), {{"user", "u"}});
  EXPECT_TRUE(limiter->Hit(request).allowed);
  EXPECT_TRUE(limiter->Hit(request).allowed);
  for (int i = 0; i < 10; ++i) {
    const Decision refused = limiter->Hit(request);
    EXPECT_FALSE(refused.allowed);
    EXPECT_EQ(refused.limit->rule(), "user");
  }
  Outcomes outcomes;
  limiter->Peek(request, 1, &outcomes);
  EXPECT_EQ(outcomes[1].remaining(), 98);
  EXPECT_EQ(limiter->rule_stats()[0].refused, 10);
  EXPECT_EQ(limiter->rule_stats()[1].allowed, 2);
}

TEST_F(RuleLimiterTest, KeepsUsageIfANumberChanges) {
  const auto before = Make(Spec(2, 100));
  const Request request = RequestOf(before->rules(), {{"user", "u"}});
  EXPECT_TRUE(before->Hit(request).allowed);
  EXPECT_TRUE(before->Hit(request).allowed);
  const auto after = Make(Spec(3, 100), before.get());
  EXPECT_TRUE(after->Hit(request).allowed);
  EXPECT_FALSE(after->Hit(request).allowed);
  EXPECT_EQ(after->rule_stats()[0].allowed, 3);
}

TEST_F(RuleLimiterTest, NeverExceedsALimitWhileRulesAreReplaced) {
  constexpr int kThreads = 4;
  std::shared_ptr<RuleLimiter> limiter = Make(Spec(1'000'000, 500));
  std::mutex mu;
  std::atomic<int> allowed{0};
  std::atomic<bool> done{false};
  std::thread churn([&] {
    for (int i = 0; i < 50; ++i) {
      auto next = Make(Spec(1'000'000 + i, i % 2 == 0 ? 400 : 500), limiter.get());
      const std::lock_guard lock(mu);
      limiter = std::move(next);
    }
    done = true;
  });
  RunThreads(kThreads, [&](int) {
    for (int i = 0; i < 2'000 || !done; ++i) {
      std::shared_ptr<RuleLimiter> now;
      {
        const std::lock_guard lock(mu);
        now = limiter;
      }
      if (now->Hit(RequestOf(now->rules(), {{"user", "u"}})).allowed) ++allowed;
    }
  });
  churn.join();
  EXPECT_LE(allowed, 500);
  EXPECT_GE(allowed, 400);
}

}  // namespace
}  // namespace tidegate::testing
