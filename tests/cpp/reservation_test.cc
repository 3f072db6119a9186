// Reservations that are settled in one step of their cell, held to the way with looks before and
// after it.
#include "tidegate/reservation.h"

#include <cstdint>
#include <memory>
#include <random>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"
#include "tidegate/limiter.h"
#include "tidegate/plan.h"

namespace tidegate::testing {
namespace {

// A reservation as each of two limiters knows it.
struct Both {
  Reservation quick;
  Reservation slow;
};

class QuickSettlementTest : public ::testing::TestWithParam<LimitSpec> {
 protected:
  int64_t Below(int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(random_); }

  void Advance(int64_t ns) {
    quick_.clock->AdvanceNs(ns);
    slow_.clock->AdvanceNs(ns);
  }

  void Reserve(int64_t units, int64_t ttl_ns) {
    Both made;
    made.quick.unrecorded = made.slow.unrecorded = true;
    made.quick.ttl_ns = made.slow.ttl_ns = ttl_ns;
    const Decision quick = quick_.limiter->CallReserved(Op::kReserve, "key", units, &made.quick);
    const Decision slow = slow_.limiter->CallReserved(Op::kReserve, "key", units, &made.slow);
    ASSERT_EQ(quick.allowed, slow.allowed);
    if (quick.allowed) open_.push_back(made);
  }

  void Settle(size_t which, int64_t actual) {
    Both both = open_[which];
    open_.erase(open_.begin() + static_cast<int64_t>(which));
    const int64_t reserved = both.quick.parts[0].units;
    Decision quick;
    if (quick_.limiter->SettleQuickly("key", actual, both.quick, &quick)) {
      ++quickly_[actual < reserved ? 0 : actual == reserved ? 1 : 2];
    } else {
      quick = quick_.limiter->CallReserved(Op::kSettle, "key", actual, &both.quick);
    }
    const Decision slow = slow_.limiter->CallReserved(Op::kSettle, "key", actual, &both.slow);
    EXPECT_EQ(quick.allowed, slow.allowed);
    EXPECT_EQ(quick.retry_after_ns, slow.retry_after_ns);
    EXPECT_EQ(quick.reset_after_ns, slow.reset_after_ns);
    EXPECT_EQ(quick.more_after_ns(), slow.more_after_ns());
    EXPECT_EQ(quick.delay_ns, slow.delay_ns);
    EXPECT_EQ(quick.remaining(), slow.remaining());
    EXPECT_EQ(quick.charged, slow.charged);
    EXPECT_EQ(quick.debt(), slow.debt());
    EXPECT_EQ(quick.at_ns, slow.at_ns);
    ExpectTheSameUse();
  }

  void ExpectTheSameUse() {
    const Decision quick = quick_.limiter->Peek("key");
    const Decision slow = slow_.limiter->Peek("key");
    EXPECT_EQ(quick.used_ns, slow.used_ns);
    EXPECT_EQ(quick.used_fraction, slow.used_fraction);
    EXPECT_EQ(quick.debt(), slow.debt());
    EXPECT_EQ(quick_.limiter->stats().written_off, slow_.limiter->stats().written_off);
  }

  std::mt19937_64 random_{42};
  Fixture quick_{MakeLimit(GetParam())};
  Fixture slow_{MakeLimit(GetParam())};
  std::vector<Both> open_;
  std::vector<int> quickly_ = std::vector<int>(3);
};

TEST_P(QuickSettlementTest, IsTheWayWithLooksBeforeAndAfterIt) {
  const int64_t burst = GetParam().burst.value_or(GetParam().count);
  const int64_t unit_ns = GetParam().period_ns / GetParam().count + 1;
  for (int i = 0; i < 20'000 && !HasFailure(); ++i) {
    switch (Below(10)) {
      case 0:
        Advance(Below(2 * burst * unit_ns));
        break;
      case 1:
      case 2:
        Advance(Below(unit_ns));
        break;
      case 3:
        if (Below(20) == 0) {
          quick_.limiter->ChargeInFull("key", burst);
          slow_.limiter->ChargeInFull("key", burst);
        }
        break;
      case 4:
      case 5:
      case 6:
        Reserve(1 + Below(burst / 2), Below(20) == 0 ? unit_ns : 3'600 * kSecond);
        break;
      default:
        if (open_.empty()) break;
        const auto which = static_cast<size_t>(Below(static_cast<int64_t>(open_.size())));
        const int64_t reserved = open_[which].quick.parts[0].units;
        Settle(which, Below(3) == 0 ? reserved : Below(Below(9) == 0 ? 3 * burst : 2 * reserved));
    }
  }
  for (const int times : quickly_) EXPECT_GT(times, 100);
}

INSTANTIATE_TEST_SUITE_P(
    Buckets, QuickSettlementTest,
    ::testing::Values(
        LimitSpec{.count = 100, .period_ns = 60 * kSecond},
        LimitSpec{.count = 7, .period_ns = kSecond, .burst = 40},
        LimitSpec{.count = 3'000'000'000, .period_ns = kSecond, .burst = 60},
        LimitSpec{.count = 21, .period_ns = kSecond, .algorithm = Algorithm::kLeakyBucket}));

TEST(QuickSettlementOfOthersTest, IsRefused) {
  Decision decision;
  const auto settles = [&](Fixture& fixture, const Reservation& reservation) {
    return fixture.limiter->SettleQuickly("key", 3, reservation, &decision);
  };
  Reservation reservation;
  reservation.unrecorded = true;
  Fixture bucket(MakeLimit(10, kSecond));
  bucket.limiter->CallReserved(Op::kReserve, "key", 5, &reservation);
  EXPECT_TRUE(settles(bucket, reservation));

  Reservation recorded = reservation;
  recorded.unrecorded = false;
  EXPECT_FALSE(settles(bucket, recorded));
  Reservation over = reservation;
  over.ttl_ns = 1;
  bucket.clock->AdvanceNs(1);
  EXPECT_FALSE(settles(bucket, over));
  bucket.limiter->Forget("key");
  bucket.limiter->ChargeInFull("key", 15);
  EXPECT_FALSE(settles(bucket, reservation));  // a debt is paid at length

  for (const Algorithm algorithm :
       {Algorithm::kFixedWindow, Algorithm::kSlidingWindow, Algorithm::kSlidingLog}) {
    Reservation of_window;
    of_window.unrecorded = true;
    Fixture window(MakeLimit(10, kSecond, algorithm));
    window.limiter->CallReserved(Op::kReserve, "key", 5, &of_window);
    EXPECT_FALSE(settles(window, of_window));
  }
}

TEST(ReservationOfAPlanTest, WithoutRecordsIsSettledOnceAndItsRecordsSaySo) {
  Fixture first(MakeLimit(1000, 3'600 * kSecond));
  const auto second = *Limiter::Create({MakeLimit(500, 3'600 * kSecond)}, first.store, first.clock);
  const auto plan = *Plan::Create({first.limiter.get(), second.get()});
  const std::vector<std::string_view> keys = {"a", "b"};
  using Left = std::pair<int64_t, int64_t>;
  const auto left = [&] {
    return Left(first.limiter->Peek("a").remaining(), second->Peek("b").remaining());
  };
  Reservation reservation;
  reservation.unrecorded = true;
  reservation.ttl_ns = 60 * kSecond;
  reservation.id = {1, 2};
  const auto settle = [&](int64_t of_first, int64_t of_second) {
    const Decision settled =
        plan->CallReserved(Op::kSettle, keys, std::vector{of_first, of_second}, &reservation);
    return std::tuple(reservation.parts[0].found, reservation.parts[1].found, settled.charged);
  };

  ASSERT_TRUE(plan->CallReserved(Op::kReserve, keys, std::vector<int64_t>{100, 50}, &reservation));
  EXPECT_EQ(first.store->stats().keys, 2);
  EXPECT_EQ(settle(40, 70), std::tuple(Found::kOpen, Found::kOpen, 40));
  EXPECT_EQ(left(), Left(960, 430));
  EXPECT_EQ(settle(40, 70), std::tuple(Found::kAgain, Found::kAgain, 40));
  EXPECT_EQ(settle(40, 71), std::tuple(Found::kAgain, Found::kSettled, 40));
  EXPECT_FALSE(plan->CallReserved(Op::kRaise, keys, std::vector<int64_t>{1, 1}, &reservation));
  EXPECT_EQ(left(), Left(960, 430));

  plan->RecordReserved(keys, &reservation);
  EXPECT_FALSE(reservation.unrecorded);
  EXPECT_EQ(settle(40, 70), std::tuple(Found::kAgain, Found::kAgain, 40));
  EXPECT_EQ(settle(0, 70), std::tuple(Found::kSettled, Found::kAgain, 40));
  EXPECT_EQ(left(), Left(960, 430));
}

TEST(ReservationOfAPlanTest, OfWhichTheRecordsAreMadeWhileItIsOpenIsSettledByThem) {
  Fixture first(MakeLimit(1000, 3'600 * kSecond));
  const auto plan = *Plan::Create({first.limiter.get()});
  const std::vector<std::string_view> keys = {"a"};
  Reservation reservation;
  reservation.unrecorded = true;
  reservation.ttl_ns = 60 * kSecond;
  ASSERT_TRUE(plan->CallReserved(Op::kReserve, keys, std::vector<int64_t>{100}, &reservation));
  first.clock->AdvanceNs(50 * kSecond);
  plan->RecordReserved(keys, &reservation);
  Reservation other = reservation;  // another process has its token
  plan->CallReserved(Op::kSettle, keys, std::vector<int64_t>{30}, &other);
  EXPECT_EQ(other.parts[0].found, Found::kOpen);
  plan->CallReserved(Op::kSettle, keys, std::vector<int64_t>{0}, &reservation);
  EXPECT_EQ(reservation.parts[0].found, Found::kSettled);
  first.clock->AdvanceNs(10 * kSecond);  // the end of its life
  plan->CallReserved(Op::kSettle, keys, std::vector<int64_t>{30}, &other);
  EXPECT_EQ(other.parts[0].found, Found::kNothing);
}

}  // namespace
}  // namespace tidegate::testing
