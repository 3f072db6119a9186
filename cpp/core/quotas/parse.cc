#include "quotas/parse.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/text.h"
#include "tidegate/quota.h"

namespace tidegate {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

std::vector<std::string_view> WordsOf(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const size_t end = std::min(text.find_first_of(kBlanks), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

// Reads digits only. A value that is too large becomes the largest one, which is then refused with
// its bounds.
std::optional<int64_t> Number(std::string_view digits) {
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  int64_t value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return read.ec == std::errc() ? value : std::numeric_limits<int64_t>::max();
}

int Small(int64_t value) {
  return static_cast<int>(std::min<int64_t>(value, std::numeric_limits<int>::max()));
}

absl::Status Unreadable(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot read the quota ", Quote(text), ": ", Absl(why),
                   "; expected 'quota COUNT/day|week|month|quarter|year', followed by 'anchor "
                   "DAY' or 'anchor MONTH-DAY', 'in ZONE', 'rollover UNITS', 'rollover PERCENT%', "
                   "'for N periods', 'first full' or 'first prorated', 'was COUNT until INSTANT', "
                   "such as 'quota 10000/month in Europe/Berlin rollover 5000'"));
}

// Reads the value of one clause; returns false if it is invalid.
bool ReadAnchor(std::string_view value, QuotaSpec* spec) {
  const size_t dash = value.find('-');
  const auto day = Number(dash == std::string_view::npos ? value : value.substr(dash + 1));
  if (!day) return false;
  spec->anchor_day = Small(*day);
  if (dash == std::string_view::npos) return true;
  const auto month = Number(value.substr(0, dash));
  if (!month) return false;
  spec->anchor_month = Small(*month);
  return true;
}

bool ReadRollover(std::string_view value, QuotaSpec* spec) {
  const bool is_percent = !value.empty() && value.back() == '%';
  if (is_percent) value.remove_suffix(1);
  const auto number = Number(value);
  if (!number || (is_percent ? spec->rollover_percent.has_value() : spec->rollover.has_value())) {
    return false;
  }
  if (is_percent) {
    spec->rollover_percent = Small(*number);
  } else {
    spec->rollover = *number;
  }
  return true;
}

bool ReadPeriods(std::string_view value, QuotaSpec* spec) {
  const auto number = Number(value);
  if (number) spec->rollover_periods = Small(*number);
  return number.has_value();
}

bool ReadFirst(std::string_view value, QuotaSpec* spec) {
  spec->first_prorated = value == "prorated";
  return value == "prorated" || value == "full";
}

// Reads an instant such as 2026-04-16, 2026-04-16T12:00:00Z or 2026-04-16T14:00:00+02:00.
bool ReadFormer(std::string_view count, std::string_view until, QuotaSpec* spec) {
  const auto number = Number(count);
  const absl::string_view text(until.data(), until.size());
  absl::Time at;
  std::string error;
  if (!number || (!absl::ParseTime("%Y-%m-%d", text, &at, &error) &&
                  !absl::ParseTime(absl::RFC3339_sec, text, &at, &error))) {
    return false;
  }
  spec->former.push_back({*number, absl::ToUnixSeconds(at)});
  return true;
}

// Reads COUNT/UNIT.
bool ReadAmount(std::string_view word, LimitSpec* limit, QuotaSpec* spec) {
  static constexpr std::string_view kNames[] = {"day", "week", "month", "quarter", "year"};
  const size_t slash = word.find('/');
  if (slash == std::string_view::npos) return false;
  const auto count = Number(word.substr(0, slash));
  if (!count) return false;
  limit->count = *count;
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (word.substr(slash + 1) != kNames[i]) continue;
    spec->period = static_cast<QuotaPeriod>(i);
    return true;
  }
  return false;
}

}  // namespace

bool HasQuota(const std::vector<Limit>& limits) {
  return std::any_of(limits.begin(), limits.end(),
                     [](const Limit& limit) { return limit.quota() != nullptr; });
}

bool IsQuota(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return text.substr(begin, 5) == "quota";
}

absl::StatusOr<Limit> ParseQuota(std::string_view text, const LimitSpec& defaults) {
  const std::vector<std::string_view> words = WordsOf(text);
  LimitSpec limit = defaults;
  limit.algorithm = Algorithm::kQuota;
  QuotaSpec spec;
  if (words.size() < 2 || words[0] != "quota" || !ReadAmount(words[1], &limit, &spec)) {
    return Unreadable(text, "it does not begin with 'quota COUNT/UNIT'");
  }
  for (size_t i = 2; i < words.size(); i += 2) {
    const std::string_view clause = words[i];
    const std::string_view value = i + 1 < words.size() ? words[i + 1] : "";
    bool good = false;
    if (clause == "anchor") good = ReadAnchor(value, &spec);
    if (clause == "rollover") good = ReadRollover(value, &spec);
    if (clause == "first") good = ReadFirst(value, &spec);
    if (clause == "in") {
      spec.zone = std::string(value);
      good = !value.empty();
    }
    if (clause == "for") {
      const std::string_view unit = i + 2 < words.size() ? words[i + 2] : "";
      good = ReadPeriods(value, &spec) && (unit == "periods" || unit == "period") &&
             (spec.rollover || spec.rollover_percent);
      ++i;
    }
    if (clause == "was") {
      const bool has_until = i + 3 < words.size() && words[i + 2] == "until";
      good = has_until && ReadFormer(value, words[i + 3], &spec);
      i += 2;
    }
    if (!good) return Unreadable(text, absl::StrCat("its part ", Quote(clause), " is wrong"));
  }
  absl::StatusOr<std::shared_ptr<const QuotaTerms>> terms = QuotaTerms::Create(std::move(spec));
  if (!terms.ok()) return terms.status();
  limit.quota = *std::move(terms);
  return Limit::Create(std::move(limit));
}

}  // namespace tidegate
