#include "tidegate/limit.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "base/time_units.h"
#include "tidegate/quota.h"

namespace tidegate {
namespace {

constexpr int64_t kMostSpan = 100;

struct AlgorithmEntry {
  std::string_view name;
  Algorithm algorithm;
};
constexpr AlgorithmEntry kAlgorithms[] = {
    {"token-bucket", Algorithm::kTokenBucket},     {"gcra", Algorithm::kTokenBucket},
    {"leaky-bucket", Algorithm::kLeakyBucket},     {"fixed-window", Algorithm::kFixedWindow},
    {"sliding-window", Algorithm::kSlidingWindow}, {"sliding-log", Algorithm::kSlidingLog},
    {"concurrency", Algorithm::kConcurrency},      {"quota", Algorithm::kQuota},
};

std::string Canonical(const LimitSpec& spec, int64_t burst) {
  if (spec.quota != nullptr) return spec.quota->TextOf(spec.count);
  struct Unit {
    int64_t ns;
    std::string_view one;
    std::string_view many;
  };
  static constexpr Unit kUnits[] = {
      {7 * kDayNs, "week", "weeks"},
      {kDayNs, "day", "days"},
      {3600 * kSecondNs, "hour", "hours"},
      {60 * kSecondNs, "minute", "minutes"},
      {kSecondNs, "second", "seconds"},
      {1'000'000, "ms", "ms"},
      {1'000, "us", "us"},
      {1, "ns", "ns"},
  };
  int64_t units = spec.calendar_units;
  std::string_view one = spec.calendar == Calendar::kYear ? "year" : "month";
  std::string_view many = spec.calendar == Calendar::kYear ? "years" : "months";
  if (spec.calendar == Calendar::kNone) {
    const Unit* unit = std::find_if(std::begin(kUnits), std::end(kUnits),
                                    [&](const Unit& u) { return spec.period_ns % u.ns == 0; });
    units = spec.period_ns / unit->ns;
    one = unit->one;
    many = unit->many;
  }
  std::string text = absl::StrCat(spec.count, "/");
  if (units == 1) {
    absl::StrAppend(&text, Absl(one));
  } else {
    absl::StrAppend(&text, units, " ", Absl(many));
  }
  if (IsBucket(spec.algorithm) && burst != spec.count) {
    absl::StrAppend(&text, " burst ", burst);
  }
  return text;
}

absl::Status Bad(std::string_view what, int64_t given, std::string_view accepted) {
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(what), " is ", given, "; expected ", Absl(accepted)));
}

absl::Status CheckCount(const LimitSpec& spec) {
  int64_t most = Limit::kMaxCount;
  if (spec.algorithm == Algorithm::kSlidingWindow) most = Limit::kMaxWindowCount;
  if (IsLog(spec.algorithm)) most = Limit::kMaxLogCount;
  if (spec.algorithm == Algorithm::kQuota) most = Limit::kMaxQuotaCount;
  const bool may_block = spec.algorithm != Algorithm::kConcurrency;
  if (spec.count >= (may_block ? 0 : 1) && spec.count <= most) return absl::OkStatus();
  return Bad("the count of a limit", spec.count,
             absl::StrCat("1 to ", most, " for ", Absl(AlgorithmName(spec.algorithm)),
                          may_block ? ", or 0, which lets nothing through" : ""));
}

// The most units beyond the capacity that a state of the limit can hold.
int64_t MostDebtInState(const Limit& limit) {
  const int64_t count = limit.count();
  if (count == 0) return 0;
  const absl::uint128 units = static_cast<uint64_t>(count);
  const auto narrow = [&](absl::uint128 all) {
    const absl::uint128 capacity = static_cast<uint64_t>(limit.capacity());
    if (all <= capacity) return int64_t{0};
    const absl::uint128 most = static_cast<uint64_t>(Limit::kMaxCount);
    return static_cast<int64_t>(absl::Uint128Low64(std::min(all - capacity, most)));
  };
  // The debt is paid within this time.
  const absl::uint128 longest = static_cast<uint64_t>(Limit::kMaxPeriodNs);
  switch (limit.algorithm()) {
    case Algorithm::kConcurrency:
      return 0;
    case Algorithm::kQuota:
      return Limit::kMaxQuotaCount;
    case Algorithm::kSlidingWindow:
      if (count >= kSlidingDebtMark) return 0;
      break;
    case Algorithm::kTokenBucket:
    case Algorithm::kLeakyBucket:
      if (limit.keeps_count()) {
        // Each period is one more span_parts(), which must fit 32 bits.
        const int64_t spans = std::min(Limit::kMaxKeptCount / limit.denominator(), kMostSpan);
        return narrow(std::min(units * static_cast<uint64_t>(spans),
                               longest * units / static_cast<uint64_t>(limit.period_ns())));
      }
      break;
    default:
      break;
  }
  return narrow(longest / static_cast<uint64_t>(limit.period_ns()) * units);
}

// Ten times the capacity unless the spec has another bound.
int64_t MaxDebt(const Limit& limit, const LimitSpec& spec) {
  constexpr int64_t kTimes = 10;
  const int64_t most = std::min(limit.capacity(), Limit::kMaxCount / kTimes) * kTimes;
  return std::min(spec.max_debt.value_or(most), MostDebtInState(limit));
}

// Whether a cost beyond the capacity can owe the rest.
absl::Status CheckOversize(const Limit& limit) {
  if (!limit.spec().oversize_owes) return absl::OkStatus();
  if (limit.algorithm() == Algorithm::kConcurrency || limit.algorithm() == Algorithm::kQuota) {
    return absl::InvalidArgumentError(
        absl::StrCat("oversize is 'debt' for ", Absl(AlgorithmName(limit.algorithm())),
                     limit.algorithm() == Algorithm::kQuota
                         ? ", whose periods pay no debt of the ones before"
                         : ", whose places are given back and not paid off by time",
                     "; expected 'refuse', or an algorithm of rates such as token-bucket"));
  }
  if (limit.max_debt() == 0 && limit.count() > 0) {
    return absl::InvalidArgumentError(
        "oversize is 'debt' for a limit whose keys may owe nothing; expected a max_debt of 1 or "
        "more");
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view AlgorithmName(Algorithm algorithm) {
  for (const AlgorithmEntry& e : kAlgorithms) {
    if (e.algorithm == algorithm) return e.name;
  }
  return "unknown";
}

absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view name) {
  std::string accepted;
  for (const AlgorithmEntry& e : kAlgorithms) {
    if (e.name == name) return e.algorithm;
    absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", Absl(e.name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown algorithm ", Quote(name), "; expected ", accepted));
}

absl::StatusOr<Limit> Limit::Create(LimitSpec spec) {
  if (absl::Status s = CheckCount(spec); !s.ok()) return s;
  if ((spec.quota != nullptr) != (spec.algorithm == Algorithm::kQuota)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the algorithm of a limit ", spec.quota == nullptr ? "without" : "with",
        " the terms of a quota is ", Absl(AlgorithmName(spec.algorithm)),
        "; expected quota for a quota such as 'quota 10000/month rollover 5000', and another "
        "algorithm for other limits"));
  }
  if (spec.quota != nullptr) spec.period_ns = spec.quota->nominal_period_ns();
  // A sliding window looks two periods ahead.
  const bool two = spec.algorithm == Algorithm::kSlidingWindow;
  const int64_t most_period_ns = two ? kMaxPeriodNs / 2 : kMaxPeriodNs;
  if (spec.period_ns < 1 || spec.period_ns > most_period_ns) {
    return Bad("the period of a limit in nanoseconds", spec.period_ns,
               absl::StrCat("1 to ", most_period_ns, two ? " (50 years)" : " (100 years)"));
  }
  const int64_t most_units = spec.calendar == Calendar::kYear ? 100 : 1200;
  if (spec.calendar_units < 1 || spec.calendar_units > most_units) {
    return Bad("the number of months or years of a limit", spec.calendar_units,
               absl::StrCat("1 to ", most_units));
  }
  if (spec.burst && !IsBucket(spec.algorithm)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a burst of ", *spec.burst, " was given for ", Absl(AlgorithmName(spec.algorithm)),
        "; expected none, since only token-bucket and leaky-bucket have a burst"));
  }
  Limit limit;
  limit.burst_ = spec.burst.value_or(spec.count);
  if (spec.count == 0) {
    if (limit.burst_ != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a burst of ", limit.burst_,
                       " was given for a count of 0, which lets nothing through; expected "
                       "a limit without a burst"));
    }
  } else if (limit.burst_ < 1 || limit.burst_ > kMaxCount) {
    return Bad("the burst of a limit", limit.burst_, absl::StrCat("1 to ", kMaxCount));
  }
  if (spec.carry_over == CarryOver::kShare && !IsBucket(spec.algorithm)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the share used cannot be carried over for ", Absl(AlgorithmName(spec.algorithm)),
        "; expected token-bucket or leaky-bucket, whose state is a share"));
  }
  if (spec.carry_over == CarryOver::kShare && limit.burst_ != spec.count) {
    return absl::InvalidArgumentError(
        absl::StrCat("the share used cannot be carried over with a burst of ", limit.burst_,
                     " beside a count of ", spec.count, "; expected a limit without a burst"));
  }
  if (spec.max_debt.has_value() && *spec.max_debt < 0) {
    return Bad("the max_debt of a limit", *spec.max_debt, "0 and more");
  }
  // Only fixed windows follow the calendar's months and years; for other algorithms a month is 30
  // days and a year 365.
  if (spec.algorithm != Algorithm::kFixedWindow) {
    spec.calendar = Calendar::kNone;
    spec.calendar_units = 1;
  }
  // Every cost exceeds a count of 0, and is refused before an interval is needed.
  const int64_t rate = std::max<int64_t>(1, spec.count);
  const int64_t divisor = std::gcd(rate, spec.period_ns);
  limit.numerator_ = spec.period_ns / divisor;
  limit.denominator_ = rate / divisor;
  limit.step_ns_ = limit.numerator_ / limit.denominator_;
  limit.step_fraction_ = limit.numerator_ % limit.denominator_;
  if (IsBucket(spec.algorithm)) {
    const absl::uint128 depth = absl::uint128(limit.burst_) * limit.numerator_;
    if (depth / limit.denominator_ > absl::uint128(kMaxPeriodNs)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a burst of ", limit.burst_, " at ", Canonical(spec, spec.count),
                       " takes more than 100 years to refill; expected a smaller burst "
                       "or a higher rate"));
    }
    limit.depth_ns_ = static_cast<int64_t>(depth / limit.denominator_);
    limit.depth_fraction_ = static_cast<int64_t>(depth % limit.denominator_);
  }
  limit.text_ = Canonical(spec, limit.burst_);
  if (!spec.id.empty()) {
    // The state of a bucket is a time. Units can be read from it only with the count that wrote it;
    // without, it gives a share of the burst.
    limit.keeps_count_ = IsBucket(spec.algorithm) && spec.carry_over == CarryOver::kUnits;
    if (limit.keeps_count_ && spec.count > kMaxKeptCount) {
      return Bad("the count of a limit with an id", spec.count,
                 absl::StrCat("0 to ", kMaxKeptCount));
    }
    if (limit.keeps_count_ && spec.count > 0) {
      // The burst spans this many periods. They and a fraction must fit 32 bits.
      const int64_t span = std::max<int64_t>(0, limit.burst_ - 1) / spec.count;
      const int64_t most = kMaxKeptCount / limit.denominator_ - 1;
      limit.span_parts_ = std::min({span, most, kMostSpan - 1}) * limit.denominator_;
    }
    limit.identity_ = absl::StrCat("id ", Absl(spec.id), " per ", spec.period_ns, " ",
                                   static_cast<int>(spec.calendar), " ", spec.calendar_units);
    if (spec.carry_over == CarryOver::kShare) absl::StrAppend(&limit.identity_, " as a share");
  }
  limit.most_plain_cost_ = limit.keeps_count_ || spec.shadow ? 0 : limit.burst_;
  // Former counts change nothing that identifies a quota.
  const std::string plain = spec.quota == nullptr ? limit.text_ : spec.quota->NameOf(spec.count);
  if (spec.id.empty()) limit.identity_ = plain;
  limit.name_ = spec.name.empty() ? plain : spec.name;
  limit.rule_ = spec.rule.empty() ? limit.name_ : spec.rule;
  limit.spec_ = std::move(spec);
  limit.max_debt_ = MaxDebt(limit, limit.spec_);
  if (absl::Status s = CheckOversize(limit); !s.ok()) return s;
  return limit;
}

Limit Limit::Unlimited(std::string rule) {
  LimitSpec spec;
  spec.count = kMaxCount;
  spec.period_ns = kSecondNs;
  return Create(std::move(spec))->WithRule(std::move(rule));
}

Limit Limit::WithFormer(std::vector<FormerCount> former) const {
  QuotaSpec terms = quota()->spec();
  terms.former = std::move(former);
  LimitSpec spec = spec_;
  spec.quota = *QuotaTerms::Create(std::move(terms));
  return *Create(std::move(spec));
}

Limit Limit::WithRule(std::string rule) const {
  Limit limit = *this;
  limit.spec_.rule = rule;
  limit.rule_ = std::move(rule);
  return limit;
}

}  // namespace tidegate
