// What Envoy's rate limit service records of callers, and how it enforces their penalties.
#include <memory>
#include <string>
#include <vector>

#include "envoy_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tidegate::server::envoy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class EnvoyCallersTest : public EnvoyServiceTest {};

INSTANTIATE_TEST_SUITE_P(Stores, EnvoyCallersTest, ::testing::Values(Kind::kAtOnce, Kind::kSlow),
                         [](const auto& which) {
                           return which.param == Kind::kAtOnce ? "AtOnce" : "Slow";
                         });

TEST_P(EnvoyCallersTest, RecordsARequestOnceUnderItsUserAndThePathOfItsEntries) {
  Use({{.key = "user", .limits = {"2/minute"}, .name = "per-user", .reports = false},
       {.key = "remote_address", .limits = {"3/minute"}, .reports = false}});
  const std::vector<std::vector<std::string>> all = {
      {"path", "/a"}, {"user", "1", R"("hitsAddend":2)"}, {"remote_address", "192.0.2.1"}};
  EXPECT_EQ(Short(Ask(Body(all))), "200 OK OK:0 OK:2");
  EXPECT_EQ(Short(Ask(Body(all))), "429 OK OVER_LIMIT:0 OK:2");
  EXPECT_THAT(Recorded(),
              ElementsAre("1|192.0.2.1|/a| 1 0 0 0 2", "1|192.0.2.1|/a|per-user 0 1 0 0 0"));
  EXPECT_EQ(Outcome({{"remote_address", "192.0.2.1", R"("hitsAddend":4)"}}), "429 OVER_LIMIT:2");
  EXPECT_THAT(Recorded(), ElementsAre("|192.0.2.1|d|remote_address 0 1 0 0 0"));
}

TEST_P(EnvoyCallersTest, RecordsARequestThatNamesNobodyUnderItsFirstDescriptor) {
  Use({{.key = "generic_key", .value = "slow", .limits = {"1/minute"}, .shadow = true}});
  EXPECT_EQ(Outcome({{"generic_key", "slow"}, {"other", ""}}), "200 OK:0 OK");
  EXPECT_EQ(Outcome({{"generic_key", "slow"}}), "200 OK:0");
  EXPECT_THAT(Recorded(), ElementsAre("descriptor:generic_key=slow||d| 2 0 0 0 2",
                                      "descriptor:generic_key=slow||d|generic_key_slow 0 0 1 0 0"));
  EXPECT_EQ(Outcome({{"generic_key", std::string(5000, 'x')}}), "200 OK");
  const auto drained = recorder->Drain();
  ASSERT_EQ(drained.size(), 1u);
  EXPECT_EQ(drained[0].user.size(), Recorder::kMostText);
}

TEST_P(EnvoyCallersTest, RecordsNeitherPeeksNorRefunds) {
  Use({{.key = "user", .limits = {"2/minute"}}});
  Outcome({{"user", "1", R"("hitsAddend":0)"}});
  Outcome({{"user", "1", R"("isNegativeHits":true)"}});
  EXPECT_THAT(Recorded(), IsEmpty());
}

TEST_P(EnvoyCallersTest, TakesTheUserFromTheConfiguredEntry) {
  Make({.user_key = "tenant"});
  Domain();
  Use();
  Outcome({{"user", "1"}, {"tenant", "t"}});
  EXPECT_THAT(Recorded(), ElementsAre("t||d| 1 0 0 0 1"));
}

TEST_P(EnvoyCallersTest, RefusesABlockedUserUntilTheEndAndChargesNothing) {
  Use({{.key = "user", .limits = {"9/minute"}}, {.key = "path", .limits = {"9/minute"}}});
  Punish("1", /*blocks=*/true);
  clock->AdvanceNs(15 * kSecond);
  const Answer refused = Ask(Body({{"path", "/a"}, {"user", "1"}}));
  EXPECT_EQ(refused.http_status, 429);
  EXPECT_EQ(
      refused.body,
      R"({"overallCode":"OVER_LIMIT","statuses":[{"code":"OK"},{"code":"OVER_LIMIT",)"
      R"("currentLimit":{"requestsPerUnit":0,"name":"anomaly:block"},"limitRemaining":0,"durationUntilReset":"45s"}]})");
  EXPECT_THAT(Recorded(), ElementsAre("1||/a|anomaly:block 0 1 0 0 0"));
  EXPECT_EQ(service->counters().blocked.load(), 1);
  EXPECT_EQ(Outcome({{"path", "/a"}, {"user", "2"}}), "200 OK:8 OK:8");
  EXPECT_EQ(Outcome({{"user", "1", R"("isNegativeHits":true)"}}), "200 OK:9") << "it is a refund";
  clock->AdvanceNs(45 * kSecond);
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:8");
}

TEST_P(EnvoyCallersTest, CountsTheHitsOfAThrottledUserTwiceByItsOwnLimitsAlone) {
  Use({{.key = "user", .limits = {"5/minute"}}, {.key = "path", .limits = {"9/minute"}}});
  Punish("1", /*blocks=*/false);
  EXPECT_EQ(Outcome({{"path", "/a"}, {"user", "1"}}), "200 OK:8 OK:3");
  EXPECT_EQ(Outcome({{"path", "/a"}, {"user", "1"}}), "200 OK:7 OK:1");
  EXPECT_EQ(Outcome({{"path", "/a"}, {"user", "1"}}), "429 OK:7 OVER_LIMIT:1");
  EXPECT_EQ(Outcome({{"user", "2"}}), "200 OK:4");
  EXPECT_EQ(service->counters().throttled.load(), 3);
  EXPECT_THAT(Recorded(),
              ElementsAre("1||/a| 2 0 0 0 2", "1||/a|user 0 1 0 0 0", "2||d| 1 0 0 0 1"));
}

TEST_P(EnvoyCallersTest, DoesNotTakeAUserForTheHolderOfAKey) {
  Use({{.key = "user", .limits = {"9/minute"}}});
  Punish("key:sha256-79545151ff56b349", /*blocks=*/true);
  EXPECT_EQ(Outcome({{"user", "key:sha256-79545151ff56b349"}}), "200 OK:8");
  EXPECT_THAT(Recorded(), ElementsAre("user:key:sha256-79545151ff56b349||d| 1 0 0 0 1"));
  Punish("user:key:sha256-79545151ff56b349", /*blocks=*/false);
  EXPECT_EQ(Outcome({{"user", "key:sha256-79545151ff56b349"}}), "200 OK:6");
}

TEST_P(EnvoyCallersTest, LetsAThrottledUserPassALimitOfOne) {
  Use({{.key = "user", .limits = {"1/minute"}}});
  Punish("1", /*blocks=*/false);
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}}), "429 OVER_LIMIT:0");
}

}  // namespace
}  // namespace tidegate::server::envoy
