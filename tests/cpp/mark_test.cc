#include "table/mark.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

constexpr int64_t kHour = 3'600 * kSecond;

// The rank of a key after it was charged each of `costs` in order.
int RankAfter(const Limit& limit, const std::vector<int64_t>& costs, int64_t now_ns = kStart) {
  CellState state;
  Mark mark = 0;
  for (const int64_t cost : costs) {
    CellState next;
    EXPECT_TRUE(Step(limit, state, now_ns, cost, &next).allowed) << cost;
    state = next;
    mark = std::max(mark, MarkOf(limit, cost));
  }
  return RankOf(mark, state, now_ns);
}

TEST(HalfLogTest, GrowsByTwoForEachDoubling) {
  int last = -1;
  for (const uint64_t value : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    const int steps = HalfLog(value);
    EXPECT_GT(steps, last) << value;
    if (value > 4) {
      EXPECT_EQ(steps, last + 1) << value;
      EXPECT_EQ(HalfLog(value - 1), last) << value;
    }
    last = steps;
  }
  EXPECT_EQ(HalfLog(0), 0);
  EXPECT_EQ(HalfLog(~uint64_t{0}), 127);
}

class RankTest : public ::testing::TestWithParam<Algorithm> {};

TEST_P(RankTest, ASingleChargeHasRankZeroWhateverItsCost) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const auto count = static_cast<int64_t>(1 + random() % (uint64_t{1} << random() % 31));
    const auto period = static_cast<int64_t>(1 + random() % (uint64_t{1} << random() % 56));
    const absl::StatusOr<Limit> limit =
        Limit::Create({.count = count, .period_ns = period, .algorithm = GetParam()});
    if (!limit.ok()) continue;
    const auto cost = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(count));
    EXPECT_EQ(RankAfter(*limit, {cost}), 0) << limit->ToString() << " at " << cost;
  }
}

TEST_P(RankTest, GrowsWithTheNumberOfCharges) {
  const Limit limit = MakeLimit(100, kHour, GetParam());
  int last = -1;
  for (const size_t charges : {size_t{1}, size_t{2}, size_t{5}, size_t{10}, size_t{100}}) {
    const int rank =
        RankAfter(limit, std::vector<int64_t>(charges, 100 / static_cast<int64_t>(charges)));
    EXPECT_GT(rank, last) << charges;
    last = rank;
  }
}

TEST_P(RankTest, SmallChargesBesideALargeOneHardlyRaiseIt) {
  const Limit limit = MakeLimit(100, kHour, GetParam());
  EXPECT_EQ(RankAfter(limit, {1, 99}), 0);
  EXPECT_EQ(RankAfter(limit, {99, 1}), 0);
  EXPECT_LE(RankAfter(limit, {1, 1, 1, 50, 47}), RankAfter(limit, {50, 50}));
}

TEST_P(RankTest, AChargeOfOneIsNeverTheLargest) {
  const Limit limit = MakeLimit(7, kSecond, GetParam());
  for (const int64_t cost : {1, 2, 5, 7}) EXPECT_LE(MarkOf(limit, 1), MarkOf(limit, cost));
}

INSTANTIATE_TEST_SUITE_P(Each, RankTest,
                         ::testing::Values(Algorithm::kTokenBucket, Algorithm::kLeakyBucket,
                                           Algorithm::kFixedWindow, Algorithm::kSlidingWindow),
                         NameOf);

TEST(BucketRankTest, FallsAsTheBucketRunsEmpty) {
  const Limit limit = MakeLimit(100, kHour);
  CellState state;
  for (int i = 0; i < 100; ++i) {
    CellState next;
    ASSERT_TRUE(Step(limit, state, kStart, 1, &next).allowed);
    state = next;
  }
  const Mark mark = MarkOf(limit, 1);
  EXPECT_GT(RankOf(mark, state, kStart), RankOf(mark, state, kStart + kHour / 2));
  EXPECT_EQ(RankOf(mark, state, kStart + kHour), 0);
  EXPECT_EQ(RankOf(mark, state, kStart + 2 * kHour), 0);
}

TEST(LogRankTest, IsTheMarkItself) {
  EXPECT_EQ(RankOf(MarkOfLog(1, 1), {1, 2}, kStart), 0);
  EXPECT_EQ(RankOf(MarkOfLog(100, 100), {1, 2}, kStart), 0);
  EXPECT_EQ(RankOf(MarkOfLog(100, 1), {1, 2}, kStart), HalfLog(100));
  EXPECT_EQ(RankOf(MarkOfLog(100, 50), {1, 2}, kStart), 2);
  EXPECT_EQ(RankOf(MarkOfLog(~uint64_t{0}, 1), {1, 2}, kStart), 63);
}

TEST(LogRankTest, IsUpdatedByEachCharge) {
  const auto rank_after = [](const std::vector<uint64_t>& costs) {
    Mark mark = 0;
    uint64_t alive = 0;
    for (const uint64_t cost : costs) {
      mark = MarkOfLogAfter(mark, alive, cost);
      alive += cost;
    }
    return RankOf(mark, {}, kStart);
  };
  EXPECT_EQ(rank_after({100}), 0);
  EXPECT_EQ(rank_after({1, 99}), 0);
  EXPECT_EQ(rank_after({99, 1}), 0);
  EXPECT_EQ(rank_after({50, 50}), 2);
  EXPECT_EQ(rank_after(std::vector<uint64_t>(100, 1)), HalfLog(100));
  // Its earlier units have all expired.
  EXPECT_EQ(RankOf(MarkOfLogAfter(MarkOfLog(100, 1), 0, 100), {}, kStart), 0);
  EXPECT_EQ(RankOf(MarkOfLogAfter(MarkOfLog(100, 1), 3, 1), {}, kStart), HalfLog(4));
}

}  // namespace
}  // namespace tidegate::testing
