// The table of the keys that a process holds units of.
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "leases/centre.h"
#include "leases/clock.h"
#include "leases/spin_lock.h"
#include "leases/table.h"
#include "testing.h"

namespace tidegate::leases {
namespace {

using testing::kMs;
using testing::kSecond;
using testing::kStart;
using testing::MakeLimit;

constexpr int64_t kLongestLease = 200 * kMs;

BoundLimit Bind(const Limit& limit, int64_t longest_ns = kLongestLease) {
  BoundLimit bound{limit, "tg:limit", {1, 2}, nullptr, nullptr};
  bound.leasing = Leasing::Of(bound, longest_ns);
  return bound;
}

TEST(LeasingTest, ALeaseIsNoLongerThanAQuarterOfTheBurst) {
  EXPECT_EQ(Bind(MakeLimit(2000, kSecond)).leasing->length_ns, kLongestLease);
  EXPECT_EQ(Bind(MakeLimit(2000, kSecond), kSecond).leasing->length_ns, kSecond / 4);
}

TEST(LeasingTest, LimitsThatGainNothingStayStrictForAReason) {
  const auto why = [](LimitSpec spec) {
    std::string reason;
    const BoundLimit bound{MakeLimit(std::move(spec)), "tg:limit", {1, 2}, nullptr, nullptr};
    EXPECT_EQ(Leasing::Of(bound, kLongestLease, &reason), nullptr);
    return reason;
  };
  EXPECT_EQ(why({.count = 19, .period_ns = kSecond}),
            "its burst is 19; expected 20 to 1099511627776");
  EXPECT_EQ(why({.count = 100, .period_ns = 60 * kSecond}),
            "a lease of 200000 us has less than 2 of its units");
  EXPECT_EQ(why({.count = 1000, .period_ns = kSecond, .algorithm = Algorithm::kLeakyBucket}),
            "the calls of all processes wait in one queue, which leases would lengthen");
  EXPECT_EQ(why({.count = 1000, .period_ns = kSecond, .algorithm = Algorithm::kSlidingLog}),
            "a log keeps the instant of each call");
  EXPECT_EQ(why({.count = 1000, .period_ns = kSecond, .algorithm = Algorithm::kConcurrency}),
            "each place is given back by itself");
  EXPECT_EQ(why({.count = 19, .period_ns = kSecond, .algorithm = Algorithm::kFixedWindow}),
            "its count is 19; expected 20 to 1099511627776");
  EXPECT_EQ(why({.count = 50, .period_ns = 1'000'001, .algorithm = Algorithm::kSlidingWindow}),
            "its window is no whole number of microseconds");
  EXPECT_EQ(why({.count = 1000, .period_ns = kSecond, .shadow = true}),
            "a limit in shadow is not leased");
}

TEST(LeasingTest, TellsTheUsageExactlyInBothWidths) {
  for (const int64_t count : {1000, 777, 4'000'000}) {
    const auto leasing = Bind(MakeLimit(count, kSecond)).leasing;
    ASSERT_NE(leasing->narrow_depth, 0);
    Leasing wide = *leasing;
    wide.narrow_depth = 0;
    for (const int64_t ahead_ns : {int64_t{0}, int64_t{12'345'678}, kSecond, 90'000 * kSecond}) {
      for (const int64_t held : {int64_t{0}, int64_t{7}, count}) {
        for (const int64_t refused : {0, 1, 5}) {
          const auto usage = leasing->UsageOf(ahead_ns, held, refused);
          const auto expected = wide.UsageOf(ahead_ns, held, refused);
          EXPECT_EQ(usage.ns, expected.ns) << count << " " << ahead_ns << " " << held;
          EXPECT_EQ(usage.fraction, expected.fraction) << count << " " << ahead_ns << " " << held;
        }
      }
    }
  }
}

TEST(SpinLockTest, LetsOneThreadInAtATime) {
  SpinLock lock;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20'000; ++j) {
        const std::lock_guard<SpinLock> guard(lock);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 80'000);
}

class LeaseTableTest : public ::testing::Test {
 protected:
  // As a store does, with a centre that has as much as is wanted. Returns whether a lease decided.
  bool Hit(const BoundLimit& bound, std::string_view key, uint64_t print) {
    const Charge charge{key, &bound, 1};
    std::shared_ptr<const Asking> asking;
    const bool known =
        table_.Hit(charge, {print, print}, &decision_, &asking) == Table::Answer::kDecided;
    if (!known) asking = table_.Ask(charge, {print, print});
    if (asking != nullptr) Answer(*asking);
    return known;
  }
  void Answer(const Asking& asking) {
    ++questions_;
    Table::Heard heard;
    heard.granted = asking.question.want;
    heard.now_ns = kStart;
    ChargeUnits(asking.leasing != nullptr ? asking.leasing->terms : Terms{}, heard.granted + 1,
                &heard.level);
    heard.level.slots = {kStart + kLongestLease, kLongestLease, heard.granted, 0};
    table_.Hear(asking, heard);
  }

  StoreStats Stats() {
    StoreStats stats;
    table_.AddTo(&stats);
    return stats;
  }
  int64_t Held() { return Stats().held_units; }

  Table table_;
  Decision decision_;
  int questions_ = 0;
};

constexpr int64_t kLong = 10 * kSecond;

TEST_F(LeaseTableTest, AKeyIsLeasedFromItsThirdHitOn) {
  const BoundLimit bound = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  EXPECT_FALSE(Hit(bound, "k", 7));
  EXPECT_EQ(questions_, 0) << "a key that is hit once is not asked for";
  EXPECT_FALSE(Hit(bound, "k", 7));
  EXPECT_EQ(questions_, 1);
  EXPECT_TRUE(Hit(bound, "k", 7));
  EXPECT_TRUE(decision_.allowed);
  EXPECT_TRUE(decision_.leased);
  EXPECT_EQ(decision_.limit, &bound.limit);
  EXPECT_GT(decision_.remaining(), 900);
  EXPECT_LT(decision_.remaining(), 1000);
}

TEST_F(LeaseTableTest, KeysThatAreHitInTurnDoNotHideEachOther) {
  const BoundLimit bound = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  // They are looked for in one place while they are cold.
  for (int i = 0; i < 2; ++i) {
    for (uint64_t key = 1; key <= 4; ++key) EXPECT_FALSE(Hit(bound, "k", key << 32)) << key;
  }
  for (uint64_t key = 1; key <= 4; ++key) EXPECT_TRUE(Hit(bound, "k", key << 32)) << key;
}

TEST_F(LeaseTableTest, AnotherNumberOfTheSameIdSpendsNothingOfIt) {
  const BoundLimit before = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  const BoundLimit after = Bind(MakeLimit(500, 10 * kSecond), kLong);
  for (int i = 0; i < 3; ++i) Hit(before, "k", 7);
  ASSERT_TRUE(Hit(before, "k", 7));
  EXPECT_FALSE(Hit(after, "k", 7));
  const auto given = table_.TakeGivenUp();
  ASSERT_EQ(given.size(), 1U);
  EXPECT_GT(given[0]->question.reports[0].given, 0);
  EXPECT_EQ(given[0]->key, "k");
}

TEST_F(LeaseTableTest, MoreKeysThanFitGiveTheirUnitsBack) {
  const BoundLimit bound = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  // Of one set of the table.
  for (uint64_t key = 1; key <= 20; ++key) {
    for (int i = 0; i < 3; ++i) Hit(bound, std::to_string(key), key << 24);
  }
  const auto given = table_.TakeGivenUp();
  EXPECT_EQ(given.size(), 12U);
  EXPECT_EQ(given[0]->key, "1") << "the one that was not hit for the longest time";
  EXPECT_FALSE(table_.has_given_up());
  EXPECT_EQ(table_.GiveUpAll().size(), 8U);
  EXPECT_EQ(Held(), 0);
}

TEST_F(LeaseTableTest, GivesAGrantBackThatComesWhenItsKeyIsGone) {
  const BoundLimit bound = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  const Charge charge{"k", &bound, 1};
  EXPECT_EQ(table_.Ask(charge, {7, 7}), nullptr) << "of the first hit";
  const auto asking = table_.Ask(charge, {7, 7});
  ASSERT_NE(asking, nullptr);
  EXPECT_TRUE(table_.GiveUpAll().empty());
  Table::Heard heard;
  heard.granted = 5;
  heard.now_ns = kStart;
  heard.level.slots = {kStart + kLongestLease, kLongestLease, 5, 0};
  table_.Hear(*asking, heard);
  const auto given = table_.TakeGivenUp();
  ASSERT_EQ(given.size(), 1U);
  EXPECT_EQ(given[0]->key, "k");
  EXPECT_FALSE(given[0]->asks);
  const Report& report = given[0]->question.reports[0];
  EXPECT_EQ(report.slot_ns, kStart + kLongestLease);
  EXPECT_EQ(report.spent, 0);
  EXPECT_EQ(report.given, 5);
  EXPECT_EQ(Stats().wasted_units, 0);
}

TEST_F(LeaseTableTest, CountsKeysThatAreHeldAndThoseThatAreDry) {
  const BoundLimit bound = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  for (uint64_t key = 1; key <= 2; ++key) {
    for (int i = 0; i < 3; ++i) Hit(bound, "k", key);
  }
  EXPECT_EQ(Stats().held_keys, 2);
  EXPECT_EQ(Stats().dry_keys, 0);
  const Charge charge{"k", &bound, 1};
  const Fingerprint dry{uint64_t{3} << 16 | 3, uint64_t{3} << 40};
  EXPECT_EQ(table_.Ask(charge, dry), nullptr) << "of the first hit";
  const auto asking = table_.Ask(charge, dry);
  ASSERT_NE(asking, nullptr);
  table_.Hear(*asking, {.allowed = false, .cost = 1, .now_ns = kStart, .wait_ns = 60 * kSecond});
  EXPECT_EQ(Stats().held_keys, 2);
  EXPECT_EQ(Stats().dry_keys, 1);
}

TEST_F(LeaseTableTest, PeeksAndRefundsAreOfWhatIsHeld) {
  const BoundLimit bound = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  const Charge charge{"k", &bound, 1};
  EXPECT_FALSE(table_.Peek(charge, {7, 7}, &decision_));
  EXPECT_FALSE(table_.PutBack(charge, {7, 7}));
  for (int i = 0; i < 3; ++i) Hit(bound, "k", 7);
  const int64_t held = Held();
  EXPECT_TRUE(table_.Peek(charge, {7, 7}, &decision_));
  EXPECT_EQ(Held(), held);
  EXPECT_TRUE(table_.PutBack(charge, {7, 7}));
  EXPECT_EQ(Held(), held + 1);
}

TEST_F(LeaseTableTest, ACallWithoutAQuestionTellsHowFullTheBucketIs) {
  const BoundLimit bound = Bind(MakeLimit(1000, 1000 * kSecond), kLong);
  const Charge charge{"k", &bound, 1};
  for (int i = 0; i < 3; ++i) Hit(bound, "k", 7);
  const auto asking = table_.Ask(charge, {7, 7});
  const auto later = table_.Ask(charge, {7, 7});
  ASSERT_TRUE(asking->asks);
  ASSERT_FALSE(later->asks);
  const auto hear = [&](const Asking& of, int64_t used, int64_t now_ns) {
    Table::Heard heard;
    heard.now_ns = now_ns;
    ChargeUnits(bound.leasing->terms, used, &heard.level);
    table_.Hear(of, heard);
    ASSERT_TRUE(table_.Peek(charge, {7, 7}, &decision_));
    EXPECT_NEAR(decision_.remaining(), 1000 - 600 + Held(), 1);
  };
  hear(*later, 600, kStart + kMs);
  // Another thread answers the question, of which the server knew less then.
  hear(*asking, 100, kStart);
}

TEST_F(LeaseTableTest, SpendsAtOneReadingOfTheClockOnlyWhatWasThereThen) {
  const BoundLimit bound = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  const BoundLimit other = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  const Charge charge{"k", &bound, 1};
  std::shared_ptr<const Asking> asking;
  const int64_t before = LeaseNowNs();
  EXPECT_FALSE(table_.Spend(charge, {7, 7}, before, &asking)) << "nothing is held";
  for (int i = 0; i < 3; ++i) Hit(bound, "k", 7);
  const int64_t held = Held();
  const int64_t now = LeaseNowNs();
  EXPECT_FALSE(table_.Spend(charge, {7, 7}, before, &asking)) << "before the lease came";
  EXPECT_FALSE(table_.Spend({"k", &bound, held + 1}, {7, 7}, now, &asking));
  EXPECT_FALSE(table_.Spend({"k", &other, 1}, {7, 7}, now, &asking)) << "Hit() compares limits";
  EXPECT_FALSE(table_.Spend(charge, {7, 7}, now + 100 * kSecond, &asking)) << "after its end";
  EXPECT_EQ(Held(), held);
  const StoreStats stats = Stats();
  EXPECT_TRUE(table_.Spend(charge, {7, 7}, now, &asking));
  EXPECT_EQ(Held(), held - 1);
  EXPECT_EQ(Stats().leased, stats.leased + 1);
  EXPECT_EQ(Stats().wasted_units, stats.wasted_units);
  // It asks for more in time, as a hit does.
  for (int64_t i = 1; asking == nullptr && i < held; ++i) {
    ASSERT_TRUE(table_.Spend(charge, {7, 7}, now, &asking));
  }
  EXPECT_NE(asking, nullptr);
}

TEST_F(LeaseTableTest, ACostBeyondTheBurstIsTheStoresToRefuse) {
  const BoundLimit bound = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  for (int i = 0; i < 3; ++i) Hit(bound, "k", 7);
  const Charge charge{"k", &bound, 1001};
  std::shared_ptr<const Asking> asking;
  EXPECT_EQ(table_.Hit(charge, {7, 7}, &decision_, &asking), Table::Answer::kUnknown);
  EXPECT_EQ(table_.Ask(charge, {7, 7}), nullptr);
}

class LeasedPlanTest : public LeaseTableTest {
 protected:
  // The number of `count` limits from the two.
  bool Decides(size_t count = 2) {
    const bool known = table_.HitAll({plan_, count}, {prints_, count}, &decision_, &outcomes_,
                                     &askings_) == Table::Answer::kDecided;
    if (!known) askings_ = table_.AskAll({plan_, count}, {prints_, count});
    for (const auto& asking : askings_) {
      if (asking != nullptr) Answer(*asking);
    }
    askings_.clear();
    return known;
  }

  const BoundLimit one_ = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  const BoundLimit two_ = Bind(MakeLimit(2000, 10 * kSecond), kLong);
  Charge plan_[2] = {{"k", &one_, 1}, {"k", &two_, 1}};
  Fingerprint prints_[2] = {{7, 7}, {8 << 20 | 8, 8}};
  Outcomes outcomes_;
  Askings askings_;
};

TEST_F(LeasedPlanTest, IsDecidedOnceAllOfItsLimitsAreKnown) {
  EXPECT_FALSE(Decides());
  EXPECT_EQ(questions_, 0);
  EXPECT_FALSE(Decides());
  EXPECT_EQ(questions_, 2) << "of both limits";
  ASSERT_TRUE(Decides());
  EXPECT_TRUE(decision_.allowed);
  EXPECT_TRUE(decision_.leased);
  EXPECT_EQ(decision_.limit, &one_.limit) << "the one with the least room";
  EXPECT_EQ(outcomes_.size(), 2U);
}

TEST_F(LeasedPlanTest, TakesNothingIfOneLimitIsNotDecided) {
  for (int i = 0; i < 2; ++i) Decides(/*count=*/1);
  const int64_t held = Held();
  ASSERT_GT(held, 0);
  ASSERT_EQ(table_.HitAll(plan_, prints_, &decision_, &outcomes_, &askings_),
            Table::Answer::kUnknown);
  EXPECT_EQ(Held(), held);
}

TEST_F(LeasedPlanTest, ARefusalOfOneTakesNothingOfTheOther) {
  for (int i = 0; i < 3; ++i) Decides();
  // All that the second has is spent, and its centre is empty.
  const auto asking = table_.Ask({"k", &two_, 500}, prints_[1]);
  ASSERT_NE(asking, nullptr);
  table_.Hear(*asking, {.allowed = false, .cost = 1, .now_ns = kStart, .wait_ns = kSecond});
  const Charge all{"k", &two_, 1};
  while (table_.Peek(all, prints_[1], &decision_) && decision_.allowed) {
    std::shared_ptr<const Asking> ignored;
    ASSERT_EQ(table_.Hit(all, prints_[1], &decision_, &ignored), Table::Answer::kDecided);
    if (ignored != nullptr) table_.Lose(*ignored);
  }
  const int64_t held = Held();
  ASSERT_GT(held, 0);
  ASSERT_TRUE(Decides());
  EXPECT_FALSE(decision_.allowed);
  EXPECT_TRUE(decision_.leased);
  EXPECT_EQ(decision_.limit, &two_.limit);
  EXPECT_TRUE(outcomes_[0].allowed);
  EXPECT_EQ(Held(), held);
}

TEST_F(LeasedPlanTest, PutsBackAllOrNothing) {
  for (int i = 0; i < 4; ++i) Decides();
  const int64_t held = Held();
  plan_[1].cost = 600;
  EXPECT_FALSE(table_.PutBackAll(plan_, prints_));
  EXPECT_EQ(Held(), held);
  plan_[1].cost = 1;
  EXPECT_TRUE(table_.PutBackAll(plan_, prints_));
  EXPECT_EQ(Held(), held + 2);
}

TEST_F(LeasedPlanTest, AKeyThatIsTwiceInAPlanIsChargedTwiceOrNotAtAll) {
  for (int i = 0; i < 3; ++i) Decides();
  const int64_t held = Held();
  plan_[1] = plan_[0];
  prints_[1] = prints_[0];
  StoreStats before;
  table_.AddTo(&before);
  // More than the half of what it has.
  plan_[0].cost = plan_[1].cost = held;
  while (plan_[0].cost > 1 && !table_.Peek(plan_[0], prints_[0], &decision_)) {
    plan_[0].cost = --plan_[1].cost;
  }
  ASSERT_EQ(table_.HitAll(plan_, prints_, &decision_, &outcomes_, &askings_),
            Table::Answer::kUnknown);
  EXPECT_EQ(Held(), held);
}

TEST_F(LeasedPlanTest, AStrictLimitHasTheCentreDecideOfAll) {
  BoundLimit strict = two_;
  strict.leasing = nullptr;
  for (int i = 0; i < 3; ++i) Decides(/*count=*/1);
  plan_[1].limit = &strict;
  const Askings askings = table_.AskAll(plan_, prints_);
  ASSERT_EQ(askings.size(), 2U);
  EXPECT_EQ(askings[0]->question.want, 0);
  EXPECT_FALSE(askings[0]->asks);
  EXPECT_EQ(askings[1], nullptr);
}

TEST_F(LeaseTableTest, VeryLongKeysAreNotKept) {
  const BoundLimit bound = Bind(MakeLimit(1000, 10 * kSecond), kLong);
  const std::string key(300, 'k');
  for (int i = 0; i < 9; ++i) EXPECT_FALSE(Hit(bound, key, 7));
}

}  // namespace
}  // namespace tidegate::leases
