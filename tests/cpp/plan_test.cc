#include "tidegate/plan.h"

#include <atomic>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

constexpr int64_t kHour = 3'600 * kSecond;

class PlanTest : public ::testing::TestWithParam<Algorithm> {
 protected:
  PlanTest() {
    const auto clock = std::make_shared<ManualClock>(kStart);
    const auto store = MakeStore();
    users_ = *Limiter::Create({MakeLimit(10, kHour, GetParam())}, store, clock, "users");
    tenants_ = *Limiter::Create({MakeLimit(3, kHour, GetParam()), MakeLimit(7, kHour, GetParam())},
                                store, clock, "tenants");
    plan_ = *Plan::Create({users_.get(), tenants_.get()});
  }

  Decision Hit(std::string_view user, std::string_view tenant, int64_t cost = 1) {
    const std::string_view keys[] = {user, tenant};
    const int64_t costs[] = {cost, cost};
    return plan_->Hit(keys, costs);
  }

  std::unique_ptr<Limiter> users_;
  std::unique_ptr<Limiter> tenants_;
  std::unique_ptr<Plan> plan_;
};

INSTANTIATE_TEST_SUITE_P(Algorithms, PlanTest, ::testing::ValuesIn(kAllAlgorithms), NameOf);

TEST_P(PlanTest, CountsWhichLimitRefused) {
  for (int i = 0; i < 5; ++i) Hit("u", "t");
  for (int i = 0; i < 12; ++i) users_->Hit("v");
  EXPECT_EQ(users_->refused(), std::vector<int64_t>({2}));
  EXPECT_EQ(tenants_->refused(), std::vector<int64_t>({2, 0}));
}

TEST_P(PlanTest, ChargesAllOrNone) {
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Hit("u", "t").allowed);
  const Decision refused = Hit("u", "t");
  EXPECT_FALSE(refused.allowed);
  EXPECT_EQ(refused.rule, 1U);  // the first of the tenants' limits
  EXPECT_EQ(users_->Peek("u").remaining(), 7);
  EXPECT_EQ(tenants_->Peek("t").remaining(), 0);
  EXPECT_TRUE(Hit("u", "t2").allowed);
  EXPECT_EQ(users_->stats().allowed, 4);
  EXPECT_EQ(users_->stats().denied, 0);
  EXPECT_EQ(tenants_->stats().denied, 1);
}

TEST_P(PlanTest, APeekIsWhatAHitWouldDecideAndChangesNothing) {
  const std::string_view keys[] = {"u", "t"};
  for (const int64_t cost : {1, 3, 4}) {
    const int64_t costs[] = {cost, cost};
    Outcomes outcomes;
    const Decision peeked = plan_->Peek(keys, costs, &outcomes);
    EXPECT_EQ(peeked.allowed, cost <= 3);
    EXPECT_EQ(peeked.rule, 1U);
    ASSERT_EQ(outcomes.size(), 3U);
    EXPECT_EQ(outcomes[1].allowed, cost <= 3);
    EXPECT_TRUE(outcomes[2].allowed);
    EXPECT_EQ(plan_->Submit(Op::kPeek, keys, costs, nullptr, nullptr)->allowed, cost <= 3);
  }
  EXPECT_EQ(users_->refused(), std::vector<int64_t>({0}));
  EXPECT_EQ(tenants_->refused(), std::vector<int64_t>({0, 0}));
  EXPECT_EQ(users_->Peek("u").remaining(), 10);
}

TEST_P(PlanTest, ACostBeyondAllLimitsIsNeverCharged) {
  const Decision d = Hit("u", "t", std::numeric_limits<int64_t>::max());
  EXPECT_FALSE(d.allowed);
  EXPECT_EQ(d.retry_after_ns, Decision::kNever);
  EXPECT_EQ(users_->Peek("u").remaining(), 10);
}

TEST_P(PlanTest, ALimitThatIsGivenAKeyTwiceIsChargedTwice) {
  const auto twice = *Plan::Create({users_.get(), users_.get()});
  const std::string_view keys[] = {"k", "k"};
  const int64_t costs[] = {2, 3};
  EXPECT_TRUE(twice->Hit(keys, costs).allowed);
  EXPECT_EQ(users_->Peek("k").remaining(), 5);
}

TEST_P(PlanTest, ThreadsAdmitNoMoreThanTheLimits) {
  std::atomic<int> allowed{0};
  RunThreads(8, [&](int) {
    for (int i = 0; i < 50; ++i) allowed += Hit("u", "t").allowed;
  });
  EXPECT_EQ(allowed, 3);
  EXPECT_EQ(users_->Peek("u").remaining(), 7);
}

TEST(PlansTest, TakeLimitersOfOneStore) {
  EXPECT_FALSE(Plan::Create({}).ok());
  const auto one = *Limiter::Create({MakeLimit(1, kSecond)}, MakeStore());
  const auto other = *Limiter::Create({MakeLimit(1, kSecond)}, MakeStore());
  EXPECT_FALSE(Plan::Create({one.get(), other.get()}).ok());
}

}  // namespace
}  // namespace tidegate::testing
