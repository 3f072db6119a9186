#include "tidegate/limit.h"

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing.h"
#include "tidegate/shm_store.h"
#include "tidegate/step.h"

namespace tidegate::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

__extension__ typedef unsigned __int128 Wide;
Wide Widen(int64_t value) { return static_cast<Wide>(value); }

std::string MessageOf(LimitSpec spec) {
  const absl::StatusOr<Limit> limit = Limit::Create(std::move(spec));
  if (limit.ok()) return "accepted as " + limit->ToString();
  EXPECT_EQ(limit.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(limit.status().message());
}

TEST(LimitTest, BurstOfABucketIsItsCountUnlessGiven) {
  EXPECT_EQ(MakeLimit(100, kSecond).burst(), 100);
  EXPECT_EQ(MakeLimit(100, kSecond).capacity(), 100);
  const Limit limit = MakeLimit(LimitSpec{.count = 10, .period_ns = kSecond, .burst = 40});
  EXPECT_EQ(limit.count(), 10);
  EXPECT_EQ(limit.capacity(), 40);
  EXPECT_EQ(limit.ToString(), "10/second burst 40");
}

TEST(LimitTest, CountsAreBounded) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    const int64_t most = algorithm == Algorithm::kSlidingWindow ? Limit::kMaxWindowCount
                         : IsLog(algorithm)                     ? Limit::kMaxLogCount
                                                                : Limit::kMaxCount;
    EXPECT_EQ(MakeLimit(most, kSecond, algorithm).count(), most);
    for (const int64_t bad : {int64_t{-1}, most + 1, std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max()}) {
      EXPECT_THAT(MessageOf({.count = bad, .period_ns = kSecond, .algorithm = algorithm}),
                  AllOf(HasSubstr(std::to_string(bad)), HasSubstr("1 to " + std::to_string(most))));
    }
  }
}

TEST(LimitTest, ACountOfZeroIsAValidLimit) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    const LimitSpec spec{.count = 0, .period_ns = 60 * kSecond, .algorithm = algorithm};
    if (algorithm == Algorithm::kConcurrency) {
      EXPECT_THAT(MessageOf(spec), HasSubstr("1 to "));
      continue;
    }
    const Limit limit = MakeLimit(spec);
    EXPECT_EQ(limit.capacity(), 0);
    EXPECT_EQ(limit.ToString(), "0/minute");
  }
  EXPECT_THAT(MessageOf({.count = 0, .period_ns = kSecond, .burst = 5}), HasSubstr("burst of 5"));
}

TEST(LimitTest, ACountOfZeroRefusesEverything) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (IsLog(algorithm)) continue;
    const Limit limit = MakeLimit(0, kSecond, algorithm);
    for (const int64_t cost : {int64_t{1}, int64_t{2}, Limit::kMaxCount}) {
      CellState next;
      const Decision decision = Step(limit, {}, 5 * kSecond, cost, &next);
      EXPECT_FALSE(decision.allowed);
      EXPECT_EQ(decision.retry_after_ns, Decision::kNever);
      EXPECT_EQ(decision.remaining(), 0);
      EXPECT_EQ(next, CellState{});
    }
  }
}

TEST(LimitTest, PeriodsAreBounded) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    EXPECT_EQ(MakeLimit(1, 1, algorithm).period_ns(), 1);
    // A sliding window looks two periods ahead.
    const bool two = algorithm == Algorithm::kSlidingWindow;
    const int64_t longest = Limit::kMaxPeriodNs / (two ? 2 : 1);
    EXPECT_EQ(MakeLimit(1, longest, algorithm).period_ns(), longest);
    for (const int64_t bad :
         {int64_t{0}, int64_t{-1}, longest + 1, std::numeric_limits<int64_t>::max()}) {
      EXPECT_THAT(MessageOf({.count = 1, .period_ns = bad, .algorithm = algorithm}),
                  AllOf(HasSubstr(std::to_string(bad)), HasSubstr(two ? "50 years" : "100 years")));
    }
  }
}

TEST(LimitTest, BurstsAreBoundedAndOnlyBucketsHaveThem) {
  for (const int64_t bad : {int64_t{0}, int64_t{-5}, Limit::kMaxCount + 1}) {
    EXPECT_THAT(MessageOf({.count = 1, .period_ns = kSecond, .burst = bad}),
                HasSubstr(std::to_string(bad)));
  }
  for (const Algorithm algorithm : kAllAlgorithms) {
    const LimitSpec spec{.count = 1, .period_ns = kSecond, .burst = 7, .algorithm = algorithm};
    if (IsBucket(algorithm)) {
      EXPECT_EQ(MakeLimit(spec).burst(), 7);
    } else {
      EXPECT_THAT(MessageOf(spec), AllOf(HasSubstr("7"), HasSubstr("only token-bucket")));
    }
  }
}

TEST(LimitTest, RefusesABurstThatTakesMoreThan100YearsToRefill) {
  EXPECT_THAT(MessageOf({.count = 1, .period_ns = Limit::kMaxPeriodNs, .burst = 2}),
              HasSubstr("more than 100 years"));
  EXPECT_THAT(MessageOf({.count = 1, .period_ns = kSecond, .burst = Limit::kMaxCount}),
              HasSubstr("more than 100 years"));
  EXPECT_EQ(
      MakeLimit(LimitSpec{.count = 2, .period_ns = Limit::kMaxPeriodNs, .burst = 2}).depth_ns(),
      Limit::kMaxPeriodNs);
}

// Compares T = period / count and burst * T with a computation in 128 bits.
TEST(LimitTest, IntervalsAreExact) {
  std::mt19937_64 random(1);
  const auto draw = [&](int64_t most) {
    const auto bits = std::uniform_int_distribution<int>(0, 62)(random);
    return std::uniform_int_distribution<int64_t>(1, std::min(most, int64_t{1} << bits))(random);
  };
  for (int i = 0; i < 100'000; ++i) {
    const LimitSpec spec{.count = draw(Limit::kMaxCount),
                         .period_ns = draw(Limit::kMaxPeriodNs),
                         .burst = draw(Limit::kMaxCount)};
    const absl::StatusOr<Limit> limit = Limit::Create(spec);
    const Wide depth = Widen(*spec.burst) * Widen(spec.period_ns);
    ASSERT_EQ(limit.ok(), depth / Widen(spec.count) <= Widen(Limit::kMaxPeriodNs));
    if (!limit.ok()) continue;
    const Wide denominator = Widen(limit->denominator());
    ASSERT_LT(limit->step_fraction(), limit->denominator());
    ASSERT_LT(limit->depth_fraction(), limit->denominator());
    ASSERT_TRUE((Widen(limit->step_ns()) * denominator + Widen(limit->step_fraction())) *
                    Widen(spec.count) ==
                Widen(spec.period_ns) * denominator);
    ASSERT_TRUE(Widen(limit->numerator()) * Widen(spec.count) ==
                Widen(spec.period_ns) * denominator);
    ASSERT_TRUE((Widen(limit->depth_ns()) * denominator + Widen(limit->depth_fraction())) ==
                Widen(*spec.burst) * Widen(limit->numerator()));
  }
}

TEST(LimitTest, RuleIsTheNameOrElseTheText) {
  EXPECT_EQ(MakeLimit(100, 60 * kSecond).rule(), "100/minute");
  EXPECT_EQ(MakeLimit(LimitSpec{.count = 1, .period_ns = kSecond, .name = "login"}).rule(),
            "login");
}

TEST(LimitTest, EqualIfItsMeaningIsEqual) {
  const Limit limit = MakeLimit(60, 60 * kSecond);
  EXPECT_EQ(limit, MakeLimit(60, 60 * kSecond));
  EXPECT_EQ(limit, MakeLimit(LimitSpec{.count = 60, .period_ns = 60 * kSecond, .burst = 60}));
  EXPECT_NE(limit, MakeLimit(60, 60 * kSecond, Algorithm::kFixedWindow));
  EXPECT_NE(limit, MakeLimit(1, kSecond));
  EXPECT_NE(limit, MakeLimit(LimitSpec{.count = 60, .period_ns = 60 * kSecond, .burst = 61}));
  EXPECT_NE(limit, MakeLimit(LimitSpec{.count = 60, .period_ns = 60 * kSecond, .name = "n"}));
}

TEST(LimitTest, AlgorithmsAreParsedByTheirNamesOnly) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    EXPECT_EQ(*ParseAlgorithm(AlgorithmName(algorithm)), algorithm);
  }
  EXPECT_EQ(*ParseAlgorithm("gcra"), Algorithm::kTokenBucket);
  for (const std::string_view bad :
       {std::string_view(""), std::string_view("token_bucket"), std::string_view("Token-bucket"),
        std::string_view("gcra\0", 5)}) {
    EXPECT_THAT(std::string(ParseAlgorithm(bad).status().message()),
                AllOf(HasSubstr("unknown algorithm"), HasSubstr("sliding-window")));
  }
}

// Messages quote the caller's text: shortened, printable, and still UTF-8.
TEST(LimitTest, MessagesQuoteUnknownNamesSafely) {
  const std::string message(
      ParseAlgorithm("a\n\x01" + std::string(1'000'000, 'x')).status().message());
  EXPECT_LT(message.size(), 400u);
  EXPECT_THAT(message, HasSubstr("'a\\x0a\\x01xxx"));
  // After 79 bytes comes a character of two bytes, and the text is cut after 80.
  EXPECT_THAT(std::string(ParseAlgorithm(std::string(79, 'x') + "\xc3\xa9.").status().message()),
              HasSubstr("'" + std::string(79, 'x') + "...'"));
  // Text stays text; control characters and what is not UTF-8 are escaped.
  for (const auto& [given, shown] : std::vector<std::pair<std::string, std::string>>{
           {"\xc3\xa9", "'\xc3\xa9'"},                  // e with an accent
           {"\xef\xbc\x91", "'\xef\xbc\x91'"},          // a digit of full width
           {"\xf0\x9f\x98\x80", "'\xf0\x9f\x98\x80'"},  // a face
           {"\x7f", "'\\x7f'"},
           {"\xc2\x85", "'\\xc2\\x85'"},  // a control character, the next line
           {"\xc3", "'\\xc3'"},           // cut off
           {"\xc3x", "'\\xc3x'"},
           {"\xa9", "'\\xa9'"},
           {"\xc0\xaf", "'\\xc0\\xaf'"},  // '/', too long
           {"\xe0\x80\xaf", "'\\xe0\\x80\\xaf'"},
           {"\xf0\x80\x80\xaf", "'\\xf0\\x80\\x80\\xaf'"},
           {"\xed\xa0\x80", "'\\xed\\xa0\\x80'"},           // half a surrogate pair
           {"\xf4\x90\x80\x80", "'\\xf4\\x90\\x80\\x80'"},  // beyond U+10FFFF
           {"\xff", "'\\xff'"},
       }) {
    EXPECT_THAT(std::string(ParseAlgorithm(given).status().message()), HasSubstr(shown));
    EXPECT_THAT(std::string(Limit::Parse(given).status().message()), HasSubstr(shown));
    EXPECT_THAT(std::string(ShmStore::PathOf(given).status().message()), HasSubstr(shown));
  }
  // Neither does a text grow by what it cannot show: here the whole text, its clause and its zone.
  const std::string unprintable(200, '\x01');
  for (const std::string& bad : {"quota 1/month " + unprintable, "quota 1/month in " + unprintable,
                                 "quota " + unprintable, unprintable}) {
    const std::string refusal(Limit::Parse(bad, {}).status().message());
    EXPECT_LT(refusal.size(), 600u) << refusal;
    EXPECT_THAT(refusal, HasSubstr("\\x01..."));
  }
}

// The calendar's arithmetic divides by numbers of months and years.
TEST(LimitTest, CalendarUnitsAreBounded) {
  for (const Calendar calendar : {Calendar::kMonth, Calendar::kYear}) {
    for (const int64_t bad :
         {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min(),
          std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max() / 12}) {
      EXPECT_FALSE(Limit::Create({.count = 1,
                                  .period_ns = kSecond,
                                  .algorithm = Algorithm::kFixedWindow,
                                  .calendar = calendar,
                                  .calendar_units = bad})
                       .ok())
          << bad;
    }
  }
}

TEST(LimitTest, OnlyFixedWindowsFollowTheCalendar) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    const Limit limit = MakeLimit(LimitSpec{.count = 5,
                                            .period_ns = 30 * 86'400 * kSecond,
                                            .algorithm = algorithm,
                                            .calendar = Calendar::kMonth});
    const bool fixed = algorithm == Algorithm::kFixedWindow;
    EXPECT_EQ(limit.calendar(), fixed ? Calendar::kMonth : Calendar::kNone);
    EXPECT_EQ(limit.ToString(), fixed ? "5/month" : "5/30 days");
  }
}

}  // namespace
}  // namespace tidegate::testing
