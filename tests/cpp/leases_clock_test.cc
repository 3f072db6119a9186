// The line through the counter is never behind the kernel's clock, and ends where that was set.
#include "leases/clock.h"

#include "gtest/gtest.h"

#include "testing.h"

namespace tidegate::leases {
namespace {

using testing::kMs;

// A kernel and a counter of five ticks in two nanoseconds.
class CounterLineTest : public ::testing::Test {
 protected:
  void Pass(int64_t ns) {
    now_ns_ += ns;
    ticks_ += static_cast<uint64_t>(ns) * 5 / 2;
  }
  // The kernel sets its clocks, and a call reads them.
  void Draw() {
    ++set_ns_;
    line_.Draw({set_ns_, ticks_, now_ns_});
  }
  void DrawUntilItHolds() {
    for (int i = 0; i < 3; ++i) {
      Pass(4 * kMs);
      Draw();
    }
    ASSERT_TRUE(Holds());
  }
  bool Holds() const { return line_.At(set_ns_, ticks_).has_value(); }

  CounterLine line_;
  int64_t set_ns_ = 7;
  int64_t now_ns_ = 1'000'000 * kMs;
  uint64_t ticks_ = 5'000'000;
};

TEST_F(CounterLineTest, HoldsOnceTwoRatesAgree) {
  EXPECT_FALSE(line_.At(0, 0).has_value());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(Holds());
    Pass(4 * kMs);
    Draw();
  }
  EXPECT_EQ(line_.At(set_ns_, ticks_), now_ns_);
}

TEST_F(CounterLineTest, IsNeverBehindAndHardlyAhead) {
  DrawUntilItHolds();
  const int64_t begun_ns = now_ns_;
  for (; now_ns_ - begun_ns < CounterLine::kLongestNs; Pass(12'347)) {
    const auto at = line_.At(set_ns_, ticks_);
    ASSERT_TRUE(at.has_value());
    EXPECT_GE(*at, now_ns_);
    EXPECT_LE(*at, now_ns_ + 10'000);
  }
  Pass(kMs);
  EXPECT_FALSE(Holds());
}

TEST_F(CounterLineTest, IsNotBehindAClockThatIsSlewed) {
  DrawUntilItHolds();
  // From here on 500 millionths faster than before.
  for (int64_t passed = 0; passed < 9 * kMs; passed += kMs) {
    EXPECT_GE(*line_.At(set_ns_, ticks_), now_ns_ + passed / 2'000);
    Pass(kMs);
  }
}

TEST_F(CounterLineTest, EndsWhereTheKernelSetItsClocks) {
  DrawUntilItHolds();
  // The machine was suspended, and the counter stood still meanwhile.
  EXPECT_FALSE(line_.At(set_ns_ + 1, ticks_ + 10).has_value());
  EXPECT_TRUE(line_.At(set_ns_, ticks_ + 10).has_value());
}

TEST_F(CounterLineTest, IsNotDrawnAfterASuspensionUntilTwoRatesAgree) {
  DrawUntilItHolds();
  now_ns_ += 3'600'000 * kMs;
  Draw();
  EXPECT_FALSE(Holds());
  Pass(4 * kMs);
  Draw();
  EXPECT_FALSE(Holds()) << "the rate was that of an hour without ticks";
  Pass(4 * kMs);
  Draw();
  EXPECT_EQ(line_.At(set_ns_, ticks_), now_ns_);
}

TEST_F(CounterLineTest, BeginsAnewWithTheCounterAndWithTheClock) {
  DrawUntilItHolds();
  ticks_ = 1;
  Draw();
  EXPECT_FALSE(Holds());
  DrawUntilItHolds();
  now_ns_ -= 50 * kMs;
  Draw();
  EXPECT_FALSE(Holds());
  DrawUntilItHolds();
  line_.Forget();
  EXPECT_FALSE(Holds());
  DrawUntilItHolds();
}

TEST_F(CounterLineTest, KeepsTheRateBetweenReadingsThatLieCloseTogether) {
  DrawUntilItHolds();
  // Half a microsecond between the counter and the clock would be much of such a time.
  for (int i = 0; i < 20; ++i) {
    Pass(100'000);
    now_ns_ += i % 2 == 0 ? 500 : -500;
    Draw();
    EXPECT_EQ(line_.At(set_ns_, ticks_), now_ns_);
  }
}

TEST(LeaseClockTest, IsThatOfTheKernelOnAllThreads) {
  testing::RunThreads(3, [](int) {
    for (int i = 0; i < 100'000; ++i) {
      const int64_t before = LeaseNowNs();
      const int64_t now = LeaseClock::NowNs();
      const int64_t after = LeaseNowNs();
      // A processor may read the counter a little before.
      ASSERT_GE(now, before - 1'000);
      ASSERT_LE(now, after + 10'000 + 1'000);
    }
  });
}

}  // namespace
}  // namespace tidegate::leases
