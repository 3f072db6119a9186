// What keys owe: the codes of debts, and the steps at the ends of their range.
#include "algorithms/debt.h"

#include <cstdint>

#include "algorithms/log.h"
#include "gtest/gtest.h"
#include "testing.h"
#include "tidegate/step.h"

namespace tidegate::testing {
namespace {

TEST(DebtTest, ACodeIsExactUpToFifteenAndRoundsUpByAnEighthAtMost) {
  EXPECT_EQ(CodeOfDebt(0), 0U);
  for (int64_t value = 1; value <= 15; ++value) EXPECT_EQ(DebtOfCode(CodeOfDebt(value)), value);
  uint64_t last = 0;
  for (int64_t value = 1; value < Limit::kMaxPeriodNs / 2; value += value / 7 + 1) {
    const uint64_t code = CodeOfDebt(value);
    const int64_t read = DebtOfCode(code);
    EXPECT_GE(code, last);
    EXPECT_LE(code, kMostDebtCode);
    EXPECT_GE(read, value);
    EXPECT_LE(read - value, value / 8) << value;
    EXPECT_EQ(CodeOfDebt(read), code) << value;
    last = code;
  }
}

TEST(DebtTest, AnyCodeThatAServerSendsIsADurationThatFits) {
  for (uint64_t code = 0; code <= kMostDebtCode; ++code) {
    EXPECT_GE(DebtOfCode(code), 0);
    EXPECT_LE(DebtOfCode(code), Limit::kMaxPeriodNs);
  }
}

// The largest denominator, whose fractions are just below the bits of the code.
TEST(DebtTest, AFractionIsNeverTakenForACode) {
  const Limit limit = MakeLimit({.count = Limit::kMaxCount, .period_ns = kSecond, .burst = 1000});
  CellState state;
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(Step(limit, state, kStart, 2, &state).allowed);
  const Decision refused = Step(limit, state, kStart, 1, &state);
  EXPECT_FALSE(refused.allowed);
  EXPECT_EQ(refused.debt(), 0);
  const Decision owing = StepCharge(limit, state, kStart, 700, limit.max_debt(), &state);
  EXPECT_EQ(owing.charged, 700);
  EXPECT_EQ(owing.debt(), 700);
  EXPECT_FALSE(Step(limit, state, kStart, 1, &state).behind);
}

TEST(DebtTest, WithoutADebtAStateIsThatOfAHit) {
  for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kLeakyBucket,
                                    Algorithm::kFixedWindow, Algorithm::kSlidingWindow}) {
    const Limit limit = MakeLimit({.count = 7, .period_ns = kSecond, .algorithm = algorithm});
    CellState hit;
    CellState charged;
    for (int i = 0; i < 50; ++i) {
      const int64_t now = kStart + i * kSecond / 9;
      CellState next;
      if (!Step(limit, hit, now, 1 + i % 3, &next).allowed) continue;
      hit = next;
      StepCharge(limit, charged, now, 1 + i % 3, limit.max_debt(), &charged);
      ASSERT_EQ(charged, hit);
    }
  }
}

TEST(DebtTest, NothingOverflowsAtTheLongestPeriodAndTheLargestDebt) {
  for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kFixedWindow}) {
    const Limit limit = MakeLimit({.count = 1,
                                   .period_ns = Limit::kMaxPeriodNs / 100,
                                   .algorithm = algorithm,
                                   .max_debt = LimitSpec::kNoBound});
    EXPECT_EQ(limit.max_debt(), 99);
    CellState state;
    const Decision decision =
        StepCharge(limit, state, kMaxInstantNs, 1000, limit.max_debt(), &state);
    EXPECT_EQ(decision.charged, 100);
    EXPECT_EQ(decision.debt(), 99);
    const Decision refused = Step(limit, state, kMaxInstantNs, 1, &state);
    EXPECT_FALSE(refused.allowed);
    EXPECT_GT(refused.retry_after_ns, 0);
    EXPECT_FALSE(refused.behind);
    // The clock goes back as far as it can.
    const Decision behind = Step(limit, state, 0, 1, &state);
    EXPECT_TRUE(behind.behind);
    EXPECT_LE(behind.debt(), 99 + 99 / 8 + 1);
  }
}

TEST(DebtTest, ALogKeepsAsManyEntriesAsItsCount) {
  const Limit limit = MakeLimit(
      {.count = 5, .period_ns = kSecond, .algorithm = Algorithm::kSlidingLog, .max_debt = 10'000});
  InstantRing ring;
  EXPECT_EQ(StepLogCharge(limit, &ring, kStart, 5000, limit.max_debt()).debt(), 4995);
  EXPECT_EQ(ring.size(), 5U);
  EXPECT_EQ(RefundLog(limit, &ring, kStart, 4996), 4996);
  EXPECT_EQ(PeekLog(limit, ring, kStart, 1).remaining(), 1);
}

}  // namespace
}  // namespace tidegate::testing
