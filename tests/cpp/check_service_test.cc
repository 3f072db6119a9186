#include "server/checks/check_service.h"

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rule_testing.h"
#include "testing.h"
#include "tidegate/rule_limiter.h"
#include "wrapped_store.h"

namespace tidegate::server {
namespace {

using ::testing::HasSubstr;
using tidegate::testing::Compiled;
using tidegate::testing::kStart;
using tidegate::testing::MakeRule;
using tidegate::testing::MakeStore;

// A store like Redis, whose calls wait until the test answers them.
class SlowStore final : public tidegate::testing::WrappedStore {
 public:
  using WrappedStore::WrappedStore;

  bool blocks() const override { return true; }

  std::optional<Decision> Submit(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                 const Moment& moment, Clock clock, Outcomes* outcomes,
                                 Done done) override {
    // Keys need not live until the answer, so they are copied here.
    auto kept = std::make_shared<std::vector<std::pair<std::string, Charge>>>();
    for (const Charge& charge : plan) kept->emplace_back(charge.key, charge);
    calls_.push_back([=, this, store = inner_, done = std::move(done)] {
      std::vector<Charge> charges;
      for (const auto& [key, charge] : *kept) charges.push_back({key, charge.limit, charge.cost});
      Decision decision =
          *store->Submit(op, charges, admitted_ns, moment, clock, outcomes, nullptr);
      decision.at_ns = moment.now_ns;
      done(decision);
    });
    return std::nullopt;
  }
  void Flush() override { ++flushes_; }

  // Answers all calls on another thread, the last call first.
  void AnswerAll() {
    std::thread([calls = std::exchange(calls_, {})] {
      for (auto call = calls.rbegin(); call != calls.rend(); ++call) (*call)();
    }).join();
  }
  size_t waiting() const { return calls_.size(); }
  int flushes() const { return flushes_; }

 private:
  std::vector<std::function<void()>> calls_;
  int flushes_ = 0;
};

// Collects the answers of a service, whether they come at once or later.
class Asking {
 public:
  explicit Asking(CheckService& service) : service_(service) {}

  bool Ask(const Request& request) {
    const bool is_answered = service_.Handle(request, &answer_, [this] {
      class ToHere final : public Pending {
       public:
        explicit ToHere(Asking* asking) : asking_(asking) {}
        void Send(Answer answer) override {
          asking_->answer_ = std::move(answer);
          asking_->is_sent_ = true;
        }

       private:
        Asking* const asking_;
      };
      return std::make_unique<ToHere>(this);
    });
    service_.Flush();
    return is_answered;
  }
  const Answer& answer() const { return answer_; }
  bool is_sent() const { return is_sent_; }
  std::string header(std::string_view name) const {
    for (const auto& [known, value] : answer_.headers) {
      if (known == name) return value;
    }
    return "";
  }

 private:
  CheckService& service_;
  Answer answer_;
  bool is_sent_ = false;
};

class CheckServiceTest : public ::testing::Test {
 protected:
  std::shared_ptr<RuleLimiter> LimiterOf(RuleSetSpec spec, std::shared_ptr<Store> store) {
    auto timed = std::make_shared<TimedStore>(std::move(store), clock_);
    return *RuleLimiter::Create(Compiled(std::move(spec)), std::move(timed));
  }
  std::shared_ptr<RuleLimiter> TwoAMinute(std::shared_ptr<Store> store) {
    RuleSetSpec spec;
    spec.rules = {MakeRule("api", {"user"}, "2/minute")};
    return LimiterOf(std::move(spec), std::move(store));
  }
  static Request Post(std::string_view body) {
    static constexpr Header kJson[] = {{"content-type", "application/json"}};
    Request request;
    request.method = "POST";
    request.path = "/v1/ratelimit/check";
    request.headers = kJson;
    request.body = body;
    return request;
  }

  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>(kStart);
  std::shared_ptr<Recorder> recorder_ = std::make_shared<Recorder>();
  CheckOptions open_{.requires_token = false};
};

TEST_F(CheckServiceTest, RefusesACallerWithoutATokenBeforeTheMessageIsRead) {
  Request request;
  request.method = "POST";
  request.path = "/tidegate.v1.RateLimiter/Check";
  request.body = "packed";
  request.is_grpc = true;
  Answer answer;
  CheckService closed(TwoAMinute(MakeStore()), CheckOptions{}, nullptr);
  EXPECT_TRUE(closed.Refuses(request, &answer));
  EXPECT_EQ(answer.grpc_status, GrpcStatus::kUnauthenticated);
  EXPECT_EQ(closed.counters().unauthorized, 1);
  CheckService open(TwoAMinute(MakeStore()), open_, nullptr);
  EXPECT_FALSE(open.Refuses(request, &answer));
}

TEST_F(CheckServiceTest, AnswersAtOnceIfTheStoreDoesNotWait) {
  CheckService service(TwoAMinute(MakeStore()), open_, recorder_);
  Asking asking(service);
  ASSERT_TRUE(asking.Ask(Post(R"({"userId": "42"})")));
  EXPECT_EQ(asking.answer().body,
            R"({"allowed":true,"limit":2,"remaining":1,"resetTime":1700000031,)"
            R"("retryAfter":null,"degraded":false,"rule":"api"})"
            "\n");
  EXPECT_EQ(asking.header("x-ratelimit-remaining"), "1");
}

TEST_F(CheckServiceTest, AnswersLaterIfTheStoreWaits) {
  const auto store = std::make_shared<SlowStore>(MakeStore());
  CheckService service(TwoAMinute(store), open_, recorder_);
  Asking first(service);
  Asking second(service);
  std::string body = R"({"userId": "42"})";
  ASSERT_FALSE(first.Ask(Post(body)));
  ASSERT_FALSE(second.Ask(Post(body)));
  body.assign(body.size(), 'x');  // the request no longer exists when its answer comes
  EXPECT_EQ(store->flushes(), 2);
  EXPECT_FALSE(first.is_sent());
  store->AnswerAll();
  ASSERT_TRUE(first.is_sent());
  ASSERT_TRUE(second.is_sent());
  EXPECT_THAT(first.answer().body, HasSubstr(R"("remaining":0)"));
  const auto rows = recorder_->Drain();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].user, "42");
  EXPECT_EQ(rows[0].sums.allowed, 2);
}

TEST_F(CheckServiceTest, EndsACallWithTheRulesThatItBeganWith) {
  const auto store = std::make_shared<SlowStore>(MakeStore());
  CheckService service(TwoAMinute(store), open_, recorder_);
  Asking asking(service);
  ASSERT_FALSE(asking.Ask(Post(R"({"userId": "42", "outcomes": true})")));
  RuleSetSpec spec;
  spec.rules = {MakeRule("other", {"user"}, "7/minute")};
  service.Use(LimiterOf(std::move(spec), MakeStore()));
  store->AnswerAll();
  EXPECT_THAT(asking.answer().body, HasSubstr(R"("rule":"api")"));
  EXPECT_THAT(asking.answer().body, HasSubstr(R"("outcomes":[{"name":"api")"));
  Asking next(service);
  ASSERT_TRUE(next.Ask(Post(R"({"userId": "42"})")));
  EXPECT_THAT(next.answer().body, HasSubstr(R"("limit":7)"));
}

TEST_F(CheckServiceTest, DoesNotFlushAStoreWithoutSubmittedCalls) {
  const auto store = std::make_shared<SlowStore>(MakeStore());
  CheckService service(TwoAMinute(store), open_, recorder_);
  service.Flush();
  EXPECT_EQ(store->flushes(), 0);
}

TEST_F(CheckServiceTest, FlushesTheStoreOfReplacedRules) {
  const auto store = std::make_shared<SlowStore>(MakeStore());
  CheckService service(TwoAMinute(store), open_, recorder_);
  Answer answer;
  class Nowhere final : public Pending {
    void Send(Answer) override {}
  };
  ASSERT_FALSE(service.Handle(Post(R"({"userId": "42"})"), &answer,
                              [] { return std::make_unique<Nowhere>(); }));
  EXPECT_EQ(store->flushes(), 0);
  service.Use(TwoAMinute(MakeStore()));
  EXPECT_EQ(store->flushes(), 1);
  store->AnswerAll();
}

TEST_F(CheckServiceTest, AnswersManyChecksOfASlowStoreInOrder) {
  const auto store = std::make_shared<SlowStore>(MakeStore());
  CheckService service(TwoAMinute(store), open_, recorder_);
  // CheckManyRequest{checks: [{attributes: {"user": "a"}}, {.. "b"}, {.. "c", cost 3}]}
  const std::string a =
      "\x0a\x0b\x0a\x09\x0a\x04user\x12\x01"
      "a";
  const std::string b =
      "\x0a\x0b\x0a\x09\x0a\x04user\x12\x01"
      "b";
  const std::string c =
      "\x0a\x0d\x0a\x09\x0a\x04user\x12\x01"
      "c\x10\x03";
  const std::string body = a + b + c;
  Request request;
  request.method = "POST";
  request.path = "/tidegate.v1.RateLimiter/CheckMany";
  request.body = body;
  request.is_grpc = true;
  Asking asking(service);
  ASSERT_FALSE(asking.Ask(request));
  EXPECT_EQ(store->waiting(), 3u);
  store->AnswerAll();
  ASSERT_TRUE(asking.is_sent());
  EXPECT_EQ(asking.answer().grpc_status, GrpcStatus::kOk);
  // Three answers; the last one has no `allowed`.
  const std::string& answers = asking.answer().body;
  ASSERT_FALSE(answers.empty());
  std::vector<bool> allowed;
  for (size_t at = 0; at < answers.size();) {
    ASSERT_EQ(answers[at], '\x0a');
    const auto size = static_cast<unsigned char>(answers[at + 1]);
    ASSERT_LT(size, 128);
    allowed.push_back(answers[at + 2] == '\x08');
    at += 2u + size;
  }
  EXPECT_EQ(allowed, (std::vector<bool>{true, true, false}));
}

TEST_F(CheckServiceTest, CallsInFlightMayOutliveTheService) {
  const auto store = std::make_shared<SlowStore>(MakeStore());
  auto service = std::make_unique<CheckService>(TwoAMinute(store), open_, recorder_);
  auto asking = std::make_unique<Asking>(*service);
  ASSERT_FALSE(asking->Ask(Post(R"({"userId": "42"})")));
  service.reset();
  store->AnswerAll();
  EXPECT_TRUE(asking->is_sent());
}

TEST_F(CheckServiceTest, UsesTheTierOfTheTableUnlessTheRequestHasOne) {
  RuleSetSpec spec;
  spec.default_tier = "free";
  Rule rule = MakeRule("api", {"user"}, "1/minute");
  rule.limits[0].tier = "free";
  rule.limits.push_back({"premium", {*Limit::Parse("10/minute")}});
  spec.rules = {std::move(rule)};
  CheckService service(LimiterOf(std::move(spec), MakeStore()), open_, recorder_);
  TiersBuilder builder;
  ASSERT_TRUE(builder.Add("42", "premium").ok());
  service.SetTiers(std::move(builder).Finish());
  const auto limit_of = [&](std::string_view body) {
    Asking asking(service);
    EXPECT_TRUE(asking.Ask(Post(body)));
    return asking.header("x-ratelimit-limit");
  };
  EXPECT_EQ(limit_of(R"({"userId": "42"})"), "10");
  EXPECT_EQ(limit_of(R"({"userId": "42", "tier": "free"})"), "1");
  EXPECT_EQ(limit_of(R"({"userId": "43"})"), "1");
  service.SetTiers(nullptr);
  EXPECT_EQ(limit_of(R"({"userId": "42"})"), "1");
}

// A penalty of one user from now on.
std::shared_ptr<const Penalties> Punished(std::string user, bool blocks,
                                          std::shared_ptr<Clock> clock) {
  return std::make_shared<Penalties>(
      std::vector<Penalties::Entry>{
          {false, std::move(user), blocks, 60 * tidegate::testing::kSecond}},
      std::move(clock));
}

TEST_F(CheckServiceTest, RefusesABlockedCallerUntilTheEndAndChargesNothing) {
  CheckService service(TwoAMinute(MakeStore()), open_, recorder_);
  service.SetPenalties(Punished("42", /*blocks=*/true, clock_));
  const auto ask = [&](std::string_view body) {
    Asking asking(service);
    EXPECT_TRUE(asking.Ask(Post(body)));
    return asking.answer().body;
  };
  EXPECT_EQ(ask(R"({"userId": "42"})"),
            R"({"allowed":false,"limit":0,"remaining":0,"resetTime":1700000061,)"
            R"("retryAfter":60,"degraded":false,"rule":"anomaly:block"})"
            "\n");
  EXPECT_THAT(ask(R"({"userId": "43"})"), HasSubstr(R"("allowed":true)"));
  const auto rows = recorder_->Drain();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ((rows[0].user == "42" ? rows[0] : rows[1]).rule, "anomaly:block");
  EXPECT_EQ(service.counters().blocked.load(), 1);
  clock_->AdvanceNs(60 * tidegate::testing::kSecond);
  EXPECT_THAT(ask(R"({"userId": "42"})"), HasSubstr(R"("allowed":true,"limit":2,"remaining":1)"));
  service.SetPenalties(nullptr);
  EXPECT_THAT(ask(R"({"userId": "42"})"), HasSubstr(R"("remaining":0)"));
}

TEST_F(CheckServiceTest, RefusesABlockedCallerWithoutAskingASlowStore) {
  const auto store = std::make_shared<SlowStore>(MakeStore());
  CheckService service(TwoAMinute(store), open_, recorder_);
  service.SetPenalties(Punished("42", /*blocks=*/true, clock_));
  Asking asking(service);
  ASSERT_TRUE(asking.Ask(Post(R"({"userId": "42"})")));
  EXPECT_THAT(asking.answer().body, HasSubstr(R"("rule":"anomaly:block")"));
  EXPECT_EQ(store->waiting(), 0u);
}

TEST_F(CheckServiceTest, ChargesAThrottledCallerTwiceButNeverMoreThanALimitHolds) {
  for (const bool is_slow : {false, true}) {
    const auto slow = std::make_shared<SlowStore>(MakeStore());
    RuleSetSpec spec;
    spec.rules = {MakeRule("api", {"user"}, "5/minute"), MakeRule("one", {"tenant"}, "1/minute")};
    CheckService service(
        LimiterOf(std::move(spec), is_slow ? std::shared_ptr<Store>(slow) : MakeStore()), open_,
        recorder_);
    service.SetPenalties(Punished("42", /*blocks=*/false, clock_));
    const auto ask = [&](std::string_view body) {
      Asking asking(service);
      if (!asking.Ask(Post(body))) slow->AnswerAll();
      return asking.answer().body;
    };
    EXPECT_THAT(ask(R"({"userId": "42"})"), HasSubstr(R"("remaining":3)"));
    EXPECT_THAT(ask(R"({"userId": "42"})"), HasSubstr(R"("remaining":1)"));
    EXPECT_THAT(ask(R"({"userId": "42"})"), HasSubstr(R"("allowed":false)"));
    EXPECT_THAT(ask(R"({"userId": "43"})"), HasSubstr(R"("remaining":4)"));
    service.SetPenalties(Punished("44", /*blocks=*/false, clock_));
    EXPECT_THAT(ask(R"({"userId": "44", "attributes": {"tenant": "t"}})"),
                HasSubstr(R"("allowed":true,"limit":1,)"));
    EXPECT_EQ(service.counters().throttled.load(), 4);
    int64_t cost = 0;
    for (const auto& row : recorder_->Drain()) cost += row.sums.cost;
    EXPECT_EQ(cost, 4) << "records have the cost of the request";
  }
}

}  // namespace
}  // namespace tidegate::server
