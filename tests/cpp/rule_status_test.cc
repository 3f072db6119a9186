// The status of a caller: what is left under every rule that counts by known attributes.
#include <memory>
#include <string>
#include <string_view>
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
using ::testing::IsEmpty;

// "id=key@endpoint,endpoint" for each rule that is found.
std::vector<std::string> Known(const RuleSet& set, const Values& values, size_t most = 100) {
  std::vector<std::string> found;
  for (const RuleSet::Known& one : set.MatchKnown(RequestOf(set, values), kStart, most).rules) {
    std::string text = set.rules()[one.rule].id + "=" + one.key;
    for (size_t i = 0; i < one.endpoints.size(); ++i) {
      text += (i == 0 ? "@" : ",") + one.endpoints[i];
    }
    found.push_back(std::move(text));
  }
  return found;
}

TEST(MatchKnownTest, FindsRulesWhoseKeyIsKnownAtTheirOwnEndpoints) {
  RuleSetSpec spec;
  spec.rules = {
      MakeRule("all", {"user"}, "1/second"),
      MakeRule("api", {"user"}, "2/second", {"/api/**", "/v2/**"}),
      MakeRule("each", {"user", "endpoint"}, "3/second", {"/a", "/b/{id}", "/c/*"}),
      MakeRule("everywhere", {"user", "endpoint"}, "4/second"),
      MakeRule("address", {"ip"}, "5/second"),
      MakeRule("global", {}, "6/second"),
  };
  const auto set = Compiled(std::move(spec));
  EXPECT_THAT(Known(*set, {{"user", "u"}}),
              ElementsAre("all=u", "api=u@/api/**,/v2/**", "each=u|/a@/a", "each=u|/b/{id}@/b/{id}",
                          "global=*"));
  EXPECT_THAT(Known(*set, {{"ip", "192.0.2.1"}}), ElementsAre("address=192.0.2.1", "global=*"));
  EXPECT_THAT(Known(*set, {{"user", "u"}, {"endpoint", "/c/7"}}),
              ElementsAre("all=u@/c/7", "each=u|/c/7@/c/7", "global=*@/c/7"));
}

TEST(MatchKnownTest, ReturnsTheKeysThatRequestsAreCountedBy) {
  RuleSetSpec spec;
  spec.rules = {MakeRule("each", {"user", "endpoint"}, "3/second", {"/a//x/", "/b/{id}"})};
  const auto set = Compiled(std::move(spec));
  const auto known = set->MatchKnown(RequestOf(*set, {{"user", "u"}}), kStart, 100);
  ASSERT_EQ(known.rules.size(), 2u);
  const std::string_view asked[] = {"/a/x", "/b/7"};
  for (size_t i = 0; i < 2; ++i) {
    RuleSet::Matched matched;
    set->Match(RequestOf(*set, {{"user", "u"}, {"endpoint", asked[i]}}), kStart, &matched);
    ASSERT_EQ(matched.rules.size(), 1u);
    EXPECT_EQ(known.rules[i].key, matched.rules[0].key);
  }
}

TEST(MatchKnownTest, LeavesOutRulesThatNoRequestOfTheCallerMeets) {
  RuleSetSpec spec;
  spec.tiers = {"free", "premium"};
  spec.default_tier = "free";
  Rule premium = MakeRule("premium", {"user"}, "1/second");
  premium.condition.tiers = {"premium"};
  Rule others = MakeRule("others", {"user"}, "1/second");
  Rule office = MakeRule("office", {"user"}, "1/second");
  office.condition.networks = {"10.0.0.0/8"};
  Rule bulk = MakeRule("bulk", {"user"}, "1/second");
  bulk.condition.when = {{"mode", "bulk"}};
  Rule writes = MakeRule("writes", {"user"}, "1/second", {"/w"});
  writes.condition.methods = {"PUT", "POST"};
  Rule instead = MakeRule("instead", {"tenant"}, "1/second");
  instead.replaces = {"others"};
  spec.rules = {premium, others, office, bulk, writes, instead};
  const auto set = Compiled(std::move(spec));
  EXPECT_THAT(Known(*set, {{"user", "u"}}),
              ElementsAre("others=u", "office=u", "bulk=u", "writes=u@/w"));
  EXPECT_THAT(
      Known(*set, {{"user", "u"}, {"ip", "192.0.2.1"}, {"mode", "slow"}, {"method", "GET"}}),
      ElementsAre("others=u"));
  EXPECT_THAT(Known(*set, {{"user", "u"}, {"tier", "premium"}, {"tenant", "t"}}),
              ElementsAre("premium=u", "office=u", "bulk=u", "writes=u@/w", "instead=t"));
}

TEST(MatchKnownTest, TakesTheRuleForAllOthersAndOverrides) {
  RuleSetSpec spec;
  spec.rules = {MakeRule("api", {"user"}, "1/second", {"/api"})};
  spec.otherwise = MakeRule("otherwise", {"user"}, "2/second");
  spec.overrides = {{"api", {"u"}, {*Limit::Parse("9/second")}, RuleOverride::kForever, ""}};
  const auto set = Compiled(std::move(spec));
  const auto known = set->MatchKnown(RequestOf(*set, {{"user", "u"}}), kStart, 100);
  ASSERT_EQ(known.rules.size(), 2u);
  EXPECT_EQ(set->limits()[known.rules[0].limits[0].first].ToString(), "9/second");
  EXPECT_EQ(set->rules()[known.rules[1].rule].id, "otherwise");
}

TEST(MatchKnownTest, ReturnsTheListThatTheCallerIsOn) {
  RuleSetSpec spec;
  spec.rules = {MakeRule("api", {"user"}, "1/second")};
  ListEntry blocked;
  blocked.name = "abuse";
  blocked.condition.when = {{"user", "evil"}};
  spec.lists = {blocked};
  const auto set = Compiled(std::move(spec));
  const auto known = set->MatchKnown(RequestOf(*set, {{"user", "evil"}}), kStart, 100);
  ASSERT_NE(known.listed, nullptr);
  EXPECT_EQ(known.listed->name, "abuse");
  EXPECT_THAT(known.rules, IsEmpty());
}

TEST(MatchKnownTest, FindsNoMoreRulesThanTheGivenNumber) {
  RuleSetSpec spec;
  for (int i = 0; i < 5; ++i) {
    spec.rules.push_back(
        MakeRule("r" + std::to_string(i), {"user"}, "1/second", {"/" + std::to_string(i)}));
  }
  const auto set = Compiled(std::move(spec));
  EXPECT_EQ(Known(*set, {{"user", "u"}}, 3).size(), 3u);
  EXPECT_TRUE(set->MatchKnown(RequestOf(*set, {{"user", "u"}}), kStart, 3).is_cut);
  EXPECT_FALSE(set->MatchKnown(RequestOf(*set, {{"user", "u"}}), kStart, 5).is_cut);
}

TEST(SubmitStatusTest, PeeksAtTheLimitsOfAllRulesAndChargesNothing) {
  RuleSetSpec spec;
  Rule two = MakeRule("two", {"user"}, "5/second");
  two.limits[0].limits.push_back(*Limit::Parse("9/minute"));
  Rule unlimited = MakeRule("unlimited", {"user"}, "1/second", {"/u"});
  unlimited.limits[0].limits.clear();
  spec.rules = {std::move(two), std::move(unlimited), MakeRule("one", {}, "7/hour")};
  const auto set = Compiled(std::move(spec));
  const auto limiter = *RuleLimiter::Create(
      set, std::make_shared<TimedStore>(MakeStore(), std::make_shared<ManualClock>(kStart)));
  const Request request = RequestOf(*set, {{"user", "u"}});
  ASSERT_TRUE(limiter->Hit(request, 2).allowed);
  for (int i = 0; i < 2; ++i) {
    RuleLimiter::Status status;
    const auto decision = limiter->SubmitStatus(request, &status, nullptr);
    ASSERT_TRUE(decision.has_value());
    ASSERT_EQ(status.rules.size(), 3u);
    EXPECT_EQ(status.rules[0].count, 2u);
    EXPECT_EQ(status.rules[1].count, 0u);
    EXPECT_EQ(status.rules[2].first, 2u);
    std::vector<int64_t> remaining;
    for (const Decision& outcome : status.outcomes) remaining.push_back(outcome.remaining());
    EXPECT_THAT(remaining, ElementsAre(3, 7, 5));
    EXPECT_EQ(status.outcomes[2].at_ns, kStart);
  }
  EXPECT_EQ(limiter->stats().allowed, 1);
}

}  // namespace
}  // namespace tidegate::testing
