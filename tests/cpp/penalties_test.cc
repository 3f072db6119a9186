#include "server/checks/penalties.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::server {
namespace {

using tidegate::testing::kSecond;
using tidegate::testing::kStart;

class PenaltiesTest : public ::testing::Test {
 protected:
  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>(kStart);
};

TEST_F(PenaltiesTest, EndAtTheirOwnInstants) {
  const Penalties penalties(
      {{false, "42", true, 300 * kSecond}, {true, "192.0.2.1", false, kSecond}}, clock_);
  EXPECT_EQ(penalties.size(), 2u);
  EXPECT_TRUE(penalties.Of("42", "")->blocks);
  EXPECT_EQ(penalties.Of("", "192.0.2.1")->factor(), 2);
  clock_->AdvanceNs(kSecond - 1);
  EXPECT_EQ(penalties.Of("", "192.0.2.1")->left_ns, 1);
  clock_->AdvanceNs(1);
  EXPECT_FALSE(penalties.Of("", "192.0.2.1").has_value());
  clock_->AdvanceNs(298 * kSecond);
  EXPECT_EQ(penalties.Of("42", "")->left_ns, kSecond);
  clock_->AdvanceNs(kSecond);
  EXPECT_FALSE(penalties.Of("42", "").has_value());
}

TEST_F(PenaltiesTest, HaveTheirReasonAndEnd) {
  const Penalties penalties({{false, "42", true, kSecond, "900 requests"}}, clock_);
  EXPECT_EQ(penalties.Of("42", "")->reason, "900 requests");
  EXPECT_EQ(penalties.Of("42", "")->end_ns(), kStart + kSecond);
}

TEST_F(PenaltiesTest, ApplyToAnAddressOnlyIfTheRequestHasNoUser) {
  const Penalties penalties({{true, "192.0.2.1", true, kSecond}, {false, "a", true, kSecond}},
                            clock_);
  EXPECT_TRUE(penalties.Of("", "192.0.2.1").has_value());
  EXPECT_FALSE(penalties.Of("b", "192.0.2.1").has_value());
  EXPECT_FALSE(penalties.Of("192.0.2.1", "").has_value());
  EXPECT_FALSE(penalties.Of("", "a").has_value());
  EXPECT_FALSE(penalties.Of("", "").has_value());
}

TEST_F(PenaltiesTest, RefuseByTheirOwnRuleUntilTheyEnd) {
  const Decision refusal = Penalty{true, kStart, 7 * kSecond}.Refusal();
  EXPECT_FALSE(refusal.allowed);
  EXPECT_EQ(refusal.limit->rule(), "anomaly:block");
  EXPECT_EQ(refusal.limit->capacity(), 0);
  EXPECT_EQ(refusal.remaining(), 0);
  EXPECT_EQ(refusal.retry_after_ns, 7 * kSecond);
  EXPECT_EQ(refusal.charged_in(0), ChargedIn::kNowhere);
}

}  // namespace
}  // namespace tidegate::server
