#include "algorithms/log.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"
#include "tidegate/step.h"

namespace tidegate::testing {
namespace {

std::vector<int64_t> Elements(const InstantRing& ring) {
  std::vector<int64_t> out;
  for (size_t i = 0; i < ring.size(); ++i) out.push_back(ring[i]);
  return out;
}

TEST(InstantRingTest, AgreesWithADeque) {
  std::mt19937_64 random(8);
  InstantRing ring;
  std::deque<int64_t> expected;
  int64_t newest = 0;
  for (int i = 0; i < 200'000; ++i) {
    switch (random() % 8) {
      case 0:
      case 1:
      case 2: {
        newest += static_cast<int64_t>(random() % 3);
        const size_t times = random() % 5;
        ring.PushBack(newest, times);
        expected.insert(expected.end(), times, newest);
        break;
      }
      case 3:
      case 4: {
        const size_t n = std::min<size_t>(expected.size(), random() % 4);
        ring.PopFront(n);
        expected.erase(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(n));
        break;
      }
      case 5: {
        const size_t n = std::min<size_t>(expected.size(), random() % 3);
        ring.PopBack(n);
        expected.erase(expected.end() - static_cast<ptrdiff_t>(n), expected.end());
        break;
      }
      case 6:
        if (!expected.empty()) {
          const size_t at = random() % expected.size();
          ring.Remove(at, 1);
          expected.erase(expected.begin() + static_cast<ptrdiff_t>(at));
        }
        break;
      default: {
        const int64_t instant = newest - static_cast<int64_t>(random() % 4);
        ASSERT_EQ(ring.FirstAfter(instant),
                  static_cast<size_t>(std::upper_bound(expected.begin(), expected.end(), instant) -
                                      expected.begin()));
        if (random() % 8 == 0) {
          ring.ClampTo(instant);
          for (int64_t& e : expected) e = std::min(e, instant);
          newest = std::min(newest, instant);
        }
      }
    }
    ASSERT_EQ(ring.size(), expected.size());
    ASSERT_EQ(ring.empty(), expected.empty());
    if (!expected.empty()) {
      ASSERT_EQ(ring.newest(), expected.back());
      ASSERT_EQ(ring[0], expected.front());
    }
    if (i % 64 == 0) {
      ASSERT_EQ(Elements(ring), std::vector<int64_t>(expected.begin(), expected.end()));
    }
  }
}

class LogTest : public ::testing::TestWithParam<Algorithm> {
 protected:
  Limit Of(int64_t count, int64_t period_ns) const {
    return MakeLimit(count, period_ns, GetParam());
  }
};

INSTANTIATE_TEST_SUITE_P(Algorithms, LogTest,
                         ::testing::Values(Algorithm::kSlidingLog, Algorithm::kConcurrency),
                         NameOf);

TEST_P(LogTest, AUnitCountsForExactlyOnePeriod) {
  const Limit limit = Of(1, kSecond);
  InstantRing ring;
  EXPECT_TRUE(StepLog(limit, &ring, kStart, 1).allowed);
  const Decision d = StepLog(limit, &ring, kStart + kSecond - 1, 1);
  EXPECT_FALSE(d.allowed);
  EXPECT_EQ(d.retry_after_ns, 1);
  EXPECT_TRUE(StepLog(limit, &ring, kStart + kSecond, 1).allowed);
}

// No span of one period has more units than the count, a refused call would have exceeded the
// count, and retry_after and reset_after are exact.
TEST_P(LogTest, AgreesWithAListOfAdmissions) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 200; ++i) {
    const auto count = static_cast<int64_t>(1 + random() % 20);
    const auto period = static_cast<int64_t>(1 + random() % 500);
    const Limit limit = Of(count, period);
    InstantRing ring;
    std::vector<int64_t> admitted;
    int64_t now = random() % 2 == 0 ? 0 : kStart;
    for (int j = 0; j < 200; ++j) {
      const auto alive = [&](int64_t at) {
        return std::count_if(admitted.begin(), admitted.end(),
                             [&](int64_t instant) { return instant + period > at; });
      };
      const auto cost = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(count));
      const Decision peeked = PeekLog(limit, ring, now, cost);
      const std::vector<int64_t> before = Elements(ring);
      const Decision d = StepLog(limit, &ring, now, cost);
      ASSERT_EQ(peeked.allowed, d.allowed);
      ASSERT_EQ(peeked.remaining(), count - alive(now));
      ASSERT_EQ(d.allowed, alive(now) + cost <= count);
      if (d.allowed) {
        ASSERT_EQ(d.retry_after_ns, 0);
        admitted.insert(admitted.end(), static_cast<size_t>(cost), now);
      } else {
        ASSERT_EQ(Elements(ring), before);
        ASSERT_GT(alive(now + d.retry_after_ns - 1) + cost, count);
        ASSERT_LE(alive(now + d.retry_after_ns) + cost, count);
      }
      ASSERT_EQ(d.remaining(), count - alive(now));
      ASSERT_EQ(alive(now + d.reset_after_ns), 0);
      if (d.reset_after_ns > 0) {
        ASSERT_GT(alive(now + d.reset_after_ns - 1), 0);
      }
      now += static_cast<int64_t>(random() % 60);
    }
  }
}

TEST_P(LogTest, ACostBeyondTheCountNeverPasses) {
  const Limit limit = Of(3, kSecond);
  InstantRing ring;
  for (const int64_t cost : {int64_t{4}, std::numeric_limits<int64_t>::max()}) {
    const Decision d = StepLog(limit, &ring, kStart, cost);
    EXPECT_FALSE(d.allowed);
    EXPECT_EQ(d.retry_after_ns, Decision::kNever);
    EXPECT_EQ(PeekLog(limit, ring, kStart, cost).retry_after_ns, Decision::kNever);
    EXPECT_TRUE(ring.empty());
  }
}

TEST_P(LogTest, NothingOverflows) {
  const Limit limit = Of(3, Limit::kMaxPeriodNs);
  InstantRing ring;
  EXPECT_TRUE(StepLog(limit, &ring, kMaxInstantNs, 3).allowed);
  const Decision d = StepLog(limit, &ring, kMaxInstantNs, 1);
  EXPECT_EQ(d.retry_after_ns, Limit::kMaxPeriodNs);
  EXPECT_EQ(d.reset_after_ns, Limit::kMaxPeriodNs);
  // The clock goes back as far as it can.
  EXPECT_FALSE(PeekLog(limit, ring, 0, 1).allowed);
  EXPECT_FALSE(StepLog(limit, &ring, 0, 1).allowed);
  EXPECT_EQ(ring.newest(), Limit::kMaxPeriodNs);
  RefundLog(limit, &ring, 0, std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(ring.empty());
}

TEST_P(LogTest, AClockThatIsALittleBehindOnlyRefuses) {
  const Limit limit = Of(2, kSecond);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 1);
  const Decision d = StepLog(limit, &ring, kStart - kClockToleranceNs, 1);
  EXPECT_TRUE(d.allowed);
  EXPECT_FALSE(d.behind);
  // A later admission never ends before an earlier one.
  EXPECT_EQ(Elements(ring), std::vector<int64_t>(2, kStart + kSecond));
}

TEST_P(LogTest, AClockThatWentBackLocksOutForAtMostOnePeriod) {
  const Limit limit = Of(2, kSecond);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 2);
  const int64_t now = kStart - 3'600 * kSecond;
  EXPECT_TRUE(PeekLog(limit, ring, now, 1).behind);
  EXPECT_EQ(ring.newest(), kStart + kSecond) << "asking keeps nothing";
  const Decision d = StepLog(limit, &ring, now, 1);
  EXPECT_FALSE(d.allowed);
  EXPECT_TRUE(d.behind);
  EXPECT_EQ(d.retry_after_ns, kSecond);
  EXPECT_FALSE(StepLog(limit, &ring, now + kSecond - 1, 1).allowed);
  EXPECT_TRUE(StepLog(limit, &ring, now + kSecond, 2).allowed);
}

TEST_P(LogTest, ARefundForgetsTheNewestUnits) {
  const Limit limit = Of(5, kSecond);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 2);
  StepLog(limit, &ring, kStart + 10 * kMs, 2);
  EXPECT_EQ(RefundLog(limit, &ring, kStart + 20 * kMs, 3), 3);
  EXPECT_EQ(Elements(ring), std::vector<int64_t>{kStart + kSecond});
  // Units that have expired cannot be given back.
  EXPECT_EQ(RefundLog(limit, &ring, kStart + 2 * kSecond, 1), 0);
  EXPECT_EQ(PeekLog(limit, ring, kStart + 2 * kSecond, 1).remaining(), 5);
}

TEST_P(LogTest, ARefusalEvictsNothing) {
  const Limit limit = Of(1'000, kSecond);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 1'000);
  const size_t bytes = ring.bytes();
  for (int i = 0; i < 100; ++i) StepLog(limit, &ring, kStart + i, 1'000);
  EXPECT_EQ(ring.bytes(), bytes);
}

TEST(MostAtOnceTest, IsTheMostUnitsWithTheSameEnd) {
  InstantRing ring;
  EXPECT_EQ(MostAtOnce(ring, 0), 0u);
  ring.PushBack(10, 4);
  ring.PushBack(11, 1);
  ring.PushBack(12, 3);
  ring.PushBack(13, 1);
  EXPECT_EQ(MostAtOnce(ring, 0), 4u);
  EXPECT_EQ(MostAtOnce(ring, 2), 3u);
  EXPECT_EQ(MostAtOnce(ring, 4), 3u);
  EXPECT_EQ(MostAtOnce(ring, 8), 1u);
  EXPECT_EQ(MostAtOnce(ring, 9), 0u);
}

TEST(ReleaseLogTest, EndsTheLeaseOfItsHolder) {
  const Limit limit = MakeLimit(3, kSecond, Algorithm::kConcurrency);
  InstantRing ring;
  for (int64_t i = 0; i < 3; ++i) StepLog(limit, &ring, kStart + i, 1);
  ReleaseLog(limit, &ring, kStart + 1, kStart + 10, 1);
  EXPECT_EQ(Elements(ring), (std::vector<int64_t>{kStart + kSecond, kStart + 2 + kSecond}));
  EXPECT_TRUE(StepLog(limit, &ring, kStart + 10, 1).allowed);
}

TEST(ReleaseLogTest, ReleasingAnExpiredLeaseEndsNoOther) {
  const Limit limit = MakeLimit(1, kSecond, Algorithm::kConcurrency);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 1);
  EXPECT_TRUE(StepLog(limit, &ring, kStart + kSecond, 1).allowed);
  ReleaseLog(limit, &ring, kStart, kStart + kSecond, 1);
  EXPECT_FALSE(StepLog(limit, &ring, kStart + kSecond, 1).allowed);
}

TEST(ReleaseLogTest, ReleasesAllLeasesAtOnceAndIgnoresMore) {
  const Limit limit = MakeLimit(1'000, kSecond, Algorithm::kConcurrency);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 1'000);
  ReleaseLog(limit, &ring, kStart, kStart + 1, 400);
  EXPECT_EQ(ring.size(), 600u);
  ReleaseLog(limit, &ring, kStart, kStart + 1, std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(ring.empty());
}

TEST(ReleaseLogTest, ReleasesAMillionAtOnceInABoundedTime) {
  EXPECT_EQ(InChild([] {
              const Limit limit = MakeLimit(Limit::kMaxLogCount, kSecond, Algorithm::kConcurrency);
              InstantRing ring;
              StepLog(limit, &ring, kStart, Limit::kMaxLogCount);
              ReleaseLog(limit, &ring, kStart, kStart + 1, Limit::kMaxLogCount);
              return ring.empty();
            }),
            "ok");
}

// A clock that was a little behind recorded a holder after a newer one. The holder frees its own
// place.
TEST(ReleaseLogTest, AHolderRecordedLaterFreesItsOwnPlace) {
  const Limit limit = MakeLimit(2, kSecond, Algorithm::kConcurrency);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 1);
  const Decision late = StepLog(limit, &ring, kStart - 50 * kMs, 1);
  EXPECT_TRUE(late.late);
  ReleaseLog(limit, &ring, kStart - 50 * kMs, kStart + 10 * kMs, 1, late.late);
  EXPECT_EQ(ring.size(), 1u);
  EXPECT_TRUE(StepLog(limit, &ring, kStart + 10 * kMs, 1).allowed);
}

TEST(ReleaseLogTest, APlaceIsKnownByItsEnd) {
  const Limit limit = MakeLimit(1, kSecond, Algorithm::kConcurrency);
  for (const int64_t apart : {int64_t{0}, int64_t{1}, kClockToleranceNs, kClockToleranceNs + 1}) {
    for (const int64_t admitted : {kStart - apart, kStart + apart}) {
      for (const bool late : {false, true}) {
        InstantRing ring;
        EXPECT_FALSE(StepLog(limit, &ring, kStart, 1).late);
        ReleaseLog(limit, &ring, admitted, kStart + 200 * kMs, 1, late);
        EXPECT_EQ(ring.empty(), apart <= (late ? kClockToleranceNs : 0)) << admitted - kStart;
      }
    }
  }
}

TEST(ReleaseLogTest, AHolderFreesItsPlaceAfterTheClockWentBack) {
  const Limit limit = MakeLimit(2, kSecond, Algorithm::kConcurrency);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 1);
  StepLog(limit, &ring, kStart - 10 * kSecond, 1);
  ReleaseLog(limit, &ring, kStart, kStart - 10 * kSecond, 1);
  EXPECT_EQ(ring.size(), 1u);
}

TEST(ReleaseLogTest, ALogForgetsNewerUnitsInPlaceOfThoseThatAreGone) {
  const Limit limit = MakeLimit(2, kSecond, Algorithm::kSlidingLog);
  InstantRing ring;
  StepLog(limit, &ring, kStart + 500 * kMs, 1);
  ReleaseLog(limit, &ring, kStart, kStart + 600 * kMs, 1);
  EXPECT_TRUE(ring.empty());
}

TEST(ExtendLogTest, ALeaseEndsAPeriodFromNow) {
  const Limit limit = MakeLimit(3, kSecond, Algorithm::kConcurrency);
  InstantRing ring;
  for (int64_t i = 0; i < 3; ++i) StepLog(limit, &ring, kStart + i, 1);
  EXPECT_TRUE(ExtendLog(limit, &ring, kStart + 1, kStart + 10, 1));
  EXPECT_EQ(Elements(ring),
            (std::vector<int64_t>{kStart + kSecond, kStart + 2 + kSecond, kStart + 10 + kSecond}));
  ReleaseLog(limit, &ring, kStart + 10, kStart + 11, 1);
  EXPECT_EQ(Elements(ring), (std::vector<int64_t>{kStart + kSecond, kStart + 2 + kSecond}));
}

TEST(ExtendLogTest, ALeaseThatHasEndedIsLeftAlone) {
  const Limit limit = MakeLimit(1, kSecond, Algorithm::kConcurrency);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 1);
  EXPECT_FALSE(ExtendLog(limit, &ring, kStart, kStart + kSecond, 1));
  EXPECT_TRUE(StepLog(limit, &ring, kStart + kSecond, 1).allowed);
}

TEST(ExtendLogTest, NeverTakesMoreThanItHad) {
  const Limit limit = MakeLimit(4, kSecond, Algorithm::kConcurrency);
  InstantRing ring;
  StepLog(limit, &ring, kStart, 2);
  EXPECT_TRUE(ExtendLog(limit, &ring, kStart, kStart + 1, std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(ring.size(), 2u);
}

}  // namespace
}  // namespace tidegate::testing
