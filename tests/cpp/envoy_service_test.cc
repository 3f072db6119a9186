// The answers of Envoy's rate limit service, on a store that decides at once and on one that
// answers later.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "envoy_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "wrapped_store.h"

namespace tidegate::server::envoy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

INSTANTIATE_TEST_SUITE_P(Stores, EnvoyServiceTest, ::testing::Values(Kind::kAtOnce, Kind::kSlow),
                         [](const auto& which) {
                           return which.param == Kind::kAtOnce ? "AtOnce" : "Slow";
                         });

TEST_P(EnvoyServiceTest, AnswersWithTheLimitWhatRemainsAndWhenItIsReset) {
  Use({{.key = "user", .limits = {"2/minute"}, .name = "per-user"}});
  clock->AdvanceNs(15 * kSecond);
  const Answer first = Ask(Body({{"user", "1"}}));
  EXPECT_EQ(first.http_status, 200);
  EXPECT_EQ(
      first.body,
      R"({"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"requestsPerUnit":2,)"
      R"("unit":"MINUTE","name":"per-user"},"limitRemaining":1,"durationUntilReset":"45s"}]})");
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:0");
  const Answer third = Ask(Body({{"user", "1"}}));
  EXPECT_EQ(third.http_status, 429);
  EXPECT_THAT(third.body, AllOf(HasSubstr(R"("overallCode":"OVER_LIMIT")"),
                                HasSubstr(R"("durationUntilReset":"45s")")));
  EXPECT_EQ(Outcome({{"user", "2"}}), "200 OK:1");
  clock->AdvanceNs(45 * kSecond);
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:1");
}

TEST_P(EnvoyServiceTest, ChargesAllDescriptorsOrNone) {
  Use({{.key = "user", .limits = {"5/minute"}}, {.key = "ip", .limits = {"1/minute"}}});
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}, {"none", ""}}), "200 OK:4 OK:0 OK");
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}}), "429 OK:4 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "b"}}), "200 OK:3 OK:0");
  if (slow != nullptr) {
    EXPECT_EQ(slow->submitted, 3);
  }
}

TEST_P(EnvoyServiceTest, ChargesEachDescriptorOnItsOwnIfConfigured) {
  const auto domain = Domain(/*all_or_none=*/false);
  Add(domain, {.key = "user", .limits = {"5/minute"}});
  Add(domain, {.key = "ip", .limits = {"1/minute"}});
  Use();
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}}), "200 OK:4 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}}), "429 OK:3 OVER_LIMIT:0");
  Make({.all_or_none = false});
  tree = std::make_shared<DescriptorTree>();
  const auto again = *tree->AddDomain({.name = "d"});
  Add(again, {.key = "user", .limits = {"5/minute"}});
  Add(again, {.key = "ip", .limits = {"1/minute"}});
  Use();
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}}), "429 OK:2 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, UsesUpWhatIsLeftOfALimitThatRefusesADescriptorOnItsOwn) {
  Add(Domain(/*all_or_none=*/false),
      {.key = "tokens", .limits = {"9/minute", "99/hour"}, .reports = false});
  Use();
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":5)"}}), "200 OK:4");
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":6)"}}), "429 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":0)"}}), "429 OVER_LIMIT:0");
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":0)"}}), "200 OK:9");
}

// A clock that went back is read again, and what is left is used up all the same.
TEST_P(EnvoyServiceTest, UsesUpWhatIsLeftAfterTheClockWentBack) {
  Add(Domain(/*all_or_none=*/false), {.key = "tokens", .limits = {"9/minute"}, .reports = false});
  Use();
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":4)"}}), "200 OK:5");
  clock->AdvanceNs(-3600 * kSecond);
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":10)"}}), "429 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":0)"}}), "429 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, HasSeveralLimitsOnOneKey) {
  Use({{.key = "user", .limits = {"2/second", "3/minute"}}});
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:1");
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}}), "429 OVER_LIMIT:0");
  clock->AdvanceNs(kSecond);
  const Answer fourth = Ask(Body({{"user", "1"}}));
  EXPECT_THAT(fourth.body, HasSubstr(R"("requestsPerUnit":3,"unit":"MINUTE")"));
  EXPECT_EQ(Short(fourth), "200 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}}), "429 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, CountsHitsPeeksAndRefunds) {
  Use({{.key = "user", .limits = {"10/minute"}, .reports = false}});
  EXPECT_EQ(Outcome({{"user", "1", R"("hitsAddend":4)"}}), "200 OK:6");
  EXPECT_EQ(Outcome({{"user", "1", R"("hitsAddend":0)"}}), "200 OK:6");
  EXPECT_EQ(Outcome({{"user", "1", R"("hitsAddend":7)"}}), "429 OVER_LIMIT:6");
  EXPECT_EQ(Outcome({{"user", "1", R"("hitsAddend":3,"isNegativeHits":true)"}}), "200 OK:9");
  EXPECT_EQ(Outcome({{"user", "1", R"("hitsAddend":99,"isNegativeHits":true)"}}), "200 OK:10");
  EXPECT_EQ(Outcome({{"user", "1", R"("hitsAddend":10)"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"user", "1", R"("hitsAddend":0)"}}), "429 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"user", "1", R"("isNegativeHits":true)"}}), "200 OK:1");
}

TEST_P(EnvoyServiceTest, TakesTheHitsOfTheRequestForEachDescriptor) {
  Use({{.key = "user", .limits = {"10/minute"}}});
  EXPECT_EQ(Short(Ask(R"({"domain":"d","hitsAddend":3,"descriptors":[
                          {"entries":[{"key":"user","value":"1"}]},
                          {"entries":[{"key":"user","value":"2"}],"hitsAddend":5}]})")),
            "200 OK:7 OK:5");
}

TEST_P(EnvoyServiceTest, ChargesNothingBesideAPeekThatIsOverItsLimit) {
  Use({{.key = "tokens", .limits = {"1/minute"}}, {.key = "user", .limits = {"5/minute"}}});
  EXPECT_EQ(Outcome({{"tokens", "1"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}, {"tokens", "1", R"("hitsAddend":0)"}}),
            "429 OK:5 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"user", "1"}, {"tokens", "2", R"("hitsAddend":0)"}}), "200 OK:4 OK:1");
  EXPECT_EQ(
      Outcome({{"user", "1", R"("isNegativeHits":true)"}, {"tokens", "1", R"("hitsAddend":0)"}}),
      "429 OK:4 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, ChargesADescriptorTwiceIfItIsGivenTwice) {
  Use({{.key = "user", .limits = {"3/minute"}}});
  EXPECT_EQ(Outcome({{"user", "1"}, {"user", "1"}}), "200 OK:1 OK:1");
  EXPECT_EQ(Outcome({{"user", "1"}, {"user", "1"}}), "429 OVER_LIMIT:1 OVER_LIMIT:1");
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:0");
}

TEST_P(EnvoyServiceTest, HonoursTheLimitOfARequest) {
  Use({{.key = "user", .limits = {"100/minute"}}});
  const std::string limit = R"("limit":{"requestsPerUnit":2,"unit":"MINUTE"})";
  EXPECT_EQ(Outcome({{"user", "1", limit}}), "200 OK:1");
  EXPECT_EQ(Outcome({{"other", "1", limit}}), "200 OK:1");
  EXPECT_EQ(Outcome({{"user", "1", limit}}), "200 OK:0");
  const Answer third = Ask(Body({{"user", "1", limit}}));
  EXPECT_EQ(third.http_status, 429);
  EXPECT_THAT(third.body, HasSubstr(R"("requestsPerUnit":2,"unit":"MINUTE")"));
  EXPECT_EQ(CountersOf("user").total_hits, 3);
}

TEST_P(EnvoyServiceTest, TakesTheStricterOfTwoLimitsOfOneCount) {
  Use({{.key = "user", .limits = {"9/minute"}}});
  const std::string limit = R"("limit":{"requestsPerUnit":2,"unit":"MINUTE"})";
  EXPECT_EQ(Outcome({{"user", "1"}, {"user", "1", limit}}), "200 OK:0 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}, {"user", "1", limit}}), "429 OVER_LIMIT:0 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, NeverRefusesForALimitInShadow) {
  Use({{.key = "user", .limits = {"1/minute"}, .shadow = true},
       {.key = "ip", .limits = {"9/minute"}}});
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}}), "200 OK:0 OK:8");
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}}), "200 OK:0 OK:7");
  EXPECT_EQ(Counted("user"), "2 hits, 1 within, 1 near, 1 over, 1 in shadow");
}

TEST_P(EnvoyServiceTest, RefusesOnlyIfAllQuotasAreExceeded) {
  Use({{.key = "user", .limits = {"9/minute"}},
       {.key = "model", .limits = {"1/minute"}, .quota = true},
       {.key = "other", .limits = {"3/minute"}, .quota = true}});
  const std::string asked = Body({{"user", "1"}, {"model", "m"}, {"other", "o"}});
  const Answer first = Ask(asked);
  EXPECT_THAT(first.body, HasSubstr(R"("dynamicMetadata":{"quotaModeEnabled":true})"));
  const Answer second = Ask(asked);
  EXPECT_EQ(Short(second), "200 OK:7 OVER_LIMIT:0 OK:1");
  EXPECT_THAT(second.body,
              AllOf(HasSubstr(R"("overallCode":"OK")"), HasSubstr(R"("quotaModeViolations":[1])")));
  EXPECT_THAT(Ask(Body({{"user", "1"}})).body, Not(HasSubstr("quotaMode")));
  EXPECT_EQ(Short(Ask(asked)), "200 OK:5 OVER_LIMIT:0 OK:0");
  // The user is not charged for what the quotas refuse.
  EXPECT_EQ(Short(Ask(asked)), "429 OK:5 OVER_LIMIT:0 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:4");
  EXPECT_EQ(CountersOf("model").shadow_mode, 2);
  EXPECT_EQ(CountersOf("other").shadow_mode, 0);
}

TEST_P(EnvoyServiceTest, RefusesNothingInGlobalShadowMode) {
  Make({.shadow_mode = true});
  Use({{.key = "user", .limits = {"1/minute"}}});
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OVER_LIMIT:0");
  EXPECT_EQ(service->counters().shadow_mode, 1);
}

TEST_P(EnvoyServiceTest, LeavesOutALimitThatAnotherReplaces) {
  Use({{.key = "read", .limits = {"1/minute"}, .name = "reads"},
       {.key = "hot", .limits = {"3/minute"}, .replaces = {"reads"}}});
  EXPECT_EQ(Outcome({{"read", "1"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"read", "1"}, {"hot", "1"}}), "200 OK OK:2");
  EXPECT_EQ(Outcome({{"read", "1"}}), "429 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, ReportsThatADescriptorIsUnlimited) {
  Use({{.key = "ldap", .unlimited = true}});
  const Answer answer = Ask(Body({{"ldap", "1"}}));
  EXPECT_EQ(Short(answer), "200 OK:4294967295");
  EXPECT_THAT(answer.body, Not(HasSubstr("currentLimit")));
  EXPECT_EQ(CountersOf("ldap").within_limit, 1);
}

TEST_P(EnvoyServiceTest, RefusesEverythingAtALimitOfZero) {
  Use({{.key = "banned", .limits = {"0/second"}}});
  EXPECT_EQ(Outcome({{"banned", "1"}}), "429 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, LetsAnUnknownDomainPassAndCountsIt) {
  EXPECT_EQ(Outcome({{"user", "1", R"("limit":{"requestsPerUnit":0,"unit":"DAY"})"}}), "200 OK");
  EXPECT_EQ(service->counters().unknown_domain, 1);
  EXPECT_EQ(service->counters().no_limit, 1);
}

TEST_P(EnvoyServiceTest, KeepsUsageAndCountersWhenTheTreeChanges) {
  Use({{.key = "user", .limits = {"5/minute"}}});
  EXPECT_EQ(Outcome({{"user", "1", R"("hitsAddend":4)"}}), "200 OK:1");
  const auto domain = Domain();
  Add(domain, {.key = "user", .value = "1", .limits = {"7/minute"}});
  Add(domain, {.key = "user", .limits = {"5/minute"}});
  Use();
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:2");
  EXPECT_EQ(CountersOf("user").total_hits, 4);
  EXPECT_EQ(CountersOf("user_1").total_hits, 1);
  Domain();
  Use();
  for (const Metrics::Row& row : service->metrics().rows()) EXPECT_NE(row.domain, "d") << row.path;
}

TEST_P(EnvoyServiceTest, CountsHitsNearAndOverTheLimit) {
  Use({{.key = "user", .limits = {"10/minute"}}});
  for (int i = 0; i < 12; ++i) Outcome({{"user", "1"}});
  EXPECT_EQ(Counted("user"), "12 hits, 10 within, 2 near, 2 over, 0 in shadow");
  EXPECT_EQ(service->counters().requests, 12);
  EXPECT_EQ(service->counters().over_limit, 2);
}

TEST_P(EnvoyServiceTest, BoundsTheMetricsThatRequestsName) {
  Use({{.key = "user", .limits = {"10/minute"}, .detailed_metric = true}});
  const int most = Metrics::kMostOfRequests;
  if (slow == nullptr) {
    for (int i = 0; i < most + 5; ++i) Outcome({{"user", std::to_string(i)}});
    EXPECT_EQ(CountersOf("user").total_hits, 5);
    EXPECT_LE(rows.size(), Metrics::kMostOfRequests + 2);
  } else {
    Outcome({{"user", "7"}});
  }
  EXPECT_EQ(CountersOf("user_7").total_hits, 1);
}

TEST_P(EnvoyServiceTest, SendsHeadersOfTheClosestLimitIfConfigured) {
  Make({.response_headers = true});
  Use({{.key = "user", .limits = {"5/minute"}}, {.key = "ip", .limits = {"3/hour"}}});
  clock->AdvanceNs(1);
  const Answer answer = Ask(Body({{"user", "1"}, {"ip", "a"}}));
  EXPECT_THAT(answer.body, HasSubstr(R"("responseHeadersToAdd":[{"key":"X-RateLimit-Limit",)"
                                     R"("value":"3"},{"key":"X-RateLimit-Remaining","value":"2"},)"
                                     R"({"key":"X-RateLimit-Reset","value":"3600"}])"));
  EXPECT_THAT(answer.headers, ::testing::Contains(std::make_pair(std::string("x-ratelimit-limit"),
                                                                 std::string("3"))));
}

TEST_P(EnvoyServiceTest, ReportsWhenABucketAllowsTheNextHit) {
  Use({{.key = "user", .limits = {"60/minute burst 2"}, .algorithm = Algorithm::kTokenBucket}});
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:1");
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:0");
  EXPECT_THAT(Ask(Body({{"user", "1"}})).body, HasSubstr(R"("durationUntilReset":"1s")"));
}

TEST_P(EnvoyServiceTest, AnswersGrpcInProtobuf) {
  Use({{.key = "user", .limits = {"1/minute"}}});
  Request request;
  request.method = "POST";
  request.path = EnvoyService::kMethod;
  request.is_grpc = true;
  const std::string body =
      std::string("\x0a\x01") + "d" + "\x12\x0b" + "\x0a\x09" + "\x0a\x04user" + "\x12\x01" + "1";
  request.body = body;
  Answer answer = AnswerTo(request);
  EXPECT_EQ(answer.grpc_status, GrpcStatus::kOk);
  EXPECT_EQ(answer.body.substr(0, 2), "\x08\x01");
  answer = AnswerTo(request);
  EXPECT_EQ(answer.body.substr(0, 2), "\x08\x02");
  request.body = std::string_view(body).substr(0, 5);
  answer = AnswerTo(request);
  EXPECT_EQ(answer.grpc_status, GrpcStatus::kInvalidArgument);
  EXPECT_THAT(answer.grpc_message, HasSubstr("not a RateLimitRequest"));
  EXPECT_EQ(service->counters().invalid, 1);
}

TEST_P(EnvoyServiceTest, RefusesInvalidRequests) {
  const Answer broken = Ask("{");
  EXPECT_EQ(broken.http_status, 400);
  EXPECT_THAT(broken.body, HasSubstr(R"({"error":"the body is not JSON)"));
  EXPECT_EQ(Ask("{}").http_status, 400);
  EXPECT_EQ(Ask(Body({{"user", "1"}}), "GET").http_status, 405);
}

TEST_P(EnvoyServiceTest, KeepsItsTreeIfTheStoreRefusesANewOne) {
  class Picky final : public tidegate::testing::WrappedStore {
   public:
    using WrappedStore::WrappedStore;
    absl::Status Accepts(const Limit& limit) const override {
      return limit.count() == 13 ? absl::InvalidArgumentError("13 is unlucky") : absl::OkStatus();
    }
  };
  store = std::make_shared<Picky>(tidegate::testing::MakeStore());
  Make({});
  Use({{.key = "user", .limits = {"5/minute"}}});
  Add(Domain(), {.key = "user", .limits = {"13/minute"}});
  EXPECT_THAT(std::string(service->Use(tree).message()), HasSubstr("d.user: 13 is unlucky"));
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:4");
}

}  // namespace
}  // namespace tidegate::server::envoy
