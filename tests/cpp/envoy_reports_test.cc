// Reports of what has been used, which are charged in full (docs/service/envoy.md).
#include <memory>
#include <string>
#include <vector>

#include "envoy_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tidegate::server::envoy {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class EnvoyReportsTest : public EnvoyServiceTest {
 protected:
  // A descriptor with hits of its own.
  static std::vector<std::string> Of(const std::string& key, int hits) {
    return {key, "1", absl::StrCat(R"("hitsAddend":)", hits)};
  }

  // The limit has room once the seconds that the answer tells have passed, and no sooner.
  void ExpectRoomAfter(int seconds, const Answer& answer, const std::string& outcome) {
    EXPECT_THAT(answer.body, HasSubstr(absl::StrCat(R"("durationUntilReset":")", seconds, "s")));
    clock->AdvanceNs((seconds - 1) * kSecond);
    EXPECT_EQ(Outcome({Of("tokens", 0)}), "429 OVER_LIMIT:0");
    clock->AdvanceNs(kSecond);
    EXPECT_EQ(Outcome({Of("tokens", 0)}), outcome);
  }
};

INSTANTIATE_TEST_SUITE_P(Stores, EnvoyReportsTest, ::testing::Values(Kind::kAtOnce, Kind::kSlow),
                         [](const auto& which) {
                           return which.param == Kind::kAtOnce ? "AtOnce" : "Slow";
                         });

TEST_P(EnvoyReportsTest, ChargesHitsOfADescriptorsOwnInFull) {
  for (const bool all_or_none : {true, false}) {
    const std::string key = all_or_none ? "together" : "apart";
    Add(Domain(all_or_none), {.key = key, .limits = {"9/minute"}});
    Use();
    EXPECT_EQ(Outcome({Of(key, 5)}), "200 OK:4");
    EXPECT_EQ(Outcome({Of(key, 0)}), "200 OK:4");
    EXPECT_EQ(Outcome({Of(key, 19)}), "429 OVER_LIMIT:0");
    EXPECT_EQ(Outcome({Of(key, 0)}), "429 OVER_LIMIT:0");
    clock->AdvanceNs(60 * kSecond);  // 15 are owed: this window and most of the next
    EXPECT_EQ(Outcome({{key, "1"}}), "429 OVER_LIMIT:0");
    EXPECT_EQ(Outcome({Of(key, 0)}), "429 OVER_LIMIT:0");
    EXPECT_THAT(Ask(Body({Of(key, 0)})).body, HasSubstr(R"("durationUntilReset":"60s")"));
    clock->AdvanceNs(60 * kSecond);
    EXPECT_EQ(Outcome({Of(key, 0)}), "200 OK:3");
  }
}

TEST_P(EnvoyReportsTest, UsesOverManyWindowsWhatTheLimitAllows) {
  Use({{.key = "tokens", .limits = {"1000/minute"}}});
  int64_t used = 0;
  for (int second = 0; second < 3600; second += 5) {
    if (Ask(Body({Of("tokens", 0)})).http_status == 200) {
      used += 5000;
      Ask(Body({Of("tokens", 5000)}));
    }
    clock->AdvanceNs(5 * kSecond);
  }
  EXPECT_EQ(used, 60'000) << "61 windows and one call are the most: 65,000";
}

TEST_P(EnvoyReportsTest, SaysWhenAWindowHasRoomAgain) {
  Use({{.key = "tokens", .limits = {"9/minute"}}});
  clock->AdvanceNs(15 * kSecond);
  ExpectRoomAfter(165, Ask(Body({Of("tokens", 27)})), "200 OK:9");  // three windows
}

TEST_P(EnvoyReportsTest, ChargesABucketInFull) {
  Use({{.key = "tokens", .limits = {"60/minute burst 10"}, .algorithm = Algorithm::kTokenBucket}});
  const Answer answer = Ask(Body({Of("tokens", 30)}));
  EXPECT_EQ(Short(answer), "429 OVER_LIMIT:0");
  ExpectRoomAfter(21, answer, "200 OK:1");
}

TEST_P(EnvoyReportsTest, IsOverTheLimitOnlyBeyondIt) {
  Use({{.key = "tokens", .limits = {"9/minute"}}});
  EXPECT_EQ(Outcome({Of("tokens", 9)}), "200 OK:0");
  EXPECT_EQ(Outcome({Of("tokens", 1)}), "429 OVER_LIMIT:0");
}

TEST_P(EnvoyReportsTest, ChargesReportsWhateverElseTheRequestMeets) {
  for (const bool all_or_none : {true, false}) {
    const auto domain = Domain(all_or_none);
    const std::string tokens = all_or_none ? "tokens" : "units";
    Add(domain, {.key = tokens, .limits = {"9/minute"}});
    Add(domain, {.key = "user", .limits = {"0/minute"}});
    Use();
    EXPECT_EQ(Outcome({{"user", "1"}, Of(tokens, 5)}), "429 OVER_LIMIT:0 OK:4");
    EXPECT_EQ(Outcome({Of(tokens, 2), Of("user", 0)}), "429 OK:2 OVER_LIMIT:0");
    EXPECT_EQ(Outcome({Of(tokens, 0)}), "200 OK:2");
  }
}

// What is asked beside a report sees what the report has used.
TEST_P(EnvoyReportsTest, ChargesReportsFirst) {
  Use({{.key = "tokens", .limits = {"9/minute"}}});
  EXPECT_EQ(Outcome({{"tokens", "1"}, Of("tokens", 8)}), "200 OK:0 OK:1");
  EXPECT_EQ(Outcome({{"tokens", "1"}, Of("tokens", 8)}), "429 OVER_LIMIT:0 OVER_LIMIT:0");
}

// The hits of the request are those of every descriptor without its own, so they mark no report.
TEST_P(EnvoyReportsTest, ChargesTheHitsOfTheRequestAllOrNone) {
  Use({{.key = "tokens", .limits = {"9/minute"}}});
  const std::string asked =
      R"({"domain":"d","hitsAddend":10,"descriptors":[{"entries":[{"key":"tokens","value":"1"}]}]})";
  EXPECT_EQ(Short(Ask(asked)), "429 OVER_LIMIT:9");
  EXPECT_EQ(Outcome({Of("tokens", 0)}), "200 OK:9");
}

TEST_P(EnvoyReportsTest, LetsALimitSayWhetherHitsAreReports) {
  Use({{.key = "known", .limits = {"9/minute"}, .reports = false},
       {.key = "done", .limits = {"2/minute"}, .reports = true}});
  EXPECT_EQ(Outcome({Of("known", 10)}), "429 OVER_LIMIT:9");
  EXPECT_EQ(Outcome({Of("known", 0)}), "200 OK:9");
  EXPECT_EQ(Outcome({{"done", "1"}}), "200 OK:1");
  EXPECT_EQ(Outcome({{"done", "1"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"done", "1"}}), "429 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({Of("done", 0)}), "429 OVER_LIMIT:0");
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({Of("done", 0)}), "200 OK:1") << "the third is owed";
}

TEST_P(EnvoyReportsTest, GivesBackWhatIsOwedFirst) {
  Use({{.key = "tokens", .limits = {"9/minute"}, .reports = true}});
  EXPECT_EQ(Outcome({Of("tokens", 12)}), "429 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":2,"isNegativeHits":true)"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":2,"isNegativeHits":true)"}}), "200 OK:1");
}

TEST_P(EnvoyReportsTest, ChargesADescriptorTwiceIfItIsReportedTwice) {
  Use({{.key = "tokens", .limits = {"8/minute"}}});
  EXPECT_EQ(Outcome({Of("tokens", 5), Of("tokens", 5)}), "429 OVER_LIMIT:0 OVER_LIMIT:0");
  const Counters& counters = CountersOf("tokens");
  EXPECT_EQ(counters.total_hits, 10);
  EXPECT_EQ(counters.within_limit, 8);
  EXPECT_EQ(counters.over_limit, 2);
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({Of("tokens", 0)}), "200 OK:6");
}

TEST_P(EnvoyReportsTest, ChargesSeveralLimitsEachInFull) {
  Use({{.key = "tokens", .limits = {"9/minute", "20/hour"}}});
  const Answer first = Ask(Body({Of("tokens", 10)}));
  EXPECT_EQ(Short(first), "429 OVER_LIMIT:0");
  EXPECT_THAT(first.body, HasSubstr(R"("requestsPerUnit":9,"unit":"MINUTE")"));
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({Of("tokens", 0)}), "200 OK:8");
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({Of("tokens", 0)}), "200 OK:9");
  EXPECT_EQ(Outcome({Of("tokens", 9)}), "200 OK:0");
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({Of("tokens", 0)}), "200 OK:1") << "19 of the hour are used";
}

TEST_P(EnvoyReportsTest, ChargesTheLimitOfARequestInFull) {
  Use({{.key = "tokens", .limits = {"100/minute"}}});
  const std::string limit = R"("limit":{"requestsPerUnit":2,"unit":"MINUTE"})";
  EXPECT_EQ(Outcome({{"tokens", "1", limit + R"(,"hitsAddend":3)"}}), "429 OVER_LIMIT:0");
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({{"tokens", "1", limit + R"(,"hitsAddend":0)"}}), "200 OK:1");
}

TEST_P(EnvoyReportsTest, CountsHitsNearTheLimitOnceWhereADescriptorIsReportedTwice) {
  Use({{.key = "tokens", .limits = {"8/minute"}}});
  EXPECT_EQ(Outcome({Of("tokens", 5), Of("tokens", 5)}), "429 OVER_LIMIT:0 OVER_LIMIT:0");
  EXPECT_EQ(Counted("tokens"), "10 hits, 8 within, 2 near, 2 over, 0 in shadow");
}

TEST_P(EnvoyReportsTest, CountsHitsNearTheLimitThatBinds) {
  Use({{.key = "tokens", .limits = {"8/minute", "100/hour"}}});
  EXPECT_EQ(Outcome({Of("tokens", 7), Of("tokens", 5)}), "429 OVER_LIMIT:0 OVER_LIMIT:0");
  EXPECT_EQ(Counted("tokens"), "12 hits, 8 within, 2 near, 4 over, 0 in shadow");
}

TEST_P(EnvoyReportsTest, RefusesNothingForALimitInShadow) {
  Use({{.key = "tokens", .limits = {"8/minute"}, .shadow = true}});
  EXPECT_EQ(Outcome({Of("tokens", 10)}), "200 OK:0");
  EXPECT_EQ(Counted("tokens"), "10 hits, 8 within, 2 near, 2 over, 2 in shadow");
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({Of("tokens", 0)}), "200 OK:6");
}

TEST_P(EnvoyReportsTest, RefusesNothingInGlobalShadowMode) {
  Make({.shadow_mode = true});
  Use({{.key = "tokens", .limits = {"8/minute"}}});
  EXPECT_EQ(Outcome({Of("tokens", 10)}), "200 OVER_LIMIT:0");
  EXPECT_EQ(CountersOf("tokens").shadow_mode, 2);
  EXPECT_EQ(service->counters().shadow_mode, 1);
  EXPECT_EQ(Outcome({Of("tokens", 0)}), "200 OVER_LIMIT:0");
}

// Reports to quotas count among those that must all be exceeded, and nothing of them is given back.
TEST_P(EnvoyReportsTest, GivesBackNoReportThatQuotasRefuse) {
  Use({{.key = "one", .limits = {"4/minute"}, .quota = true},
       {.key = "two", .limits = {"9/minute"}, .quota = true},
       {.key = "user", .limits = {"9/minute"}}});
  const Answer first = Ask(Body({Of("one", 5), Of("two", 5), {"user", "1"}}));
  EXPECT_EQ(Short(first), "200 OVER_LIMIT:0 OK:4 OK:8");
  EXPECT_THAT(first.body, HasSubstr(R"("quotaModeViolations":[0])"));
  const Answer second = Ask(Body({Of("one", 5), Of("two", 5), {"user", "1"}}));
  EXPECT_EQ(Short(second), "429 OVER_LIMIT:0 OVER_LIMIT:0 OK:8");
  EXPECT_THAT(second.body, HasSubstr(R"("quotaModeViolations":[0,1])"));
  EXPECT_EQ(CountersOf("one").shadow_mode, 1) << "of the first request alone";
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:7") << "the second hit of the user was given back";
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({Of("one", 0), Of("two", 0)}), "200 OVER_LIMIT:0 OK:8");
}

TEST_P(EnvoyReportsTest, SendsMetadataOfReportsWithinTheirLimits) {
  Use({{.key = "tokens",
        .limits = {"9/minute"},
        .metadata = *Metadata::Parse(R"({"model":"large"})")}});
  EXPECT_THAT(Ask(Body({Of("tokens", 9)})).body, HasSubstr(R"("model":"large")"));
  EXPECT_THAT(Ask(Body({Of("tokens", 1)})).body, Not(HasSubstr("metadata")));
}

TEST_P(EnvoyReportsTest, CountsWhatWasNearAndOverTheLimitAndWhatIsWrittenOff) {
  Use({{.key = "tokens", .limits = {"10/minute"}}});
  Outcome({Of("tokens", 7)});
  const Counters& counters = CountersOf("tokens");
  EXPECT_EQ(counters.near_limit, 0);
  Outcome({Of("tokens", 2)});
  EXPECT_EQ(counters.near_limit, 1) << "the ninth";
  Outcome({Of("tokens", 5)});
  EXPECT_EQ(Counted("tokens"), "14 hits, 10 within, 2 near, 4 over, 0 in shadow");
  EXPECT_EQ(service->counters().written_off, 0);
  Outcome({Of("tokens", 100)});  // 4 are owed, and 100 may be
  EXPECT_EQ(service->counters().written_off, 4);
  EXPECT_EQ(counters.over_limit, 104);
  EXPECT_EQ(service->counters().over_limit, 2);
}

TEST_P(EnvoyReportsTest, ChargesNothingToALimitOfZeroAndWithoutOne) {
  Use({{.key = "banned", .limits = {"0/second"}}, {.key = "ldap", .unlimited = true}});
  EXPECT_EQ(Outcome({Of("banned", 7)}), "429 OVER_LIMIT:0");
  EXPECT_EQ(service->counters().written_off, 7);
  EXPECT_EQ(Outcome({Of("ldap", 7), Of("other", 7)}), "200 OK:4294967295 OK");
  EXPECT_EQ(CountersOf("ldap").within_limit, 7);
}

// A clock that went back is read again, and the report is charged once.
TEST_P(EnvoyReportsTest, ChargesAReportAfterTheClockWentBack) {
  Use({{.key = "tokens", .limits = {"9/minute"}}});
  EXPECT_EQ(Outcome({Of("tokens", 4)}), "200 OK:5");
  clock->AdvanceNs(-3600 * kSecond);
  EXPECT_EQ(Outcome({Of("tokens", 10)}), "429 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({Of("tokens", 0)}), "429 OVER_LIMIT:0");
}

TEST_P(EnvoyReportsTest, AnswersLateOnce) {
  if (slow == nullptr) GTEST_SKIP() << "of a store that answers later";
  Use({{.key = "tokens", .limits = {"9/minute"}}, {.key = "user", .limits = {"9/minute"}}});
  EXPECT_EQ(Outcome({Of("tokens", 4), {"user", "1"}, Of("user", 1)}), "200 OK:5 OK:7 OK:8");
  EXPECT_EQ(slow->submitted, 3);
  EXPECT_EQ(slow->flushed, 2) << "the reports, and then the hit";
}

TEST_P(EnvoyReportsTest, RecordsReportsAsARequestThatPassed) {
  Use({{.key = "user", .limits = {"9/minute"}}, {.key = "path", .limits = {"1/minute"}}});
  EXPECT_EQ(Outcome({Of("user", 12)}), "429 OVER_LIMIT:0");
  EXPECT_THAT(Recorded(), ElementsAre("1||d| 1 0 0 0 12"));
  EXPECT_EQ(Outcome({Of("user", 3), {"path", "/a"}}), "429 OVER_LIMIT:0 OK:0");
  EXPECT_THAT(Recorded(), ElementsAre("1||/a| 1 0 0 0 3"));
  EXPECT_EQ(Outcome({Of("user", 3), {"path", "/a"}}), "429 OVER_LIMIT:0 OVER_LIMIT:0");
  EXPECT_THAT(Recorded(), ElementsAre("1||/a|path 0 1 0 0 3"));
}

TEST_P(EnvoyReportsTest, ChargesReportsOfAThrottledUserTwice) {
  Use({{.key = "user", .limits = {"9/minute"}}});
  Punish("1", /*blocks=*/false);
  EXPECT_EQ(Outcome({Of("user", 3)}), "200 OK:3");
  EXPECT_EQ(Outcome({Of("user", 3)}), "429 OVER_LIMIT:0");
  EXPECT_EQ(CountersOf("user").total_hits, 6);
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({{"user", "1", R"("hitsAddend":0)"}}), "200 OK:6");
}

// What was used before the block is owed after it.
TEST_P(EnvoyReportsTest, ChargesReportsOfABlockedUser) {
  Use({{.key = "user", .limits = {"9/minute"}}, {.key = "path", .limits = {"9/minute"}}});
  Punish("1", /*blocks=*/true);
  EXPECT_EQ(Outcome({Of("user", 12), {"path", "/a"}}), "429 OVER_LIMIT:0 OK");
  EXPECT_EQ(CountersOf("user").over_limit, 3);
  EXPECT_EQ(CountersOf("path").total_hits, 0);
  EXPECT_THAT(Recorded(), ElementsAre("1||/a|anomaly:block 0 1 0 0 12"));
  EXPECT_EQ(Outcome({Of("user", 1)}), "429 OVER_LIMIT:0");
  EXPECT_THAT(Recorded(), ElementsAre("1||d| 1 0 0 0 1"));
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:4");
}

}  // namespace
}  // namespace tidegate::server::envoy
