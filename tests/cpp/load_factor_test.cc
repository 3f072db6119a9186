#include "tidegate/load_factor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "testing.h"

namespace tidegate {
namespace {

TEST(LoadFactorTest, ChangesNoCostWithoutLoad) {
  const LoadFactor load;
  for (const int64_t cost : {int64_t{1}, int64_t{7}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_EQ(load.Draw(Priority::kNormal).Of(cost), cost);
    EXPECT_EQ(load.Most(Priority::kNormal).Of(cost), cost);
  }
}

TEST(LoadFactorTest, DividesWholeUnitsExactly) {
  LoadFactor load;
  load.Set(Priority::kNormal, 0.5);
  EXPECT_EQ(load.Draw(Priority::kNormal).Of(3), 6);
  EXPECT_EQ(load.Draw(Priority::kCritical).Of(3), 3);
  load.Set(Priority::kNormal, 1.0);
  EXPECT_EQ(load.Draw(Priority::kNormal).Of(3), 3);
}

TEST(LoadFactorTest, RoundsAFractionUpWithItsOwnProbability) {
  LoadFactor load;
  load.Set(Priority::kNormal, 0.75);
  int64_t sum = 0;
  constexpr int kTimes = 100'000;
  for (int i = 0; i < kTimes; ++i) {
    const int64_t units = load.Draw(Priority::kNormal).Of(1);
    ASSERT_TRUE(units == 1 || units == 2);
    sum += units;
  }
  // 133,333 with a standard deviation of 149.
  EXPECT_NEAR(static_cast<double>(sum), kTimes / 0.75, 1'000);
  EXPECT_EQ(load.Most(Priority::kNormal).Of(1), 2);
}

TEST(LoadFactorTest, NeverOverflows) {
  LoadFactor load;
  load.Set(Priority::kBackground, 0.0);
  EXPECT_GT(load.Get(Priority::kBackground), 0.0);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(load.Draw(Priority::kBackground).Of(most), most);
  EXPECT_EQ(load.Most(Priority::kBackground).Of(most), most);
  EXPECT_EQ(load.Draw(Priority::kBackground).Of(1), 1024);
}

TEST(LoadFactorTest, CanBeSetWhileOtherThreadsUseIt) {
  LoadFactor load;
  testing::RunThreads(3, [&](int thread) {
    for (int i = 0; i < 2'000; ++i) {
      if (thread == 0) load.Set(Priority::kNormal, i % 2 == 0 ? 0.5 : 1.0);
      const int64_t units = load.Draw(Priority::kNormal).Of(1);
      EXPECT_TRUE(units == 1 || units == 2);
    }
  });
}

TEST(LoadFactorTest, PrioritiesHaveNames) {
  EXPECT_EQ(ParsePriority("background"), Priority::kBackground);
  EXPECT_EQ(ParsePriority("urgent"), std::nullopt);
  EXPECT_EQ(PriorityName(Priority::kCritical), "critical");
}

}  // namespace
}  // namespace tidegate
