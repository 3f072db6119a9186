#include "tidegate/replay.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

void ExpectSame(const Decision& a, const Decision& b, size_t at) {
  ASSERT_EQ(a.allowed, b.allowed) << at;
  ASSERT_EQ(a.rule, b.rule) << at;
  ASSERT_EQ(a.limit->ToString(), b.limit->ToString()) << at;
  ASSERT_EQ(a.remaining(), b.remaining()) << at;
  ASSERT_EQ(a.retry_after_ns, b.retry_after_ns) << at;
  ASSERT_EQ(a.reset_after_ns, b.reset_after_ns) << at;
  ASSERT_EQ(a.delay_ns, b.delay_ns) << at;
  ASSERT_EQ(a.at_ns, b.at_ns) << at;
}

TEST(ReplayTest, OfNoRequestsHasNoDecisions) {
  const std::vector<Limit> limits = {MakeLimit(1, kSecond)};
  EXPECT_TRUE(Replay(limits, {}).empty());
}

// The limiter and replay decide alike: with single limits and plans of up to three, of all
// algorithms, on a clock that also goes back.
TEST(ReplayTest, AgreesWithTheMemoryStore) {
  std::mt19937_64 random(23);
  for (int round = 0; round < 120; ++round) {
    std::vector<Limit> limits;
    const size_t n = 1 + random() % 3;
    for (size_t i = 0; i < n; ++i) {
      // The counts differ because equal limits would be charged once.
      limits.push_back(MakeLimit(static_cast<int64_t>(3 + 10 * i + random() % 9),
                                 static_cast<int64_t>(1 + random() % 2'000) * kMs,
                                 kAllAlgorithms[random() % std::size(kAllAlgorithms)]));
    }
    std::vector<std::string> names = {"a", "b", std::string("b\0", 2), std::string(100, 'c')};
    std::vector<ReplayEvent> events;
    int64_t now = kStart;
    for (int i = 0; i < 300; ++i) {
      now += static_cast<int64_t>(random() % 200) * kMs;
      if (round % 2 == 0 && random() % 50 == 0) {
        now -= static_cast<int64_t>(random() % 10'000) * kMs;
      }
      events.push_back({names[random() % names.size()], now,
                        static_cast<int64_t>(1 + random() % (random() % 20 == 0 ? 40 : 4))});
    }
    const std::vector<Decision> decisions = Replay(limits, events);
    ASSERT_EQ(decisions.size(), events.size());
    Fixture f(limits);
    for (size_t i = 0; i < events.size(); ++i) {
      f.clock->SetNs(events[i].now_ns);
      ExpectSame(decisions[i], f.limiter->Hit(events[i].key, events[i].cost), i);
      if (HasFatalFailure()) {
        for (const Limit& limit : limits) {
          ADD_FAILURE() << "with " << AlgorithmName(limit.algorithm()) << " " << limit.ToString();
        }
        return;
      }
    }
  }
}

TEST(ReplayTest, InstantsAreClamped) {
  const std::vector<Limit> limits = {MakeLimit(1, Limit::kMaxPeriodNs)};
  const std::vector<ReplayEvent> events = {
      {"a", std::numeric_limits<int64_t>::min()},
      {"a", -1},
      {"b", std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()},
      {"b", std::numeric_limits<int64_t>::max()}};
  const std::vector<Decision> decisions = Replay(limits, events);
  EXPECT_TRUE(decisions[0].allowed);
  EXPECT_EQ(decisions[0].at_ns, 0);
  EXPECT_FALSE(decisions[1].allowed);
  EXPECT_EQ(decisions[2].retry_after_ns, Decision::kNever);
  EXPECT_EQ(decisions[3].at_ns, kMaxInstantNs);
  EXPECT_TRUE(decisions[3].allowed);
}

TEST(ReplayTest, DecisionsPointIntoTheLimitsGiven) {
  const std::vector<Limit> limits = {MakeLimit(5, kSecond), MakeLimit(2, 60 * kSecond)};
  const std::vector<ReplayEvent> events = {{"a", kStart}, {"a", kStart}, {"a", kStart}};
  const std::vector<Decision> decisions = Replay(limits, events);
  EXPECT_EQ(decisions[2].limit, &limits[1]);
  EXPECT_EQ(decisions[2].rule, 1u);
}

}  // namespace
}  // namespace tidegate::testing
