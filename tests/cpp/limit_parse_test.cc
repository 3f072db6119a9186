#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing.h"
#include "tidegate/limit.h"

namespace tidegate::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kMinute = 60 * kSecond;
constexpr int64_t kHour = 60 * kMinute;
constexpr int64_t kDay = 24 * kHour;

struct Accepted {
  std::string_view text;
  int64_t count;
  int64_t period_ns;
  std::string_view canonical;
  int64_t burst = 0;  // 0: the count
};

class ParsesTest : public ::testing::TestWithParam<Accepted> {};

TEST_P(ParsesTest, ToTheLimitThatTheTextStates) {
  const Accepted& expected = GetParam();
  const absl::StatusOr<Limit> limit = Limit::Parse(expected.text);
  ASSERT_TRUE(limit.ok()) << limit.status();
  EXPECT_EQ(limit->count(), expected.count);
  EXPECT_EQ(limit->period_ns(), expected.period_ns);
  EXPECT_EQ(limit->burst(), expected.burst == 0 ? expected.count : expected.burst);
  EXPECT_EQ(limit->ToString(), expected.canonical);
  EXPECT_EQ(limit->calendar(), Calendar::kNone);
}

INSTANTIATE_TEST_SUITE_P(
    Grammar, ParsesTest,
    ::testing::Values(
        Accepted{"100/minute", 100, kMinute, "100/minute"},
        Accepted{"100/ minute", 100, kMinute, "100/minute"},
        Accepted{" \t100 / minute\t ", 100, kMinute, "100/minute"},
        Accepted{"100 per minute", 100, kMinute, "100/minute"},
        Accepted{"100PER MINUTES", 100, kMinute, "100/minute"},
        Accepted{"100perminute", 100, kMinute, "100/minute"},
        Accepted{"\n100/minute\r\n", 100, kMinute, "100/minute"},
        Accepted{"5/2 seconds", 5, 2 * kSecond, "5/2 seconds"},
        Accepted{"5/2seconds", 5, 2 * kSecond, "5/2 seconds"},
        Accepted{"5 per 60 seconds", 5, kMinute, "5/minute"},
        Accepted{"007/010 s", 7, 10 * kSecond, "7/10 seconds"},
        Accepted{"1/1.5 s", 1, 1500 * kMs, "1/1500 ms"}, Accepted{"1/0.000000001 s", 1, 1, "1/ns"},
        Accepted{"1/1.000000000000000000 s", 1, kSecond, "1/second"},
        Accepted{"10/second burst 40", 10, kSecond, "10/second burst 40", 40},
        Accepted{"10/second burst 10", 10, kSecond, "10/second", 10},
        Accepted{"10/s BURST 3", 10, kSecond, "10/second burst 3", 3},
        Accepted{"9007199254740991/day", Limit::kMaxCount, kDay, "9007199254740991/day"},
        Accepted{"1/5217.8571428 w", 1, 3'155'759'999'965'440'000, "1/3155759999965440 us"}));

INSTANTIATE_TEST_SUITE_P(
    Units, ParsesTest,
    ::testing::Values(
        Accepted{"1/ns", 1, 1, "1/ns"}, Accepted{"1/nanosecond", 1, 1, "1/ns"},
        Accepted{"1/us", 1, 1'000, "1/us"}, Accepted{"1/3 microseconds", 1, 3'000, "1/3 us"},
        Accepted{"1/ms", 1, kMs, "1/ms"}, Accepted{"1/9 milliseconds", 1, 9 * kMs, "1/9 ms"},
        Accepted{"1/s", 1, kSecond, "1/second"}, Accepted{"1/sec", 1, kSecond, "1/second"},
        Accepted{"1/2 secs", 1, 2 * kSecond, "1/2 seconds"},
        Accepted{"1/m", 1, kMinute, "1/minute"}, Accepted{"1/mins", 1, kMinute, "1/minute"},
        Accepted{"1/h", 1, kHour, "1/hour"}, Accepted{"1/2 hrs", 1, 2 * kHour, "1/2 hours"},
        Accepted{"1/d", 1, kDay, "1/day"}, Accepted{"1/days", 1, kDay, "1/day"},
        Accepted{"1/w", 1, 7 * kDay, "1/week"}, Accepted{"1/2 wks", 1, 14 * kDay, "1/2 weeks"},
        Accepted{"1/month", 1, 30 * kDay, "1/30 days"},
        Accepted{"1/MONTHS", 1, 30 * kDay, "1/30 days"},
        Accepted{"1/2 months", 1, 60 * kDay, "1/60 days"},
        Accepted{"1/year", 1, 365 * kDay, "1/365 days"},
        Accepted{"1/y", 1, 365 * kDay, "1/365 days"},
        Accepted{"1/7 yrs", 1, 7 * 365 * kDay, "1/365 weeks"}));

class RefusesTest : public ::testing::TestWithParam<std::string_view> {};

TEST_P(RefusesTest, AndSaysWhatIsExpected) {
  for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kFixedWindow}) {
    const absl::StatusOr<Limit> limit = Limit::Parse(GetParam(), {.algorithm = algorithm});
    ASSERT_FALSE(limit.ok()) << limit->ToString();
    EXPECT_EQ(limit.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(limit.status().message()),
                AnyOf(HasSubstr("expected"), HasSubstr("only token-bucket")));
  }
}

using namespace std::string_view_literals;
INSTANTIATE_TEST_SUITE_P(
    Texts, RefusesTest,
    ::testing::Values(""sv, " "sv, "\t"sv, "/"sv, "100"sv, "100/"sv, "100 per"sv, "/minute"sv,
                      "minute"sv, "100minute"sv, "100 minute"sv, "100//minute"sv,
                      "100/per minute"sv, "0/minute burst 5"sv, "-1/minute"sv, "+1/minute"sv,
                      "1.5/minute"sv, "1e3/minute"sv, "0x10/minute"sv, "100/minutes s"sv,
                      "100/fortnight"sv, "100/ss"sv, "100/minute,"sv, "100/0 minutes"sv,
                      "100/-1 minute"sv, "100/.5 s"sv, "100/1. s"sv, "100/1.2.3 s"sv,
                      "100/0.1 ns"sv, "100/1.0000000000000000001 s"sv, "100/101 years"sv,
                      "100/5218 weeks"sv, "100/99999999999999999999999999999999999999999999 s"sv,
                      "99999999999999999999999999999999999999999999/s"sv, "9007199254740992/s"sv,
                      "100/minute burst"sv, "100/minute burst 0"sv, "100/minute burst -1"sv,
                      "100/minute burst 5 5"sv, "100/minute bursts 5"sv, "100/minute 5"sv,
                      "100/minute burst 99999999999999999999"sv, "1/s burst 3155760001"sv,
                      "100/minute\0"sv,
                      "\0"
                      "100/minute"sv,
                      "100\x1c/minute"sv, "100/m\xc3\xadnute"sv, "\xef\xbc\x91/minute"sv,
                      "nan/minute"sv, "inf/s"sv, "100/0.5 months 3"sv));

TEST(LimitParseTest, ABurstIsRefusedForAlgorithmsWithoutOne) {
  EXPECT_FALSE(Limit::Parse("10/s burst 20", {.algorithm = Algorithm::kFixedWindow}).ok());
  EXPECT_FALSE(Limit::Parse("10/s", {.burst = 20, .algorithm = Algorithm::kSlidingLog}).ok());
}

TEST(LimitParseTest, DefaultsReplaceMissingPartsOfTheText) {
  const LimitSpec defaults{.burst = 20, .algorithm = Algorithm::kLeakyBucket, .name = "uploads"};
  const Limit limit = *Limit::Parse("10/s", defaults);
  EXPECT_EQ(limit.burst(), 20);
  EXPECT_EQ(limit.algorithm(), Algorithm::kLeakyBucket);
  EXPECT_EQ(limit.rule(), "uploads");
  EXPECT_TRUE(Limit::Parse("10/s burst 20", defaults).ok());
  EXPECT_THAT(std::string(Limit::Parse("10/s burst 21", defaults).status().message()),
              HasSubstr("another, 20,"));
}

TEST(LimitParseTest, FixedWindowsOfMonthsAndYearsFollowTheCalendar) {
  const LimitSpec fixed{.algorithm = Algorithm::kFixedWindow};
  const Limit month = *Limit::Parse("5/month", fixed);
  EXPECT_EQ(month.calendar(), Calendar::kMonth);
  EXPECT_EQ(month.calendar_units(), 1);
  const Limit years = *Limit::Parse("5 per 100 years", fixed);
  EXPECT_EQ(years.calendar(), Calendar::kYear);
  EXPECT_EQ(years.calendar_units(), 100);
  EXPECT_EQ(years.ToString(), "5/100 years");
  EXPECT_FALSE(Limit::Parse("5/1.5 months", fixed).ok());
  // A window of 30 days is not a month.
  EXPECT_EQ(Limit::Parse("5/30 days", fixed)->calendar(), Calendar::kNone);
  EXPECT_NE(*Limit::Parse("5/30 days", fixed), month);
}

TEST(LimitParseTest, MessagesQuoteTheText) {
  const auto message = [](std::string_view text) {
    return std::string(Limit::Parse(text).status().message());
  };
  EXPECT_THAT(message("100/fortnight"),
              AllOf(HasSubstr("100/fortnight"), HasSubstr("unit is unknown")));
  EXPECT_THAT(message("1/s burst 0"), AllOf(HasSubstr("is 0"), HasSubstr("1 to")));
  for (const std::string text : {"100/M", "100/mo", "1 per mon"}) {
    EXPECT_THAT(message(text), AllOf(HasSubstr(text), HasSubstr("minutes or months")));
  }
  EXPECT_THAT(message(std::string_view("\n\0\xff", 3)), HasSubstr("\\x0a\\x00\\xff"));
  const std::string huge(25, '9');
  for (const std::string& text : {huge + "/s", "1/s burst " + huge}) {
    EXPECT_THAT(message(text), AllOf(HasSubstr(text), HasSubstr("expected 1 to")));
  }
  EXPECT_LT(message(std::string(1 << 20, '9')).size(), 600u);
  EXPECT_LT(message("1/" + std::string(1 << 20, 'z')).size(), 600u);
}

TEST(LimitParseTest, ManyLimitsAreSeparatedAndNoneIsEmpty) {
  for (const std::string_view text :
       {"5/2 seconds; 100/hour", "5/2 seconds,100/hour", "5/2 seconds |100/hour"}) {
    const absl::StatusOr<std::vector<Limit>> limits = Limit::ParseMany(text);
    ASSERT_TRUE(limits.ok()) << limits.status();
    ASSERT_EQ(limits->size(), 2u);
    EXPECT_EQ((*limits)[0].ToString(), "5/2 seconds");
    EXPECT_EQ((*limits)[1].ToString(), "100/hour");
  }
  EXPECT_EQ(Limit::ParseMany("1/s burst 2;1/m;1/h|1/d,1/w")->size(), 5u);
  for (const std::string_view bad : {"", ";", "1/s;", ";1/s", "1/s;;1/m", "1/s; 1/x"}) {
    EXPECT_FALSE(Limit::ParseMany(bad).ok()) << bad;
  }
  for (const std::string bad : {"1/s;", ";1/s", "1/s; ,1/m"}) {
    EXPECT_THAT(std::string(Limit::ParseMany(bad).status().message()),
                AllOf(HasSubstr(bad), HasSubstr("one of its limits is empty")));
  }
}

TEST(LimitParseTest, TheCanonicalTextOfALimitParsesToTheSameLimit) {
  std::mt19937_64 random(2);
  const auto draw = [&](int64_t most) {
    const int64_t bound =
        std::min(most, int64_t{1} << std::uniform_int_distribution<int>(0, 62)(random));
    return std::uniform_int_distribution<int64_t>(1, bound)(random);
  };
  constexpr int64_t kUnits[] = {1, 1'000, kMs, kSecond, kMinute, kHour, kDay, 7 * kDay};
  for (int i = 0; i < 50'000; ++i) {
    LimitSpec spec;
    spec.algorithm = kAllAlgorithms[random() % std::size(kAllAlgorithms)];
    spec.count = draw(IsLog(spec.algorithm)                         ? Limit::kMaxLogCount
                      : spec.algorithm == Algorithm::kSlidingWindow ? Limit::kMaxWindowCount
                                                                    : Limit::kMaxCount);
    const int64_t unit = kUnits[random() % std::size(kUnits)];
    spec.period_ns = draw(Limit::kMaxPeriodNs / unit) * unit;
    if (IsBucket(spec.algorithm) && random() % 2 == 0) spec.burst = draw(1 << 20);
    if (random() % 8 == 0) {
      spec.algorithm = Algorithm::kFixedWindow;
      spec.burst.reset();
      spec.calendar = Calendar::kMonth;
      spec.calendar_units = draw(1'200);
      spec.period_ns = 30 * kDay * spec.calendar_units;
    }
    const absl::StatusOr<Limit> limit = Limit::Create(spec);
    if (!limit.ok()) continue;  // a burst that takes too long to refill
    const absl::StatusOr<Limit> again =
        Limit::Parse(limit->ToString(), {.algorithm = limit->algorithm()});
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_EQ(*again, *limit);
    ASSERT_EQ(again->period_ns(), limit->period_ns());
    ASSERT_EQ(again->burst(), limit->burst());
    ASSERT_EQ(again->calendar(), limit->calendar());
    ASSERT_EQ(again->calendar_units(), limit->calendar_units());
  }
}

}  // namespace
}  // namespace tidegate::testing
