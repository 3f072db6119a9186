#include "tidegate/rate_fields.h"

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

TEST(RateFieldsTest, NamesAreInTwoCases) {
  EXPECT_EQ(NameOf(RateField::kLimit), "X-RateLimit-Limit");
  EXPECT_EQ(LowerNameOf(RateField::kLimit), "x-ratelimit-limit");
  EXPECT_EQ(NameOf(RateField::kRetryAfter), "Retry-After");
  EXPECT_EQ(LowerNameOf(RateField::kPolicy), "ratelimit-policy");
}

TEST(RateFieldsTest, SecondsAreRoundedUpAndNeverOverflow) {
  EXPECT_EQ(CeilSeconds(0), 0);
  EXPECT_EQ(CeilSeconds(1), 1);
  EXPECT_EQ(CeilSeconds(kSecond), 1);
  EXPECT_EQ(CeilSeconds(kSecond + 1), 2);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(InstantAfter(kMax - 1, 2), kMax);
}

TEST(RateFieldsTest, StatesTheLimitAndItsState) {
  const Limit limit = MakeLimit({.count = 5, .period_ns = 1'500'000'000, .name = R"(a "b\)"});
  EXPECT_EQ(PolicyMember(limit), R"("a \"b\\";q=5;w=2)");
  EXPECT_EQ(StateStart(limit), R"("a \"b\\";r=)");
  const Limit slots = MakeLimit(
      {.count = 5, .period_ns = kSecond, .algorithm = Algorithm::kConcurrency, .name = "s"});
  EXPECT_EQ(PolicyMember(slots), R"("s";q=5;qu="concurrent-requests";w=1)");
  EXPECT_EQ(StateRest({3, 0, std::nullopt, std::nullopt}), "3");
  EXPECT_EQ(StateRest({3, 0, 7, std::nullopt}), "3;t=7");
  constexpr int64_t kMore = kMaxFieldInteger + 1;
  EXPECT_EQ(StateRest({kMore, 0, kMore, std::nullopt}), "999999999999999;t=999999999999999");
}

TEST(RateFieldsTest, AWaitIsTheTimeUntilMoreIsLeft) {
  const auto clock = std::make_shared<ManualClock>(0);
  const auto limiter = *Limiter::Create({MakeLimit(1, 60 * kSecond)}, MakeStore(), clock);
  const Decision first = limiter->Hit("key");
  EXPECT_EQ(WaitSeconds(first), std::nullopt);
  EXPECT_EQ(RateFieldValuesOf(first, 0, 0).more_s, 60);
  clock->AdvanceNs(10 * kSecond);
  const Decision d = limiter->Hit("key");
  EXPECT_EQ(WaitSeconds(d), 50);
  EXPECT_EQ(WaitSeconds(d, 0.5), 51);
  const RateFieldValues values = RateFieldValuesOf(d, 10 * kSecond, 20 * kSecond, 0.5);
  EXPECT_EQ(values.remaining, 0);
  EXPECT_EQ(values.reset_s, 60);
  EXPECT_EQ(values.more_s, 51);
  EXPECT_EQ(values.wait_s, 51);
  EXPECT_EQ(RateFieldValuesOf(d, 10 * kSecond, 99 * kSecond).reset_s, 99);
}

TEST(RateFieldsTest, OneWriterWritesTheFieldsOfASet) {
  const Limit limit = MakeLimit({.count = 5, .period_ns = 60 * kSecond, .name = "a"});
  const RateFieldValues refused{0, 70, 12, 12};
  const auto written = [&](RateFieldSet set, const RateFieldValues& values) {
    std::string text;
    WriteRateFields(RateFieldTexts(limit, set), values, set,
                    [&](RateField field, std::string_view value) {
                      text += std::string(LowerNameOf(field)) + ": " + std::string(value) + "\n";
                    });
    return text;
  };
  EXPECT_EQ(written(kXRateLimitFields | SetOf(RateField::kRetryAfter), refused),
            "x-ratelimit-limit: 5\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 70\n"
            "retry-after: 12\n");
  EXPECT_EQ(written(kIetfFields | SetOf(RateField::kRetryAfter), refused),
            "ratelimit-policy: \"a\";q=5;w=60\nratelimit: \"a\";r=0;t=12\nretry-after: 12\n");
  EXPECT_EQ(written(kXRateLimitFields | SetOf(RateField::kRetryAfter), {4, 70, 12, std::nullopt}),
            "x-ratelimit-limit: 5\nx-ratelimit-remaining: 4\nx-ratelimit-reset: 70\n");
  EXPECT_EQ(written(0, refused), "");
}

TEST(RateFieldsTest, ADurationIsInMillisecondsRoundedUp) {
  const auto written = [](int64_t ns) {
    char room[kMaxDuration];
    return std::string(room, WriteDuration(ns, room));
  };
  EXPECT_EQ(written(0), "0s");
  EXPECT_EQ(written(1), "1ms");
  EXPECT_EQ(written(999'000'000), "999ms");
  EXPECT_EQ(written(999'000'001), "1s");
  EXPECT_EQ(written(8'640'000'000), "8.64s");
  EXPECT_EQ(written(60 * kSecond), "1m0s");
  EXPECT_EQ(written(86 * kSecond + 5'000'000), "1m26.005s");
  EXPECT_EQ(written(3600 * kSecond), "1h0m0s");
  EXPECT_EQ(written(std::numeric_limits<int64_t>::max()), "2562047h47m16.855s");
}

TEST(RateFieldsTest, ALimitHasTheFieldsOfWhatItCounts) {
  const Limit limit = MakeLimit({.count = 5, .period_ns = kSecond, .name = "all Tokens"});
  const RateFieldValues values{3, 0, std::nullopt, std::nullopt, 360 * kSecond};
  std::string written;
  const auto put = [&](RateField field, std::string_view value) {
    written += std::string(LowerNameOf(field)) + "=" + std::string(value) + " ";
  };
  WriteRateFields(RateFieldTexts(limit, kOpenAiFields), values, kOpenAiFields, put);
  EXPECT_EQ(written,
            "x-ratelimit-limit-tokens=5 x-ratelimit-remaining-tokens=3 "
            "x-ratelimit-reset-tokens=6m0s ");
}

TEST(RateFieldsTest, APolicyIsAddedOnce) {
  EXPECT_EQ(WithPolicies("", R"("a";q=1;w=1)"), R"("a";q=1;w=1)");
  EXPECT_EQ(WithPolicies(R"("a";q=9;w=9)", R"("a";q=1;w=1, "b, c";q=2;w=2)"),
            R"("a";q=9;w=9, "b, c";q=2;w=2)");
  EXPECT_EQ(WithPolicies(R"("x \"a\";q=1")", R"("a";q=1;w=1)"), R"("x \"a\";q=1", "a";q=1;w=1)");
}

TEST(RateFieldsTest, OfTwoStatesOfOneNameTheSmallerIsKept) {
  const RateFieldValues one{1, 0, 30, std::nullopt};
  const auto with = [&](std::string_view list) { return WithState(list, R"("a";r=)", one); };
  EXPECT_EQ(with(""), R"("a";r=1;t=30)");
  EXPECT_EQ(with(R"("b";r=1)"), R"("b";r=1, "a";r=1;t=30)");
  EXPECT_EQ(with(R"("a";r=0;t=9, "b";r=1)"), R"("a";r=0;t=9, "b";r=1)");
  EXPECT_EQ(with(R"("b";r=1 ,"a";r=7;t=9,"c";r=1)"), R"("b";r=1 ,"a";r=1;t=30,"c";r=1)");
  EXPECT_EQ(with(R"("x, \"a\";r=1";r=2)"), R"("x, \"a\";r=1";r=2, "a";r=1;t=30)");
}

}  // namespace
}  // namespace tidegate::testing
