// What Envoy's rate limit service answers, on a store that decides at once and on one that takes
// its time.
#include "server/envoy/envoy_service.h"

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::server::envoy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using tidegate::testing::kSecond;

constexpr int64_t kMidnight = 1'700'006'400 * kSecond;

// Answers on a thread of its own, after Flush().
class SlowStore final : public Store {
 public:
  SlowStore() : inner_(tidegate::testing::MakeStore()) {}
  ~SlowStore() override {
    for (std::thread& thread : threads_) {
      // The last call may be the last that has it.
      const bool is_own = thread.get_id() == std::this_thread::get_id();
      is_own ? thread.detach() : thread.join();
    }
  }

  std::string_view kind() const override { return "slow"; }
  BoundLimit Bind(const Limit& limit, std::string_view scope) const override {
    return inner_->Bind(limit, scope);
  }
  Decision Hit(const Charge& c, const Moment& m) override { return inner_->Hit(c, m); }
  Decision Peek(const Charge& c, const Moment& m) override { return inner_->Peek(c, m); }
  int64_t Refund(const Charge& c, const Moment& m) override { return inner_->Refund(c, m); }
  void Reset(const Charge& c, const Moment& m) override { inner_->Reset(c, m); }
  void Release(const Charge& c, int64_t at, const Moment& m) override { inner_->Release(c, at, m); }
  StoreStats stats() const override { return inner_->stats(); }
  bool blocks() const override { return true; }

  std::optional<Decision> Submit(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                 const Moment& moment, Clock clock, Outcomes* outcomes,
                                 Done done) override {
    ++submitted;
    std::vector<std::string> keys;
    std::vector<Charge> charges(plan.begin(), plan.end());
    for (const Charge& charge : plan) keys.emplace_back(charge.key);
    std::lock_guard lock(mutex_);
    waiting_.push_back([=, this, keys = std::move(keys), charges = std::move(charges)]() mutable {
      for (size_t i = 0; i < keys.size(); ++i) charges[i].key = keys[i];
      Decision decision =
          *inner_->Submit(op, charges, admitted_ns, moment, clock, outcomes, nullptr);
      decision.at_ns = moment.now_ns;
      if (outcomes != nullptr) {
        for (Decision& each : *outcomes) each.at_ns = moment.now_ns;
      }
      done(decision);
    });
    return std::nullopt;
  }

  void Flush() override {
    std::lock_guard lock(mutex_);
    if (waiting_.empty()) return;
    ++flushed;
    threads_.emplace_back([calls = std::exchange(waiting_, {})]() mutable {
      for (auto& call : calls) call();
    });
  }

  int submitted = 0;
  int flushed = 0;

 private:
  const std::shared_ptr<MemoryStore> inner_;
  std::mutex mutex_;
  std::vector<std::function<void()>> waiting_;
  std::deque<std::thread> threads_;
};

class Sent final : public Pending {
 public:
  Sent(Answer* answer, absl::Notification* sent) : answer_(answer), sent_(sent) {}
  void Send(Answer answer) override {
    *answer_ = std::move(answer);
    sent_->Notify();
  }

 private:
  Answer* const answer_;
  absl::Notification* const sent_;
};

enum class Kind { kAtOnce, kSlow };

class EnvoyServiceTest : public ::testing::TestWithParam<Kind> {
 protected:
  EnvoyServiceTest() {
    if (GetParam() == Kind::kSlow) {
      slow = std::make_shared<SlowStore>();
      store = slow;
    } else {
      store = tidegate::testing::MakeStore();
    }
    Make({});
  }

  void Make(const ServiceOptions& options) {
    service = std::make_shared<EnvoyService>(store, clock, "tests", options);
  }

  DescriptorTree::Id Domain(std::optional<bool> all_or_none = std::nullopt) {
    tree = std::make_shared<DescriptorTree>();
    return *tree->AddDomain({.name = "d", .all_or_none = all_or_none});
  }
  DescriptorTree::Id Add(DescriptorTree::Id parent, DescriptorSpec spec) {
    const auto id = tree->AddDescriptor(parent, std::move(spec));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }
  void Use() { ASSERT_TRUE(service->Use(tree).ok()); }

  // The answer to a request over JSON.
  Answer Ask(const std::string& body, std::string_view method = "POST") {
    Request request;
    request.method = method;
    request.path = EnvoyService::kJsonPath;
    request.body = body;
    return AskWith(request);
  }
  Answer AskWith(const Request& request) {
    Answer answer;
    absl::Notification sent;
    bool took = false;
    const auto later = [&]() -> std::unique_ptr<Pending> {
      took = true;
      return std::make_unique<Sent>(&answer, &sent);
    };
    Answer at_once;
    if (service->Handle(request, &at_once, later)) {
      EXPECT_FALSE(took);
      return at_once;
    }
    EXPECT_TRUE(took);
    service->Flush();
    sent.WaitForNotification();
    return answer;
  }
  // A request of descriptors with one entry each: {"k", "v"}, or with more fields: {"k", "v", "…"}.
  static std::string Body(const std::vector<std::vector<std::string>>& descriptors) {
    std::string body = R"({"domain":"d","descriptors":[)";
    for (size_t i = 0; i < descriptors.size(); ++i) {
      const auto& d = descriptors[i];
      body += (i == 0 ? "" : ",");
      body += R"({"entries":[{"key":")" + d[0] + R"(","value":")" + d[1] + R"("}])";
      if (d.size() > 2) body += "," + d[2];
      body += "}";
    }
    return body + "]}";
  }
  // "200 OK:4 OVER_LIMIT:0": the status, and of each descriptor its code and what remains.
  std::string Outcome(const std::vector<std::vector<std::string>>& descriptors) {
    return Short(Ask(Body(descriptors)));
  }
  static std::string Short(const Answer& answer) {
    std::string text = std::to_string(answer.http_status);
    const std::string& body = answer.body;
    for (size_t at = body.find("{\"code\":\""); at != std::string::npos;) {
      const size_t next = body.find("{\"code\":\"", at + 1);
      const std::string status = body.substr(at, next == std::string::npos ? next : next - at);
      text += " " + status.substr(9, status.find('"', 9) - 9);
      const size_t left = status.find("\"limitRemaining\":");
      if (left != std::string::npos) {
        const size_t end = status.find_first_not_of("0123456789", left + 17);
        text += ":" + status.substr(left + 17, end - left - 17);
      }
      at = next;
    }
    return text;
  }

  const Counters& CountersOf(const std::string& path, const std::string& domain = "d") {
    rows = service->metrics().rows();
    for (const Metrics::Row& row : rows) {
      if (row.domain == domain && row.path == path) return *row.counters;
    }
    ADD_FAILURE() << "no counters of " << path;
    return *std::make_shared<Counters>();
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>(kMidnight);
  std::shared_ptr<SlowStore> slow;
  std::shared_ptr<Store> store;
  std::shared_ptr<EnvoyService> service;
  std::shared_ptr<DescriptorTree> tree;
  std::vector<Metrics::Row> rows;
};

INSTANTIATE_TEST_SUITE_P(Stores, EnvoyServiceTest, ::testing::Values(Kind::kAtOnce, Kind::kSlow),
                         [](const auto& which) {
                           return which.param == Kind::kAtOnce ? "AtOnce" : "Slow";
                         });

TEST_P(EnvoyServiceTest, AnswersWithTheLimitWhatRemainsAndWhenItIsReset) {
  Add(Domain(), {.key = "user", .limits = {"2/minute"}, .name = "per-user"});
  Use();
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
  const auto domain = Domain();
  Add(domain, {.key = "user", .limits = {"5/minute"}});
  Add(domain, {.key = "ip", .limits = {"1/minute"}});
  Use();
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}, {"none", ""}}), "200 OK:4 OK:0 OK");
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}}), "429 OK:4 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "b"}}), "200 OK:3 OK:0");
  if (slow != nullptr) {
    EXPECT_EQ(slow->submitted, 3);
  }
}

TEST_P(EnvoyServiceTest, ChargesEachDescriptorOnItsOwnWhereAsked) {
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
  Add(Domain(/*all_or_none=*/false), {.key = "tokens", .limits = {"9/minute", "99/hour"}});
  Use();
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":5)"}}), "200 OK:4");
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":6)"}}), "429 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":0)"}}), "429 OVER_LIMIT:0");
  clock->AdvanceNs(60 * kSecond);
  EXPECT_EQ(Outcome({{"tokens", "1", R"("hitsAddend":0)"}}), "200 OK:9");
}

TEST_P(EnvoyServiceTest, HasSeveralLimitsOnOneKey) {
  Add(Domain(), {.key = "user", .limits = {"2/second", "3/minute"}});
  Use();
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
  Add(Domain(), {.key = "user", .limits = {"10/minute"}});
  Use();
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
  Add(Domain(), {.key = "user", .limits = {"10/minute"}});
  Use();
  EXPECT_EQ(Short(Ask(R"({"domain":"d","hitsAddend":3,"descriptors":[
                          {"entries":[{"key":"user","value":"1"}]},
                          {"entries":[{"key":"user","value":"2"}],"hitsAddend":5}]})")),
            "200 OK:7 OK:5");
}

TEST_P(EnvoyServiceTest, ChargesNothingBesideAPeekThatIsOverItsLimit) {
  const auto domain = Domain();
  Add(domain, {.key = "tokens", .limits = {"1/minute"}});
  Add(domain, {.key = "user", .limits = {"5/minute"}});
  Use();
  EXPECT_EQ(Outcome({{"tokens", "1"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}, {"tokens", "1", R"("hitsAddend":0)"}}),
            "429 OK:5 OVER_LIMIT:0");
  EXPECT_EQ(Outcome({{"user", "1"}, {"tokens", "2", R"("hitsAddend":0)"}}), "200 OK:4 OK:1");
  EXPECT_EQ(
      Outcome({{"user", "1", R"("isNegativeHits":true)"}, {"tokens", "1", R"("hitsAddend":0)"}}),
      "429 OK:4 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, ChargesADescriptorTwiceThatIsGivenTwice) {
  Add(Domain(), {.key = "user", .limits = {"3/minute"}});
  Use();
  EXPECT_EQ(Outcome({{"user", "1"}, {"user", "1"}}), "200 OK:1 OK:1");
  EXPECT_EQ(Outcome({{"user", "1"}, {"user", "1"}}), "429 OVER_LIMIT:1 OVER_LIMIT:1");
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:0");
}

TEST_P(EnvoyServiceTest, HonoursTheLimitOfARequest) {
  Add(Domain(), {.key = "user", .limits = {"100/minute"}});
  Use();
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
  Add(Domain(), {.key = "user", .limits = {"9/minute"}});
  Use();
  const std::string limit = R"("limit":{"requestsPerUnit":2,"unit":"MINUTE"})";
  EXPECT_EQ(Outcome({{"user", "1"}, {"user", "1", limit}}), "200 OK:0 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}, {"user", "1", limit}}), "429 OVER_LIMIT:0 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, NeverRefusesForALimitInShadow) {
  const auto domain = Domain();
  Add(domain, {.key = "user", .limits = {"1/minute"}, .shadow = true});
  Add(domain, {.key = "ip", .limits = {"9/minute"}});
  Use();
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}}), "200 OK:0 OK:8");
  EXPECT_EQ(Outcome({{"user", "1"}, {"ip", "a"}}), "200 OK:0 OK:7");
  const Counters& counters = CountersOf("user");
  EXPECT_EQ(counters.total_hits, 2);
  EXPECT_EQ(counters.within_limit, 1);
  EXPECT_EQ(counters.over_limit, 1);
  EXPECT_EQ(counters.shadow_mode, 1);
}

TEST_P(EnvoyServiceTest, SaysWhichQuotasWereExceededAndRefusesNothing) {
  const auto domain = Domain();
  Add(domain, {.key = "user", .limits = {"9/minute"}});
  Add(domain, {.key = "model", .limits = {"1/minute"}, .quota = true});
  Use();
  const Answer first = Ask(Body({{"user", "1"}, {"model", "m"}}));
  EXPECT_THAT(first.body, HasSubstr(R"("dynamicMetadata":{"quotaModeEnabled":true})"));
  const Answer second = Ask(Body({{"user", "1"}, {"model", "m"}}));
  EXPECT_EQ(Short(second), "200 OK:7 OVER_LIMIT:0");
  EXPECT_THAT(second.body,
              AllOf(HasSubstr(R"("overallCode":"OK")"), HasSubstr(R"("quotaModeViolations":[1])")));
  EXPECT_THAT(Ask(Body({{"user", "1"}})).body, Not(HasSubstr("quotaMode")));
}

TEST_P(EnvoyServiceTest, RefusesNothingInGlobalShadowMode) {
  Make({.shadow_mode = true});
  Add(Domain(), {.key = "user", .limits = {"1/minute"}});
  Use();
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OVER_LIMIT:0");
  EXPECT_EQ(service->counters().shadow_mode, 1);
}

TEST_P(EnvoyServiceTest, LeavesOutALimitThatAnotherReplaces) {
  const auto domain = Domain();
  Add(domain, {.key = "read", .limits = {"1/minute"}, .name = "reads"});
  Add(domain, {.key = "hot", .limits = {"3/minute"}, .replaces = {"reads"}});
  Use();
  EXPECT_EQ(Outcome({{"read", "1"}}), "200 OK:0");
  EXPECT_EQ(Outcome({{"read", "1"}, {"hot", "1"}}), "200 OK OK:2");
  EXPECT_EQ(Outcome({{"read", "1"}}), "429 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, SaysThatUnlimitedDescriptorsAreSo) {
  Add(Domain(), {.key = "ldap", .unlimited = true});
  Use();
  const Answer answer = Ask(Body({{"ldap", "1"}}));
  EXPECT_EQ(Short(answer), "200 OK:4294967295");
  EXPECT_THAT(answer.body, Not(HasSubstr("currentLimit")));
  EXPECT_EQ(CountersOf("ldap").within_limit, 1);
}

TEST_P(EnvoyServiceTest, RefusesEverythingAtALimitOfZero) {
  Add(Domain(), {.key = "banned", .limits = {"0/second"}});
  Use();
  EXPECT_EQ(Outcome({{"banned", "1"}}), "429 OVER_LIMIT:0");
}

TEST_P(EnvoyServiceTest, LetsAnUnknownDomainPassAndCountsIt) {
  EXPECT_EQ(Outcome({{"user", "1", R"("limit":{"requestsPerUnit":0,"unit":"DAY"})"}}), "200 OK");
  EXPECT_EQ(service->counters().unknown_domain, 1);
  EXPECT_EQ(service->counters().no_limit, 1);
}

TEST_P(EnvoyServiceTest, KeepsUsageAndCountersWhenTheTreeChanges) {
  Add(Domain(), {.key = "user", .limits = {"5/minute"}});
  Use();
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
  Add(Domain(), {.key = "user", .limits = {"10/minute"}});
  Use();
  for (int i = 0; i < 12; ++i) Outcome({{"user", "1"}});
  const Counters& counters = CountersOf("user");
  EXPECT_EQ(counters.total_hits, 12);
  EXPECT_EQ(counters.within_limit, 10);
  EXPECT_EQ(counters.near_limit, 2);
  EXPECT_EQ(counters.over_limit, 2);
  EXPECT_EQ(service->counters().requests, 12);
  EXPECT_EQ(service->counters().over_limit, 2);
}

TEST_P(EnvoyServiceTest, BoundsTheMetricsThatRequestsName) {
  Add(Domain(), {.key = "user", .limits = {"10/minute"}, .detailed_metric = true});
  Use();
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

TEST_P(EnvoyServiceTest, SendsHeadersOfTheClosestLimitWhereAsked) {
  Make({.response_headers = true});
  const auto domain = Domain();
  Add(domain, {.key = "user", .limits = {"5/minute"}});
  Add(domain, {.key = "ip", .limits = {"3/hour"}});
  Use();
  clock->AdvanceNs(1);
  const Answer answer = Ask(Body({{"user", "1"}, {"ip", "a"}}));
  EXPECT_THAT(answer.body, HasSubstr(R"("responseHeadersToAdd":[{"key":"X-RateLimit-Limit",)"
                                     R"("value":"3"},{"key":"X-RateLimit-Remaining","value":"2"},)"
                                     R"({"key":"X-RateLimit-Reset","value":"3600"}])"));
  EXPECT_THAT(answer.headers, ::testing::Contains(std::make_pair(std::string("x-ratelimit-limit"),
                                                                 std::string("3"))));
}

TEST_P(EnvoyServiceTest, TellsWhenABucketLetsTheNextThrough) {
  Add(Domain(),
      {.key = "user", .limits = {"60/minute burst 2"}, .algorithm = Algorithm::kTokenBucket});
  Use();
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:1");
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:0");
  EXPECT_THAT(Ask(Body({{"user", "1"}})).body, HasSubstr(R"("durationUntilReset":"1s")"));
}

TEST_P(EnvoyServiceTest, AnswersGrpcInProtobuf) {
  Add(Domain(), {.key = "user", .limits = {"1/minute"}});
  Use();
  Request request;
  request.method = "POST";
  request.path = EnvoyService::kMethod;
  request.is_grpc = true;
  const std::string body =
      std::string("\x0a\x01") + "d" + "\x12\x0b" + "\x0a\x09" + "\x0a\x04user" + "\x12\x01" + "1";
  request.body = body;
  Answer answer = AskWith(request);
  EXPECT_EQ(answer.grpc_status, GrpcStatus::kOk);
  EXPECT_EQ(answer.body.substr(0, 2), "\x08\x01");
  answer = AskWith(request);
  EXPECT_EQ(answer.body.substr(0, 2), "\x08\x02");
  request.body = std::string_view(body).substr(0, 5);
  answer = AskWith(request);
  EXPECT_EQ(answer.grpc_status, GrpcStatus::kInvalidArgument);
  EXPECT_THAT(answer.grpc_message, HasSubstr("not a RateLimitRequest"));
  EXPECT_EQ(service->counters().invalid, 1);
}

TEST_P(EnvoyServiceTest, RefusesWhatIsNoRequest) {
  const Answer broken = Ask("{");
  EXPECT_EQ(broken.http_status, 400);
  EXPECT_THAT(broken.body, HasSubstr(R"({"error":"the body is not JSON)"));
  EXPECT_EQ(Ask("{}").http_status, 400);
  EXPECT_EQ(Ask(Body({{"user", "1"}}), "GET").http_status, 405);
}

TEST_P(EnvoyServiceTest, KeepsTheTreeBeforeOneThatTheStoreRefuses) {
  class Picky final : public Store {
   public:
    explicit Picky(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}
    std::string_view kind() const override { return "picky"; }
    absl::Status Accepts(const Limit& limit) const override {
      return limit.count() == 13 ? absl::InvalidArgumentError("13 is unlucky") : absl::OkStatus();
    }
    BoundLimit Bind(const Limit& l, std::string_view s) const override {
      return inner_->Bind(l, s);
    }
    Decision Hit(const Charge& c, const Moment& m) override { return inner_->Hit(c, m); }
    Decision Peek(const Charge& c, const Moment& m) override { return inner_->Peek(c, m); }
    int64_t Refund(const Charge& c, const Moment& m) override { return inner_->Refund(c, m); }
    void Reset(const Charge& c, const Moment& m) override { inner_->Reset(c, m); }
    void Release(const Charge& c, int64_t at, const Moment& m) override {
      inner_->Release(c, at, m);
    }
    StoreStats stats() const override { return {}; }

   private:
    const std::shared_ptr<Store> inner_;
  };
  store = std::make_shared<Picky>(tidegate::testing::MakeStore());
  Make({});
  Add(Domain(), {.key = "user", .limits = {"5/minute"}});
  Use();
  Add(Domain(), {.key = "user", .limits = {"13/minute"}});
  EXPECT_THAT(std::string(service->Use(tree).message()), HasSubstr("d.user: 13 is unlucky"));
  EXPECT_EQ(Outcome({{"user", "1"}}), "200 OK:4");
}

}  // namespace
}  // namespace tidegate::server::envoy
