#include "tidegate/clock.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

int64_t KernelNs(clockid_t id) {
  timespec t;
  clock_gettime(id, &t);
  return int64_t{t.tv_sec} * kSecond + t.tv_nsec;
}

// How long to watch the system clock. It calibrates the counter's rate after 10, 20, 40, ... ms,
// and then every second; this reaches the calibrations of every second.
constexpr int64_t kWatchNs = 1'500 * kMs;

TEST(ManualClockTest, StandsStillUntilItIsMoved) {
  ManualClock clock(5);
  EXPECT_EQ(clock.NowNs(), 5);
  clock.AdvanceNs(10);
  EXPECT_EQ(clock.NowNs(), 15);
  clock.AdvanceNs(-15);
  EXPECT_EQ(clock.NowNs(), 0);
  clock.SetNs(kSecond);
  EXPECT_EQ(clock.NowNs(), kSecond);
}

TEST(ManualClockTest, StaysWithinItsBounds) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  ManualClock clock;
  clock.AdvanceNs(-1);
  EXPECT_EQ(clock.NowNs(), 0);
  clock.AdvanceNs(kLeast);
  EXPECT_EQ(clock.NowNs(), 0);
  clock.AdvanceNs(kMost);
  EXPECT_EQ(clock.NowNs(), kMaxInstantNs);
  clock.AdvanceNs(kMost);
  EXPECT_EQ(clock.NowNs(), kMaxInstantNs);
  clock.SetNs(kMost);
  EXPECT_EQ(clock.NowNs(), kMaxInstantNs);
  clock.SetNs(kLeast);
  EXPECT_EQ(clock.NowNs(), 0);
}

// A start outside the range must not get past the bounds that steps rely on.
TEST(ManualClockTest, StartIsClampedToo) {
  EXPECT_EQ(ManualClock(-1).NowNs(), 0);
  EXPECT_EQ(ManualClock(std::numeric_limits<int64_t>::max()).NowNs(), kMaxInstantNs);
}

TEST(ManualClockTest, AdvancesAddUpAcrossThreads) {
  ManualClock clock;
  RunThreads(8, [&](int) {
    for (int i = 0; i < 10'000; ++i) clock.AdvanceNs(3);
  });
  EXPECT_EQ(clock.NowNs(), 8 * 10'000 * 3);
}

TEST(SystemClockTest, BeginsAtUnixTime) {
  const int64_t now = SystemClock::Get().NowNs();
  // The wall clock may be set while the test runs; being off by a day is a bug.
  EXPECT_LT(std::abs(now - KernelNs(CLOCK_REALTIME)), 86'400 * kSecond);
}

// The clock never goes back, and never differs from the kernel's monotonic clock by 50 us. One loop
// tests both, because it takes long until the clock settles.
TEST(SystemClockTest, FollowsTheMonotonicClockAndNeverGoesBack) {
  constexpr int64_t kMostApartNs = 50'000;
  SystemClock& clock = SystemClock::Get();
  const int64_t end = KernelNs(CLOCK_MONOTONIC) + kWatchNs;
  // Each reading takes place between two readings of the kernel's clock, so the difference between
  // the two clocks is between these bounds.
  int64_t most_ahead = std::numeric_limits<int64_t>::max();
  int64_t least_ahead = std::numeric_limits<int64_t>::min();
  int64_t last = 0;
  int64_t backwards = 0;
  for (int64_t before = KernelNs(CLOCK_MONOTONIC); before < end;) {
    for (int i = 0; i < 32; ++i) {
      const int64_t now = clock.Now();
      backwards += now < last;
      last = now;
    }
    const int64_t now = clock.Now();
    const int64_t after = KernelNs(CLOCK_MONOTONIC);
    backwards += now < last;
    last = now;
    most_ahead = std::min(most_ahead, now - before);
    least_ahead = std::max(least_ahead, now - after);
    before = after;
  }
  EXPECT_EQ(backwards, 0);
  EXPECT_LT(least_ahead - most_ahead, kMostApartNs);
}

// A second look confirms that the wall clock was set: by itself one may have met a glitch.
TEST(WallFollowerTest, FollowsAStepThatStays) {
  std::atomic<int64_t> correction{0};
  WallFollower follower(1'000 * kSecond, &correction);
  follower.Look(1'000 * kSecond + kSecond - 1);  // too little to be a step
  follower.Look(1'000 * kSecond + kSecond - 1);
  EXPECT_EQ(correction.load(), 0);
  follower.Look(5'000 * kSecond);
  EXPECT_EQ(correction.load(), 0);
  follower.Look(5'000 * kSecond + 7);
  EXPECT_EQ(correction.load(), 4'000 * kSecond + 7);
  follower.Look(-3'000 * kSecond);
  follower.Look(-3'000 * kSecond);
  EXPECT_EQ(correction.load(), -4'000 * kSecond);
}

TEST(WallFollowerTest, IgnoresAStepThatIsTakenBackOrChanges) {
  std::atomic<int64_t> correction{0};
  WallFollower follower(0, &correction);
  for (int i = 0; i < 10; ++i) {
    follower.Look(3'600 * kSecond);
    follower.Look(0);
  }
  for (int i = 0; i < 10; ++i) follower.Look((i % 2 == 0 ? 100 : 200) * kSecond);
  EXPECT_EQ(correction.load(), 0);
}

// Both looked twice; the first one that follows does it for both.
TEST(WallFollowerTest, FollowersOfOneClockAgree) {
  std::atomic<int64_t> correction{0};
  WallFollower one(0, &correction);
  WallFollower other(-2 * kSecond, &correction);  // sees it from a process two seconds away
  one.Look(50 * kSecond);
  one.Look(50 * kSecond);
  other.Look(48 * kSecond);
  other.Look(48 * kSecond);
  EXPECT_EQ(correction.load(), 50 * kSecond);
}

TEST(SystemClockTest, NeverGoesBackInAnyThread) {
  SystemClock& clock = SystemClock::Get();
  const int64_t end = KernelNs(CLOCK_MONOTONIC) + kWatchNs;
  std::atomic<int64_t> backwards{0};
  std::atomic<int64_t> most_ns{0};
  RunThreads(8, [&](int) {
    int64_t last = 0;
    int64_t mine = 0;
    int64_t worst = 0;
    while (KernelNs(CLOCK_MONOTONIC) < end) {
      for (int i = 0; i < 1'000; ++i) {
        const int64_t now = clock.Now();
        if (now < last) {
          ++mine;
          worst = std::max(worst, last - now);
        }
        last = now;
      }
    }
    backwards += mine;
    int64_t seen = most_ns.load();
    while (seen < worst && !most_ns.compare_exchange_weak(seen, worst)) {
    }
  });
  EXPECT_EQ(backwards.load(), 0) << "by " << most_ns.load() << " ns at most";
}

}  // namespace
}  // namespace tidegate::testing
