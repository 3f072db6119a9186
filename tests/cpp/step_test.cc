#include "tidegate/step.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "step_laws.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

__extension__ typedef __int128 Wide;

constexpr Algorithm kCellAlgorithms[] = {Algorithm::kTokenBucket, Algorithm::kLeakyBucket,
                                         Algorithm::kFixedWindow, Algorithm::kSlidingWindow};

// One key under one limit.
struct Key {
  explicit Key(Limit l) : limit(std::move(l)) {}

  Decision Hit(int64_t now_ns, int64_t cost = 1) {
    CellState next;
    const Decision decision = Step(limit, state, now_ns, cost, &next);
    state = next;
    return decision;
  }
  Decision Ask(int64_t now_ns, int64_t cost = 1) const { return Peek(limit, state, now_ns, cost); }
  void GiveBack(int64_t now_ns, int64_t cost = 1) { state = Refund(limit, state, now_ns, cost); }

  Limit limit;
  CellState state;
};

void ExpectLawful(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  const char* const broken = BrokenLaw(limit, state, now_ns, cost);
  ASSERT_EQ(broken, nullptr) << broken << ": " << AlgorithmName(limit.algorithm()) << " "
                             << limit.ToString() << " at " << now_ns << ", cost " << cost
                             << ", state " << state.w0 << " " << state.w1;
}

// Draws limits of all magnitudes.
class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}

  int64_t UpTo(int64_t most) {
    const int64_t bound = std::min(most, int64_t{1} << (random_() % 62));
    return 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }
  bool OneIn(uint64_t n) { return random_() % n == 0; }

  Limit ALimit(Algorithm algorithm) {
    for (;;) {
      LimitSpec spec;
      spec.algorithm = algorithm;
      spec.count =
          UpTo(algorithm == Algorithm::kSlidingWindow ? Limit::kMaxWindowCount : Limit::kMaxCount);
      spec.period_ns = UpTo(Limit::kMaxPeriodNs);
      if (OneIn(2)) spec.count = std::min<int64_t>(spec.count, UpTo(64));
      if (IsBucket(algorithm) && OneIn(2)) spec.burst = UpTo(Limit::kMaxCount);
      if (absl::StatusOr<Limit> limit = Limit::Create(spec); limit.ok()) return *limit;
    }
  }

 private:
  std::mt19937_64 random_;
};

class StepTest : public ::testing::TestWithParam<Algorithm> {};

INSTANTIATE_TEST_SUITE_P(Algorithms, StepTest, ::testing::ValuesIn(kCellAlgorithms), NameOf);

TEST_P(StepTest, EveryDecisionOfARandomWalkIsExact) {
  Draw draw(3);
  for (int i = 0; i < 2'000; ++i) {
    Key key(draw.ALimit(GetParam()));
    int64_t now = draw.OneIn(4) ? 1 : kStart;
    const int64_t capacity = key.limit.capacity();
    for (int j = 0; j < 30; ++j) {
      const int64_t cost = draw.UpTo(capacity + 1);
      ExpectLawful(key.limit, key.state, now, cost);
      if (HasFatalFailure()) return;
      const Decision d = key.Hit(now, cost);
      if (draw.OneIn(8)) key.GiveBack(now, draw.UpTo(cost));
      int64_t wait = draw.UpTo(key.limit.period_ns());
      if (!d.allowed && d.retry_after_ns != Decision::kNever && draw.OneIn(2)) {
        wait = d.retry_after_ns;
      }
      now = std::min(kMaxInstantNs - wait, now) + wait;
    }
  }
}

TEST_P(StepTest, EveryDecisionIsExactIfTheClockGoesBack) {
  Draw draw(4);
  for (int i = 0; i < 2'000; ++i) {
    Key key(draw.ALimit(GetParam()));
    int64_t now = kStart;
    for (int j = 0; j < 30; ++j) {
      const int64_t cost = draw.UpTo(key.limit.capacity());
      if (!draw.OneIn(3)) {
        now += draw.UpTo(key.limit.period_ns() / 2 + 1);
      } else {
        now -= std::min(now, draw.UpTo(2 * key.limit.period_ns()));
      }
      now = std::min(now, kMaxInstantNs);
      ExpectLawful(key.limit, key.state, now, cost);
      if (HasFatalFailure()) return;
      key.Hit(now, cost);
    }
  }
}

TEST_P(StepTest, NothingOverflows) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const int64_t most_count =
      GetParam() == Algorithm::kSlidingWindow ? Limit::kMaxWindowCount : Limit::kMaxCount;
  for (const int64_t count : {int64_t{1}, int64_t{7}, most_count}) {
    // A sliding window looks two periods ahead, so the longest is half as long.
    const int64_t longest = Limit::kMaxPeriodNs / (GetParam() == Algorithm::kSlidingWindow ? 2 : 1);
    for (const int64_t period : {int64_t{1}, kSecond, longest}) {
      const Limit limit = MakeLimit(count, period, GetParam());
      for (const int64_t now :
           {int64_t{1}, Limit::kMaxPeriodNs + 1, kMaxInstantNs - 1, kMaxInstantNs}) {
        CellState state;
        for (const int64_t cost : {int64_t{1}, count, count + 1, kMost - 1, kMost}) {
          ExpectLawful(limit, state, now, cost);
          CellState next;
          Step(limit, state, now, cost, &next);
          if (HasFatalFailure()) return;
          for (const int64_t later : {now, std::min(now + period, kMaxInstantNs)}) {
            ExpectLawful(limit, next, later, cost);
            Refund(limit, next, later, kMost);
            Refund(limit, next, later, 1);
          }
          state = next;
        }
      }
    }
  }
}

TEST_P(StepTest, ACostBeyondTheCapacityNeverPassesAndCostsNothing) {
  Key key(MakeLimit(10, kSecond, GetParam()));
  key.Hit(kStart, 3);
  const CellState before = key.state;
  const Decision d = key.Hit(kStart, 11);
  EXPECT_FALSE(d.allowed);
  EXPECT_EQ(d.retry_after_ns, Decision::kNever);
  EXPECT_EQ(d.remaining(), 7);
  EXPECT_EQ(key.state, before);
}

TEST_P(StepTest, ExactlyTheCapacityPassesAtOnce) {
  for (const int64_t now : {int64_t{0}, int64_t{1}, kStart, kMaxInstantNs}) {
    for (const int64_t period : {int64_t{1}, int64_t{7}, kSecond + 7}) {
      // At the epoch itself, a fraction of a nanosecond would look like an unused bucket, so it is
      // rounded up.
      if (now == 0 && period < kSecond) continue;
      for (const int64_t count : {int64_t{1}, int64_t{3}, int64_t{10}}) {
        Key key(MakeLimit(count, period, GetParam()));
        int64_t admitted = 0;
        while (admitted <= count && key.Hit(now).allowed) ++admitted;
        EXPECT_EQ(admitted, count) << count << " in " << period << " ns, at " << now;
      }
    }
  }
}

TEST_P(StepTest, ARefundGivesBackExactlyTheCharge) {
  for (const int64_t period : {int64_t{1}, int64_t{7}, kSecond + 7}) {
    Key key(MakeLimit(10, period, GetParam()));
    key.Hit(kStart, 4);
    key.Hit(kStart, 5);
    key.GiveBack(kStart, 5);
    EXPECT_EQ(key.Ask(kStart).remaining(), 6) << period;
    key.GiveBack(kStart, std::numeric_limits<int64_t>::max());
    EXPECT_EQ(key.Ask(kStart).remaining(), 10) << period;
    key.GiveBack(kStart, 1);
    EXPECT_EQ(key.Ask(kStart).remaining(), 10) << period;
  }
}

TEST_P(StepTest, ARefundGivesBackTheRefundableUnits) {
  for (const int64_t period : {int64_t{7}, kSecond + 7}) {
    Key key(MakeLimit(10, period, GetParam()));
    EXPECT_EQ(Refundable(key.limit, key.state, kStart), 0);
    key.Hit(kStart, 7);
    EXPECT_EQ(Refundable(key.limit, key.state, kStart), 7) << period;
    key.GiveBack(kStart, 4);
    EXPECT_EQ(Refundable(key.limit, key.state, kStart), 3) << period;
    // A part of a unit counts as a unit; expired units do not count.
    if (IsBucket(GetParam()) && period > kSecond) {
      EXPECT_EQ(Refundable(key.limit, key.state, kStart + 1), 3);
    }
    EXPECT_EQ(Refundable(key.limit, key.state, kStart + 2 * period), 0) << period;
    // This holds however far a clock that was ahead has moved it.
    key.Hit(kStart + 1'000 * period, 10);
    const int64_t most = Refundable(key.limit, key.state, kStart);
    EXPECT_LE(most, 10) << period;
    EXPECT_GE(most, 1) << period;
  }
}

TEST_P(StepTest, AClockThatGoesBackNeitherMintsNorLocksOut) {
  for (const int64_t back : {kSecond, 3'600 * kSecond, kStart}) {
    Key key(MakeLimit(10, 60 * kSecond, GetParam()));
    EXPECT_TRUE(key.Hit(kStart, 10).allowed);
    int64_t now = kStart - back;
    int64_t admitted = 0;
    // At most one additional burst may pass in the next two periods.
    for (int i = 0; i < 120; ++i, now += kSecond) admitted += key.Hit(now).allowed;
    EXPECT_GE(admitted, 9) << back;
    EXPECT_LE(admitted, 30) << back;
  }
}

TEST_P(StepTest, AClockThatIsALittleBehindOnlyRefuses) {
  Key key(MakeLimit(10, 60 * kSecond, GetParam()));
  const int64_t window = (kStart / (60 * kSecond) + 1) * 60 * kSecond;
  EXPECT_TRUE(key.Hit(window, 10).allowed);
  const CellState full = key.state;
  const Decision d = key.Hit(window - kClockToleranceNs);
  EXPECT_FALSE(d.allowed);
  EXPECT_FALSE(d.behind);
  EXPECT_EQ(key.state, full);
}

TEST(StepBucketTest, SevenASecondIsExactToTheNanosecond) {
  Key key(MakeLimit(LimitSpec{.count = 7, .period_ns = kSecond, .burst = 1}));
  const Decision first = key.Hit(kStart);
  EXPECT_TRUE(first.allowed);
  EXPECT_EQ(first.remaining(), 0);
  EXPECT_EQ(first.reset_after_ns, 142'857'143);  // 142857142 6/7, rounded up
  EXPECT_EQ(key.Hit(kStart).retry_after_ns, 142'857'143);
  EXPECT_FALSE(key.Hit(kStart + 142'857'142).allowed);
  EXPECT_TRUE(key.Hit(kStart + 142'857'143).allowed);
}

TEST(StepBucketTest, AtInstantZeroUsageIsRoundedUpToANanosecond) {
  const Limit limit = MakeLimit(184'683'593'729, 1);
  Key key(limit);
  for (int call = 0; call < 3; ++call) {
    ExpectLawful(limit, key.state, 0, 1);
    key.Hit(0);
  }
  EXPECT_EQ(key.Ask(1).remaining(), limit.capacity());
}

TEST(StepBucketTest, TheBurstMayBeLargerOrSmallerThanTheCount) {
  Key large(MakeLimit(LimitSpec{.count = 10, .period_ns = kSecond, .burst = 40}));
  EXPECT_TRUE(large.Hit(kStart, 40).allowed);
  EXPECT_EQ(large.Hit(kStart, 40).retry_after_ns, 4 * kSecond);
  Key small(MakeLimit(LimitSpec{.count = 10, .period_ns = kSecond, .burst = 1}));
  EXPECT_TRUE(small.Hit(kStart).allowed);
  EXPECT_EQ(small.Hit(kStart).retry_after_ns, 100 * kMs);
}

TEST(StepBucketTest, ALeakyBucketReturnsThePlaceInTheQueue) {
  Key key(MakeLimit(10, kSecond, Algorithm::kLeakyBucket));
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(key.Hit(kStart).delay_ns, i * 100 * kMs);
  const Decision full = key.Hit(kStart);
  EXPECT_FALSE(full.allowed);
  EXPECT_EQ(full.delay_ns, 0);
  EXPECT_EQ(full.retry_after_ns, 100 * kMs);
  EXPECT_EQ(key.Hit(kStart + 150 * kMs).delay_ns, 850 * kMs);
}

// Compares with a bucket that is simulated in 128 bits, in units of 1/count ns.
TEST(StepBucketTest, AgreesWithASimulatedBucket) {
  Draw draw(5);
  for (int i = 0; i < 3'000; ++i) {
    Key key(draw.ALimit(Algorithm::kTokenBucket));
    const Wide count = key.limit.count();
    const Wide period = key.limit.period_ns();
    const Wide depth = key.limit.burst() * period;
    int64_t now = draw.OneIn(2) ? 1 : kStart;
    Wide used = 0;
    for (int j = 0; j < 60; ++j) {
      const int64_t cost = draw.UpTo(key.limit.burst());
      const Decision d = key.Hit(now, cost);
      const bool fits = used + cost * period <= depth;
      if (fits) used += cost * period;
      ASSERT_EQ(d.allowed, fits);
      ASSERT_EQ(d.remaining(), static_cast<int64_t>((depth - used) / period));
      ASSERT_EQ(d.reset_after_ns, static_cast<int64_t>((used + count - 1) / count));
      const int64_t wait = draw.UpTo(std::max<int64_t>(1, key.limit.depth_ns()));
      now = std::min(kMaxInstantNs - wait, now) + wait;
      if (now == kMaxInstantNs) break;
      used = std::max<Wide>(0, used - wait * count);
    }
  }
}

struct Rate {
  int64_t count;
  int64_t period_ns;
  Algorithm algorithm;
};

class RateTest : public ::testing::TestWithParam<Rate> {};

// A caller that always retries as early as it may is admitted at start + ceil(k * T), and at no
// other instant, however large k is.
TEST_P(RateTest, IsKeptToTheNanosecondOverAMillionEvents) {
  const Rate rate = GetParam();
  // More than the units of a nanosecond, so that the bucket never becomes full.
  constexpr int64_t kBurst = 10;
  Key key(MakeLimit(LimitSpec{.count = rate.count,
                              .period_ns = rate.period_ns,
                              .burst = kBurst,
                              .algorithm = rate.algorithm}));
  ASSERT_TRUE(key.Hit(kStart, kBurst).allowed);
  int64_t now = kStart;
  for (int64_t k = 1; k <= 1'000'000; ++k) {
    const auto earliest =
        static_cast<int64_t>((Wide{k} * rate.period_ns + rate.count - 1) / rate.count);
    const Decision early = key.Hit(now);
    if (!early.allowed) {
      now += early.retry_after_ns;
      ASSERT_TRUE(key.Hit(now).allowed) << k;
    }
    ASSERT_EQ(now, kStart + earliest) << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Rates, RateTest,
                         ::testing::Values(Rate{7, kSecond, Algorithm::kTokenBucket},
                                           Rate{1'000'000, kSecond, Algorithm::kTokenBucket},
                                           Rate{1'000'000'000, kSecond, Algorithm::kTokenBucket},
                                           Rate{999'999'937, kSecond, Algorithm::kTokenBucket},
                                           Rate{3, 1, Algorithm::kTokenBucket},
                                           Rate{7, kSecond, Algorithm::kLeakyBucket}));

TEST(StepFixedTest, WindowsAreAlignedToTheEpoch) {
  Key key(MakeLimit(3, kSecond, Algorithm::kFixedWindow));
  const int64_t window = kStart / kSecond * kSecond;
  EXPECT_TRUE(key.Hit(window + 900 * kMs, 3).allowed);
  const Decision full = key.Hit(window + 900 * kMs);
  EXPECT_EQ(full.retry_after_ns, 100 * kMs);
  EXPECT_EQ(full.reset_after_ns, 100 * kMs);
  EXPECT_FALSE(key.Hit(window + kSecond - 1).allowed);
  EXPECT_EQ(key.Hit(window + kSecond).remaining(), 2);
}

TEST(StepFixedTest, NeverMoreThanTheCountInAnyWindow) {
  Draw draw(6);
  for (int i = 0; i < 300; ++i) {
    Key key(MakeLimit(draw.UpTo(50), draw.UpTo(1'000), Algorithm::kFixedWindow));
    std::map<int64_t, int64_t> admitted;
    int64_t now = draw.UpTo(kStart);
    for (int j = 0; j < 300; ++j, now += draw.UpTo(40)) {
      const int64_t cost = draw.UpTo(8);
      int64_t& used = admitted[now / key.limit.period_ns()];
      const bool fits = used + cost <= key.limit.count();
      ASSERT_EQ(key.Hit(now, cost).allowed, fits);
      if (fits) used += cost;
    }
  }
}

TEST(StepFixedTest, MonthsAndYearsFollowTheCalendar) {
  constexpr int64_t kDay = 86'400 * kSecond;
  const auto limit = [](Calendar calendar, int64_t units) {
    return MakeLimit(LimitSpec{.count = 1,
                               .period_ns = 30 * kDay,
                               .algorithm = Algorithm::kFixedWindow,
                               .calendar = calendar,
                               .calendar_units = units});
  };
  constexpr int64_t kFeb2024 = 1'706'745'600 * kSecond;  // 2024-02-01T00:00:00Z
  Key month(limit(Calendar::kMonth, 1));
  EXPECT_TRUE(month.Hit(kFeb2024).allowed);
  EXPECT_EQ(month.Hit(kFeb2024).retry_after_ns, 29 * kDay);
  EXPECT_FALSE(month.Hit(kFeb2024 + 29 * kDay - 1).allowed);
  EXPECT_TRUE(month.Hit(kFeb2024 + 29 * kDay).allowed);
  Key year(limit(Calendar::kYear, 1));
  EXPECT_EQ(year.Hit(kFeb2024).reset_after_ns, (366 - 31) * kDay);
  // Groups of months are counted from January 1970.
  Key quarter(limit(Calendar::kMonth, 3));
  EXPECT_EQ(quarter.Hit(kFeb2024).reset_after_ns, (29 + 31) * kDay);
  Key century(limit(Calendar::kYear, 100));
  EXPECT_TRUE(century.Hit(kMaxInstantNs).allowed);
  EXPECT_FALSE(century.Hit(kMaxInstantNs).allowed);
  EXPECT_GT(century.Hit(kMaxInstantNs).retry_after_ns, 0);
}

// Compares with the formula, computed in 128 bits.
TEST(StepSlidingTest, AgreesWithTheFormula) {
  Draw draw(7);
  for (int i = 0; i < 3'000; ++i) {
    Key key(draw.ALimit(Algorithm::kSlidingWindow));
    const int64_t period = key.limit.period_ns();
    std::map<int64_t, int64_t> admitted;
    int64_t now = draw.UpTo(kStart);
    for (int j = 0; j < 60; ++j) {
      const int64_t window = now / period;
      const auto found = admitted.find(window - 1);
      const Wide previous = found == admitted.end() ? 0 : found->second;
      const Wide left = period - now % period;
      const Wide estimate = admitted[window] + (previous * left + period - 1) / period;
      const int64_t cost = draw.UpTo(key.limit.count());
      const Decision d = key.Hit(now, cost);
      const bool fits = estimate + cost <= key.limit.count();
      ASSERT_EQ(d.allowed, fits);
      if (fits) admitted[window] += cost;
      const Wide stands = estimate + (fits ? cost : 0);
      ASSERT_EQ(d.remaining(), static_cast<int64_t>(std::max<Wide>(0, key.limit.count() - stands)));
      const int64_t wait = std::min(draw.UpTo(2 * period), kMaxInstantNs / 2);
      now = std::min(kMaxInstantNs / 2 - wait, now) + wait;
    }
  }
}

TEST(StepSlidingTest, TheRetryMayBeInTheNextWindow) {
  Key key(MakeLimit(10, kSecond, Algorithm::kSlidingWindow));
  const int64_t window = (kStart / kSecond + 1) * kSecond;
  EXPECT_TRUE(key.Hit(window, 10).allowed);
  // One unit fits a tenth into the next window, when the ten units of this one count as nine.
  EXPECT_EQ(key.Hit(window + 500 * kMs).retry_after_ns, 600 * kMs);
}

}  // namespace
}  // namespace tidegate::testing
