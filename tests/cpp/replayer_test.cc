#include "tidegate/replayer.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"
#include "tidegate/clients.h"
#include "tidegate/least_limit.h"
#include "tidegate/replay.h"
#include "tidegate/rule_replayer.h"

namespace tidegate::testing {
namespace {

// Requests with several keys, in the order of their times.
struct Log {
  explicit Log(size_t size, uint32_t the_keys, uint64_t seed = 1) : keys(the_keys) {
    std::mt19937_64 random(seed);
    int64_t now_ns = kStart;
    for (size_t i = 0; i < size; ++i) {
      now_ns += static_cast<int64_t>(random() % (kSecond / 2));
      times.push_back(now_ns);
      codes.push_back(static_cast<uint32_t>(random() % keys));
      costs.push_back(static_cast<int64_t>(1 + random() % 3));
    }
  }

  RequestColumns requests() const { return {times.size(), times.data(), nullptr}; }
  ChargeColumns charges() const { return {codes.data(), costs.data()}; }

  uint32_t keys;
  std::vector<int64_t> times;
  std::vector<uint32_t> codes;
  std::vector<int64_t> costs;
};

struct Answers {
  explicit Answers(size_t size)
      : allowed(size), remaining(size), retry_after_ns(size), delay_ns(size), rule(size) {}
  AnswerColumns columns() {
    return {.allowed = allowed.data(),
            .remaining = remaining.data(),
            .retry_after_ns = retry_after_ns.data(),
            .delay_ns = delay_ns.data(),
            .rule = rule.data()};
  }

  std::vector<uint8_t> allowed;
  std::vector<int64_t> remaining;
  std::vector<int64_t> retry_after_ns;
  std::vector<int64_t> delay_ns;
  std::vector<uint32_t> rule;
};

std::vector<Decision> Expected(const std::vector<Limit>& limits, const Log& log) {
  std::vector<std::string> names;
  for (uint32_t key = 0; key < log.keys; ++key) names.push_back(std::to_string(key));
  std::vector<ReplayEvent> events;
  for (size_t i = 0; i < log.times.size(); ++i) {
    events.push_back({names[log.codes[i]], log.times[i], log.costs[i]});
  }
  return Replay(limits, events);
}

void ExpectSame(const std::vector<Decision>& expected, const Answers& answers) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(answers.allowed[i], expected[i].allowed) << i;
    ASSERT_EQ(answers.remaining[i], expected[i].remaining()) << i;
    ASSERT_EQ(answers.retry_after_ns[i], expected[i].retry_after_ns) << i;
    ASSERT_EQ(answers.delay_ns[i], expected[i].delay_ns) << i;
    ASSERT_EQ(answers.rule[i], expected[i].rule) << i;
  }
}

class ReplayerTest : public ::testing::TestWithParam<Algorithm> {};

INSTANTIATE_TEST_SUITE_P(Algorithms, ReplayerTest, ::testing::ValuesIn(kAllAlgorithms), NameOf);

TEST_P(ReplayerTest, ColumnsInChunksAgreeWithReplay) {
  const Log log(3'000, 7);
  const std::vector<Limit> limits = {MakeLimit(9, 10 * kSecond, GetParam())};
  Answers answers(log.times.size());
  Replayer replayer(limits, {log.keys});
  for (size_t from = 0; from < log.times.size(); from += 701) {
    replayer.Run(log.requests(), {log.charges()}, from, std::min(from + 701, log.times.size()),
                 answers.columns());
  }
  ExpectSame(Expected(limits, log), answers);
}

TEST_P(ReplayerTest, PlansAgreeWithReplay) {
  const Log log(2'000, 3);
  const std::vector<Limit> limits = {MakeLimit(9, 10 * kSecond, GetParam()),
                                     MakeLimit(20, 60 * kSecond, Algorithm::kSlidingLog)};
  Answers answers(log.times.size());
  Replayer replayer(limits, {log.keys, log.keys});
  replayer.Run(log.requests(), {log.charges(), log.charges()}, 0, log.times.size(),
               answers.columns());
  ExpectSame(Expected(limits, log), answers);
}

TEST_P(ReplayerTest, AnswersHaveTheIndexOfTheirRequest) {
  const Log log(1'000, 3);
  const std::vector<Limit> limits = {MakeLimit(9, 10 * kSecond, GetParam())};
  Log mixed = log;
  std::vector<int64_t> order(log.times.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(3));
  for (size_t n = 0; n < order.size(); ++n) {
    const auto at = static_cast<size_t>(order[n]);
    mixed.times[at] = log.times[n];
    mixed.codes[at] = log.codes[n];
    mixed.costs[at] = log.costs[n];
  }
  Answers answers(log.times.size());
  Replayer replayer(limits, {log.keys});
  RequestColumns requests = mixed.requests();
  requests.order = order.data();
  replayer.Run(requests, {mixed.charges()}, 0, log.times.size(), answers.columns());
  const std::vector<Decision> expected = Expected(limits, log);
  for (size_t n = 0; n < order.size(); ++n) {
    const auto at = static_cast<size_t>(order[n]);
    ASSERT_EQ(answers.allowed[at], expected[n].allowed) << n;
    ASSERT_EQ(answers.retry_after_ns[at], expected[n].retry_after_ns) << n;
  }
}

TEST(ReplayerLimitsTest, AnswerColumnsThatAreNullAreNotWritten) {
  const Log log(10, 1);
  Replayer replayer({MakeLimit(2, kSecond)}, {1});
  replayer.Run(log.requests(), {{log.codes.data(), nullptr}}, 0, 10, {});
}

TEST(ReplayerLimitsTest, ALimitInShadowRefusesNothing) {
  LimitSpec spec{.count = 1, .period_ns = 3'600 * kSecond};
  spec.shadow = true;
  const Log log(100, 2);
  Answers answers(100);
  Replayer replayer({MakeLimit(spec)}, {2});
  replayer.Run(log.requests(), {log.charges()}, 0, 100, answers.columns());
  EXPECT_EQ(std::count(answers.allowed.begin(), answers.allowed.end(), 1), 100);
}

// Ten requests of one key come at once. The limit is one per second.
TEST(ClientReplayTest, ObedientClientsAreAllowedOneAfterTheOther) {
  const std::vector<int64_t> times(10, kStart);
  const std::vector<uint32_t> keys(10, 0);
  const std::vector<ChargeColumns> charges = {{keys.data(), nullptr}};
  const RequestColumns requests{10, times.data(), nullptr};
  Replayer replayer({MakeLimit(1, kSecond)}, {1});
  ClientBehaviour behaviour;
  behaviour.reaction = ClientBehaviour::Reaction::kObey;
  behaviour.most_attempts = 100;
  ClientReplay clients(behaviour);
  Answers answers(10);
  std::vector<uint32_t> attempts(10);
  std::vector<int64_t> waited_ns(10);
  const ClientOutcomes outcomes{answers.columns(), attempts.data(), waited_ns.data()};
  const auto hit = [&](size_t at, int64_t now_ns, uint32_t*) {
    return replayer.Hit(charges, at, now_ns);
  };
  clients.Run(requests, 0, 10, hit, outcomes);
  int rounds = 1;
  while (!clients.Finish(requests, 7, hit, outcomes)) ++rounds;
  EXPECT_GT(rounds, 5);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(answers.allowed[i], 1) << i;
    EXPECT_EQ(waited_ns[i], static_cast<int64_t>(i) * kSecond) << i;
    EXPECT_EQ(attempts[i], i + 1) << i;
  }
  EXPECT_EQ(clients.attempts(), 55);
  EXPECT_EQ(clients.refused_attempts(), 45);
}

TEST(ClientReplayTest, WaitsAreBoundedAndNeverOverflow) {
  ClientBehaviour behaviour;
  behaviour.reaction = ClientBehaviour::Reaction::kBackOff;
  behaviour.most_attempts = 4'000'000'000;
  behaviour.pause_ns = 1;
  behaviour.factor = 1e9;
  behaviour.most_pause_ns = kMaxInstantNs;
  const Decision refusal;
  EXPECT_EQ(behaviour.WaitNs(refusal, 0, 1), 1);
  EXPECT_EQ(behaviour.WaitNs(refusal, 0, 3'000'000'000), kMaxInstantNs);
  EXPECT_EQ(behaviour.WaitNs(refusal, 0, 4'000'000'000), -1);
  behaviour.reaction = ClientBehaviour::Reaction::kObey;
  Decision never;
  never.retry_after_ns = Decision::kNever;
  EXPECT_EQ(behaviour.WaitNs(never, 0, 1), -1);
  behaviour.whole_seconds = true;
  never.retry_after_ns = kSecond + 1;
  EXPECT_EQ(behaviour.WaitNs(never, 0, 1), 2 * kSecond);
  behaviour.reaction = ClientBehaviour::Reaction::kNever;
  EXPECT_EQ(behaviour.WaitNs(refusal, 0, 1), -1);
}

class LeastLimitTest : public ::testing::TestWithParam<Algorithm> {};

INSTANTIATE_TEST_SUITE_P(Algorithms, LeastLimitTest,
                         ::testing::Values(Algorithm::kTokenBucket, Algorithm::kLeakyBucket,
                                           Algorithm::kFixedWindow, Algorithm::kSlidingWindow,
                                           Algorithm::kSlidingLog),
                         NameOf);

TEST_P(LeastLimitTest, RefusesNothingAndALowerOneRefuses) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Log log(500, 4, seed);
    const Limit shape = MakeLimit(1, 7 * kSecond, GetParam());
    const auto least = LeastLimits(shape, log.keys, log.times.size(), log.codes.data(),
                                   log.times.data(), log.costs.data());
    ASSERT_TRUE(least.ok()) << least.status();
    for (uint32_t key = 0; key < log.keys; ++key) {
      for (const int64_t less : {0, 1}) {
        const int64_t count = (*least)[key] - less;
        const auto decisions = Expected({MakeLimit(count, 7 * kSecond, GetParam())}, log);
        int refused = 0;
        for (size_t i = 0; i < decisions.size(); ++i) {
          refused += log.codes[i] == key && !decisions[i].allowed;
        }
        EXPECT_EQ(refused > 0, less == 1) << count << " of key " << key;
      }
    }
  }
}

// Another thread may change the array, and the search for a count would not end.
TEST(LeastLimitOfNobodyTest, TimesThatFallAreRefused) {
  const std::vector<uint32_t> codes = {0, 0};
  const std::vector<int64_t> times = {60 * kSecond, 0};
  const auto least = LeastLimits(MakeLimit(1, kSecond), 1, 2, codes.data(), times.data(), nullptr);
  EXPECT_EQ(least.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LeastLimitOfNobodyTest, AKeyWithoutRequestsNeedsNothing) {
  const auto least = LeastLimits(MakeLimit(1, kSecond), 3, 0, nullptr, nullptr, nullptr);
  ASSERT_TRUE(least.ok());
  EXPECT_EQ(*least, (std::vector<int64_t>{0, 0, 0}));
}

TEST(RuleReplayerTest, NamesTheRuleThatBinds) {
  RuleSetSpec spec;
  spec.rules.push_back(
      {.id = "api", .by = {"user"}, .limits = {{.limits = {MakeLimit(1, 60 * kSecond)}}}});
  std::vector<RuleProblem> problems;
  const auto rules = RuleSet::Compile(std::move(spec), &problems);
  ASSERT_NE(rules, nullptr);
  auto replayer = RuleReplayer::Create(rules);
  ASSERT_TRUE(replayer.ok());
  const std::vector<std::string_view> names = {"ann", std::string_view()};
  const std::vector<uint32_t> codes = {0, 1, 0};
  const AttributeColumn users{static_cast<uint32_t>(rules->AttributeNumber("user")), codes.data(),
                              names};
  const std::vector<int64_t> times = {kStart, kStart + 1, kStart + 2};
  Answers answers(3);
  (*replayer)->Run({3, times.data(), nullptr}, {users}, nullptr, 0, 3, answers.columns());
  EXPECT_EQ(answers.allowed, (std::vector<uint8_t>{1, 1, 0}));
  EXPECT_EQ((*replayer)->names(), (std::vector<std::string>{"api", ""}));
  EXPECT_EQ(answers.rule, (std::vector<uint32_t>{0, 1, 0}));
}

}  // namespace
}  // namespace tidegate::testing
