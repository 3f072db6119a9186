// The functions of leases one by one; the table of keys is in leases_table_test.cc. That no
// schedule of them admits too much is checked by leases_model_test.cc.
#include <cstdint>
#include <optional>
#include <random>

#include "gtest/gtest.h"
#include "leases/centre.h"
#include "leases/holding.h"
#include "testing.h"

namespace tidegate::leases {
namespace {

using testing::kMs;
using testing::kSecond;
using testing::kStart;
using testing::MakeLimit;
using Course = Keeper::Course;

constexpr int64_t kLease = 200 * kMs;

TEST(CentreTest, TheTermsOfALimitAreExact) {
  const Terms terms = Terms::Of(MakeLimit(7, kSecond));
  EXPECT_EQ(terms.token, Parts(kSecond));
  EXPECT_EQ(terms.denominator, 7);
  EXPECT_EQ(terms.depth(), terms.time(kSecond));
}

TEST(CentreTest, GrantsHalfOfTheRoomAtMost) {
  const Terms terms = Terms::Of(MakeLimit(100, kSecond));
  Level level;
  EXPECT_EQ(Grant(terms, kStart, 30, kLease, &level), 30);
  EXPECT_EQ(Grant(terms, kStart, 70, kLease, &level), 35);
  EXPECT_EQ(Room(terms, level), 35);
  EXPECT_EQ(level.slots.current, 65);
  EXPECT_EQ(level.slots.end_ns, kStart + kLease);
}

TEST(CentreTest, GrantsNothingToAKeyThatOwes) {
  const Terms terms = Terms::Of(MakeLimit(100, kSecond));
  Level level;
  ChargeUnits(terms, 150, &level);
  EXPECT_EQ(Room(terms, level), -50);
  EXPECT_EQ(Grant(terms, kStart, 10, kLease, &level), 0);
  EXPECT_EQ(level.slots.out(), 0);
}

TEST(CentreTest, UnitsThatAreOutKeepTheBucketFull) {
  const Terms terms = Terms::Of(MakeLimit(100, kSecond));
  Level level;
  ASSERT_EQ(Grant(terms, kStart, 40, kLease, &level), 40);
  level.ahead = 0;  // long enough later to have refilled
  Settle(terms, kStart + kLease - 1, &level);
  EXPECT_EQ(Room(terms, level), 60);
  Settle(terms, kStart + kLease, &level);
  EXPECT_EQ(level.slots.previous, 40);
  EXPECT_EQ(Room(terms, level), 60);
  level.ahead = 0;
  Settle(terms, kStart + 2 * kLease - 1, &level);
  EXPECT_EQ(Room(terms, level), 60);
  level.ahead = 0;
  // From the end of the second slot on it refills from that level.
  Settle(terms, kStart + 2 * kLease + 10 * kMs, &level);
  EXPECT_EQ(level.slots.out(), 0);
  EXPECT_EQ(Room(terms, level), 61);
}

TEST(CentreTest, ReportsOfSlotsThatAreOverAreIgnored) {
  const Terms terms = Terms::Of(MakeLimit(100, kSecond));
  Level level;
  ASSERT_EQ(Grant(terms, kStart, 40, kLease, &level), 40);
  const Level granted = level;
  Hear(terms, {kStart + 3 * kLease, 10, 10}, &level);
  EXPECT_EQ(level.slots.out(), 40);
  Hear(terms, {kStart + kLease, 10, 25}, &level);
  EXPECT_EQ(level.slots.out(), 5);
  EXPECT_EQ(Room(terms, level), Room(terms, granted) + 25);
  // No more comes back than is out.
  Hear(terms, {kStart + kLease, 0, 25}, &level);
  EXPECT_EQ(Room(terms, level), Room(terms, granted) + 30);
}

TEST(CentreTest, ALongerLeaseKeepsWhatIsOutInItsSlot) {
  const Terms terms = Terms::Of(MakeLimit(100, kSecond));
  Level level;
  ASSERT_EQ(Grant(terms, kStart, 20, kLease, &level), 20);
  ASSERT_EQ(Grant(terms, kStart, 20, 2 * kLease, &level), 20);
  EXPECT_EQ(level.slots.length_ns, 2 * kLease);
  EXPECT_EQ(level.slots.current, 40);
  // A shorter one counts as out for as long.
  ASSERT_EQ(Grant(terms, kStart, 20, kLease, &level), 20);
  EXPECT_EQ(level.slots.length_ns, 2 * kLease);
  EXPECT_EQ(level.slots.current, 60);
}

TEST(CentreTest, AClockThatWentBackKeepsWhatIsOutForOneMoreLease) {
  const Terms terms = Terms::Of(MakeLimit(100, kSecond));
  Level level;
  ASSERT_EQ(Grant(terms, kStart, 40, kLease, &level), 40);
  const int64_t now = kStart - 10 * kSecond;
  level.ahead += terms.time(10 * kSecond);
  Settle(terms, now, &level);
  EXPECT_EQ(level.slots.end_ns, now + kLease);
  EXPECT_EQ(level.slots.current, 40);
  EXPECT_EQ(Room(terms, level), 0);
}

TEST(CentreTest, TheStateLivesAsLongAsItsUnitsMayBeSpent) {
  const Terms terms = Terms::Of(MakeLimit(100, kSecond));
  Level level;
  ASSERT_EQ(Grant(terms, kStart, 40, kLease, &level), 40);
  EXPECT_EQ(Life(terms, kStart, level), terms.time(2 * kLease + 400 * kMs));
  Hear(terms, {kStart + kLease, 40, 0}, &level);
  EXPECT_EQ(Life(terms, kStart, level), terms.time(400 * kMs));
}

// Whatever the state: before the wait is over there is no room, unless a report comes; after it
// there is.
TEST(CentreTest, AWaitIsExactIfNoReportComes) {
  std::mt19937 random(1);
  const auto pick = [&](int64_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  int capped = 0;
  for (int i = 0; i < 20000; ++i) {
    const Terms terms{.token = 1000 * (1 + pick(9)), .burst = 1 + pick(30)};
    const int64_t length = 1 + pick(100'000);
    Level level;
    level.slots = {kStart + 1 + pick(length - 1), length, pick(terms.burst), 0};
    level.slots.previous = pick(terms.burst - level.slots.current);
    level.ahead = pick(static_cast<int64_t>(terms.depth()));
    Settle(terms, kStart, &level);
    const int64_t cost = 1 + pick(terms.burst - 1);
    const auto wait = static_cast<int64_t>(Wait(terms, kStart, level, cost));
    capped += wait > level.ahead;
    const auto room_after = [&](int64_t ns) {
      Level later = level;
      later.ahead = std::max<Parts>(later.ahead - ns, 0);
      Settle(terms, kStart + ns, &later);
      return Room(terms, later);
    };
    ASSERT_GE(room_after(wait), cost) << i;
    if (wait > 0) {
      ASSERT_LT(room_after(wait - 1), cost) << i;
    }
  }
  EXPECT_GT(capped, 1000);
}

TEST(HoldingTest, SpendsBeforeTheEndOnly) {
  Holding holding;
  const Question question = holding.Ask(kStart, 10, 0, 0);
  EXPECT_TRUE(holding.asks());
  holding.Hear(question, {10, 77, kLease});
  EXPECT_FALSE(holding.asks());
  EXPECT_TRUE(holding.Take(kStart, 3));
  EXPECT_FALSE(holding.Take(kStart, 8));
  EXPECT_EQ(holding.Held(kStart), 7);
  const int64_t end = kStart + kLease - kLease / 50;
  EXPECT_TRUE(holding.Take(end - 1, 7));
  EXPECT_TRUE(holding.PutBack(end - 1, 7));
  EXPECT_FALSE(holding.Take(end, 1));
  EXPECT_FALSE(holding.PutBack(end, 1));
}

TEST(HoldingTest, AnAnswerToAQuestionThatWasGivenUpGrantsNothing) {
  Holding holding;
  const Question lost = holding.Ask(kStart, 10, 0, 0);
  holding.Lose(lost);
  const Question question = holding.Ask(kStart, 10, 0, 0);
  holding.Hear(lost, {10, 77, kLease});
  EXPECT_TRUE(holding.asks());
  EXPECT_EQ(holding.Held(kStart), 0);
  holding.Hear(question, {4, 78, kLease});
  EXPECT_EQ(holding.Held(kStart), 4);
}

TEST(HoldingTest, TellsEachUnitOnce) {
  Holding holding;
  holding.Hear(holding.Ask(kStart, 10, 0, 0), {10, 77, kLease});
  ASSERT_TRUE(holding.Take(kStart, 4));
  const Question question = holding.Ask(kStart, 10, 0, 0);
  EXPECT_EQ(question.reports[0].slot_ns, 77);
  EXPECT_EQ(question.reports[0].spent, 4);
  EXPECT_EQ(question.reports[0].given, 0);
  EXPECT_FALSE(holding.PutBack(kStart, 1)) << "it was told as spent";
  holding.Hear(question, {5, 78, kLease});
  const auto reports = holding.GiveUp();
  EXPECT_EQ(reports[0].spent, 0);
  EXPECT_EQ(reports[0].given, 6);
  EXPECT_EQ(reports[1].given, 5);
  EXPECT_EQ(holding.Held(kStart), 0);
}

TEST(HoldingTest, GivesBackWhatIsAboutToEnd) {
  Holding holding;
  holding.Hear(holding.Ask(kStart, 10, 0, 0), {10, 77, kLease});
  const Question question = holding.Ask(kStart + kLease * 9 / 10, 10, 3, kLease / 5);
  EXPECT_EQ(question.reports[0].given, 7);
  EXPECT_EQ(holding.Held(kStart + kLease * 9 / 10), 3);
}

// Remainders too small for a call would keep both places until they end.
TEST(HoldingTest, GivesTheFirstOfTwoLeasesBackForANewOne) {
  Holding holding;
  holding.Hear(holding.Ask(kStart, 3, 0, 0), {3, 77, kLease});
  holding.Hear(holding.Ask(kStart, 4, 0, 0), {4, 77, kLease});
  const Question question = holding.Ask(kStart, 5, 2, 0);
  EXPECT_EQ(question.want, 5);
  EXPECT_EQ(question.reports[0].given, 3);
  holding.Hear(question, {5, 77, kLease});
  EXPECT_EQ(holding.Held(kStart), 9);
}

class KeeperTest : public ::testing::Test {
 protected:
  // The first call of a key says nothing of others.
  void SetUp() override { ASSERT_EQ(keeper_.Hit(now_, 1), Course::kStrict); }

  // The answer of a centre with much room, a millisecond later.
  void Answer(const Question& question, int64_t tokens, int64_t room = 1000) {
    Keeper::Heard heard;
    heard.granted = {tokens, kStart, kLease};
    heard.room = room;
    heard.burst = 1000;
    keeper_.Hear(question, now_ + kMs, heard);
  }

  Keeper keeper_{kLease};
  int64_t now_ = kStart;
};

TEST_F(KeeperTest, AKeyThatIsNotHotIsLeftAlone) {
  for (int i = 0; i < 20; ++i) {
    now_ += 2 * kLease;
    EXPECT_EQ(keeper_.Hit(now_, 1), Course::kStrict);
  }
}

TEST_F(KeeperTest, LeasesAreTwiceAsLongWhereCallsAreFew) {
  const auto ask_after = [&](int calls, int in_one_lease) {
    for (int i = 0; i < calls; ++i) {
      now_ += kLease / in_one_lease;
      (void)keeper_.Hit(now_, 1);
    }
    const Question question = keeper_.Ask(now_);
    keeper_.Lose(question, now_);
    return question;
  };
  const Question few = ask_after(40, 4);
  EXPECT_EQ(few.length_ns, 2 * kLease);
  EXPECT_GE(few.want, 7);
  EXPECT_EQ(ask_after(100, 12).length_ns, 2 * kLease) << "not at once another length";
  const Question many = ask_after(100, 20);
  EXPECT_EQ(many.length_ns, kLease);
  EXPECT_GE(many.want, 18);
  EXPECT_EQ(ask_after(100, 12).length_ns, kLease);
}

TEST_F(KeeperTest, AHotKeyAsksOnceAndThenSpends) {
  EXPECT_EQ(keeper_.Hit(now_, 1), Course::kAsk);
  const Question question = keeper_.Ask(now_);
  EXPECT_GE(question.want, 2);
  EXPECT_EQ(keeper_.Hit(now_, 1), Course::kStrict) << "one question at a time";
  Answer(question, 50);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(keeper_.Hit(now_, 1), Course::kSpent) << i;
}

TEST_F(KeeperTest, AsksBeforeItRunsOut) {
  ASSERT_EQ(keeper_.Hit(now_, 1), Course::kAsk);
  Answer(keeper_.Ask(now_), 100);
  now_ += 10 * kMs;
  int left = 100;
  Course course = Course::kSpent;
  for (; course == Course::kSpent; --left) course = keeper_.Hit(now_, 1);
  EXPECT_EQ(course, Course::kSpentAndAsk);
  EXPECT_GT(left, 1);
  EXPECT_LT(left, 30);
  (void)keeper_.Ask(now_);
  EXPECT_EQ(keeper_.Hit(now_, 1), Course::kSpent);
}

TEST_F(KeeperTest, AnEmptyCentreIsNotAskedForAWhile) {
  ASSERT_EQ(keeper_.Hit(now_, 1), Course::kAsk);
  Answer(keeper_.Ask(now_), 1, /*room=*/3);
  EXPECT_EQ(keeper_.Hit(now_, 1), Course::kSpent);
  EXPECT_EQ(keeper_.Hit(now_, 1), Course::kRefused);
  EXPECT_LE(keeper_.hold_ns(), kStart + kLease * 3 / 8);
  now_ = keeper_.hold_ns();
  ASSERT_EQ(keeper_.Hit(now_, 1), Course::kAsk);
  const Question question = keeper_.Ask(now_);
  EXPECT_EQ(keeper_.Hit(now_, 1), Course::kRefused) << "before the answer, which finds as little";
  Answer(question, 50);
  EXPECT_EQ(keeper_.Hit(now_, 1), Course::kSpent);
}

TEST_F(KeeperTest, WantsMoreWhileOthersHaveEnough) {
  ASSERT_EQ(keeper_.Hit(now_, 40), Course::kAsk);
  const Question first = keeper_.Ask(now_);
  Answer(first, 0, /*room=*/700);
  const int64_t some = keeper_.Ask(now_).want;
  EXPECT_EQ(some, first.want);
  Answer(keeper_.Ask(now_), 0, /*room=*/800);
  EXPECT_GT(keeper_.Ask(now_).want, some * 5 / 4);
}

TEST_F(KeeperTest, ARefusalHoldsForCallsOfItsCostAndMore) {
  ASSERT_EQ(keeper_.Hit(now_, 5), Course::kAsk);
  Keeper::Heard heard;
  heard.allowed = false;
  heard.cost = 5;
  heard.wait_ns = kSecond;
  keeper_.Hear(keeper_.Ask(now_), now_ + kMs, heard);
  EXPECT_EQ(keeper_.hold_ns(), now_ + kMs + kSecond);
  EXPECT_EQ(keeper_.Hit(now_ + 2 * kMs, 5), Course::kRefused);
  EXPECT_EQ(keeper_.Peek(now_ + 2 * kMs, 6), Course::kRefused);
  EXPECT_NE(keeper_.Hit(now_ + 2 * kMs, 4), Course::kRefused);
  keeper_.Reset();
  EXPECT_NE(keeper_.Hit(now_ + 2 * kMs, 5), Course::kRefused);
}

TEST_F(KeeperTest, ALostQuestionIsNotAskedAgainAtOnce) {
  ASSERT_EQ(keeper_.Hit(now_, 1), Course::kAsk);
  keeper_.Lose(keeper_.Ask(now_), now_);
  EXPECT_EQ(keeper_.Hit(now_, 1), Course::kStrict);
  EXPECT_EQ(keeper_.Hit(now_ + kLease / 4, 1), Course::kAsk);
}

TEST_F(KeeperTest, WantsNothingThatWouldArriveTooLate) {
  for (int question = 0; question < 3; ++question) {
    ASSERT_EQ(keeper_.Hit(now_, 1), Course::kAsk) << question;
    const Question asked = keeper_.Ask(now_);
    now_ += 2 * kLease;
    keeper_.Hear(asked, now_, {});
    (void)keeper_.Hit(now_, 9);
  }
  EXPECT_EQ(keeper_.Hit(now_, 9), Course::kStrict);
}

TEST_F(KeeperTest, FindsOutWhenAnswersComeInTimeAgain) {
  for (int question = 0; question < 3; ++question) {
    ASSERT_EQ(keeper_.Hit(now_, 1), Course::kAsk);
    const Question asked = keeper_.Ask(now_);
    now_ += 2 * kLease;
    keeper_.Hear(asked, now_, {});
    (void)keeper_.Hit(now_, 9);
  }
  // While they do not, it asks for next to nothing, and seldom: in the sixth lease again.
  for (int question = 0; question < 10; ++question) {
    int calls = 1;
    for (; calls < 200 && keeper_.Hit(now_, 1) != Course::kAsk; now_ += kLease / 20) ++calls;
    EXPECT_GE(calls, 100);
    EXPECT_LE(calls, 141);
    const Question asked = keeper_.Ask(now_);
    EXPECT_EQ(asked.want, 2);
    keeper_.Hear(asked, now_ + (question < 9 ? 2 * kLease : kMs), {});
  }
  ASSERT_EQ(keeper_.Hit(now_, 1), Course::kAsk) << "one answer in time is enough";
  EXPECT_GT(keeper_.Ask(now_).want, 10);
}

// A process that stood still once, or a connection that had to be opened.
TEST_F(KeeperTest, TwoLateAnswersDoNotEndLeases) {
  int64_t usual = 0;
  for (const int64_t trip_ns : {kMs, 4 * kLease, kMs, 9 * kLease, 9 * kLease}) {
    (void)keeper_.Hit(now_, 30);
    const Question asked = keeper_.Ask(now_);
    EXPECT_EQ(asked.length_ns, kLease);
    usual = asked.want;
    EXPECT_GT(usual, 10);
    now_ += kMs;
    keeper_.Hear(asked, asked.asked_ns + trip_ns, {});
  }
}

TEST_F(KeeperTest, LeasesAreTwiceAsLongWhereAnswersTakeMoreThanHalfOfOne) {
  const auto ask = [&](int64_t trip_ns) {
    for (int i = 0; i < 40; ++i) (void)keeper_.Hit(now_ += kLease / 20, 1);
    const Question asked = keeper_.Ask(now_);
    keeper_.Hear(asked, now_ + trip_ns, {});
    return asked;
  };
  const int64_t usual = ask(kMs).want;
  for (int i = 0; i < 3; ++i) (void)ask(kLease * 6 / 10);
  const Question distant = ask(kLease * 6 / 10);
  EXPECT_EQ(distant.length_ns, 2 * kLease);
  EXPECT_GT(distant.want, usual * 3 / 2);
  for (int i = 0; i < 3; ++i) (void)ask(kLease * 14 / 10);
  const Question later = ask(kLease * 14 / 10);
  EXPECT_EQ(later.length_ns, 2 * kLease);
  EXPECT_LT(later.want, distant.want / 2) << "of which little can be spent";
  EXPECT_GT(later.want, 2);
  EXPECT_EQ(ask(kMs).length_ns, 2 * kLease);
  EXPECT_EQ(ask(kMs).length_ns, kLease);
}

TEST_F(KeeperTest, CallsAreRefusedUntilADistantCentreThatHadNextToNothingAnswers) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(keeper_.Hit(now_, 1), Course::kAsk);
    const Question question = keeper_.Ask(now_);
    now_ += kLease / 4;
    Keeper::Heard heard;
    heard.room = 3;
    heard.burst = 1000;
    keeper_.Hear(question, now_, heard);
    now_ = std::max(now_, keeper_.hold_ns());
  }
  ASSERT_EQ(keeper_.Hit(now_, 1), Course::kAsk);
  (void)keeper_.Ask(now_);
  EXPECT_EQ(keeper_.Hit(now_ + kLease / 5, 1), Course::kRefused);
}

struct Way {
  int64_t trip_ns;
  int64_t pause_ns = 0;    // how long there are no calls, once a second
  int64_t command_ns = 0;  // that the centre needs for one command; the next ones wait
  int64_t stop_ns = 0;     // how long the centre stands still once
};

// The share of the calls of a hot key that wait for an answer, by the whole policy of a key: calls
// at random instants, trips that take up to twice as long as most, and now and then no calls for a
// while, as when an event loop stands still.
double Waiting(const Way& way) {
  std::mt19937_64 random(5);
  std::exponential_distribution<double> gap(200.0 / kSecond);
  Keeper keeper(kLease);
  std::optional<Question> asked;
  int64_t heard_ns = 0;
  int64_t calls = 0;
  int64_t waited = 0;
  int64_t paused_ns = kStart;
  int64_t free_ns = 0;
  bool has_stopped = way.stop_ns == 0;
  const auto executed = [&](int64_t now) {
    free_ns = std::max(free_ns, now) + way.command_ns;
    return free_ns;
  };
  for (int64_t now = kStart; now < kStart + 400 * kSecond;) {
    now += static_cast<int64_t>(gap(random));
    if (now - paused_ns > kSecond) paused_ns = now += way.pause_ns;
    if (!has_stopped && now > kStart + 10 * kSecond) {
      has_stopped = true;
      free_ns = now + way.stop_ns;
    }
    if (asked.has_value() && heard_ns <= now) {
      Keeper::Heard heard;
      heard.granted = {asked->want, kStart, asked->length_ns};
      heard.room = heard.burst = 1'000'000;
      keeper.Hear(*asked, heard_ns, heard);
      asked.reset();
    }
    const Course course = keeper.Hit(now, 1);
    const bool waits = course == Course::kAsk || course == Course::kStrict;
    if (course == Course::kAsk || course == Course::kSpentAndAsk) {
      asked = keeper.Ask(now);
      heard_ns = executed(now) + way.trip_ns + (random() % 20 == 0 ? way.trip_ns : 0);
    } else if (waits) {
      (void)executed(now);
    }
    if (now < kStart + 3 * kSecond) continue;
    ++calls;
    waited += waits;
  }
  return static_cast<double>(waited) / static_cast<double>(calls);
}

TEST(KeeperTripTest, AsksEarlyEnoughForACentreThatIsFarAway) {
  EXPECT_LE(Waiting({20 * kMs}), 0.001);
  EXPECT_LE(Waiting({.trip_ns = 20 * kMs, .pause_ns = 20 * kMs}), 0.001);
  EXPECT_LE(Waiting({.trip_ns = 30 * kMs, .pause_ns = 10 * kMs}), 0.001);
}

// A centre that executes three quarters of the calls as commands, so that those which wait when it
// has stood still for a moment make each other wait. Were no leases asked for then, that would
// never end.
TEST(KeeperTripTest, ReturnsToLeasesAfterACentreThatIsSlowerThanTheCallsStoodStill) {
  EXPECT_LE(Waiting({.trip_ns = kMs, .command_ns = kSecond / 150}), 0.002);
  EXPECT_LE(Waiting({.trip_ns = kMs, .command_ns = kSecond / 150, .stop_ns = 300 * kMs}), 0.01);
}

TEST(KeeperTripTest, LeasesFromACentreThatIsMoreThanHalfALeaseAway) {
  EXPECT_LE(Waiting({120 * kMs}), 0.15);
  EXPECT_LE(Waiting({180 * kMs}), 0.3);
  EXPECT_GE(Waiting({500 * kMs}), 0.9);
}

TEST(DemandTest, FollowsTheCallsOfAboutOneLease) {
  Demand demand;
  int64_t now = kStart;
  for (int i = 0; i < 2000; ++i, now += kMs) demand.Count(now, 1, kLease);
  EXPECT_NEAR(demand.InOneLease(now, kLease), 200, 10);
  now += 3 * kLease;
  for (int i = 0; i < 50; ++i, now += 20 * kMs) demand.Count(now, 1, kLease);
  EXPECT_NEAR(demand.InOneLease(now, kLease), 10, 3);
}

}  // namespace
}  // namespace tidegate::leases
