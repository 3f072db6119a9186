// The limit grammar: the grammar of the Python package `limits`, with short units, units below a
// second, decimal multiples and a burst.
//
//   limits := limit ((';' | ',' | '|') limit)*
//   limit  := COUNT ('/' | 'per') [NUMBER] UNIT ['burst' COUNT], or a quota: quotas/parse.h
#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "base/time_units.h"
#include "quotas/parse.h"
#include "tidegate/limit.h"

namespace tidegate {
namespace {

struct Unit {
  int64_t ns;
  Calendar calendar;
  std::array<std::string_view, 5> names;  // each also with a plural s
};
constexpr Unit kUnits[] = {
    {1, Calendar::kNone, {"ns", "nanosecond"}},
    {1'000, Calendar::kNone, {"us", "microsecond"}},
    {1'000'000, Calendar::kNone, {"ms", "millisecond"}},
    {kSecondNs, Calendar::kNone, {"s", "second", "sec"}},
    {60 * kSecondNs, Calendar::kNone, {"m", "minute", "min"}},
    {3'600 * kSecondNs, Calendar::kNone, {"h", "hour", "hr"}},
    {86'400 * kSecondNs, Calendar::kNone, {"d", "day"}},
    {604'800 * kSecondNs, Calendar::kNone, {"w", "week", "wk"}},
    {int64_t{30} * 86'400 * kSecondNs, Calendar::kMonth, {"month"}},
    {int64_t{365} * 86'400 * kSecondNs, Calendar::kYear, {"year", "y", "yr"}},
};

// A cursor over one limit. Every reader skips blanks first and consumes nothing
// when it fails.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  bool AtEnd() {
    SkipBlanks();
    return rest_.empty();
  }

  bool Symbol(char c) {
    SkipBlanks();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  // Reads a run of letters, in lower case; empty if there is none.
  std::string Word() { return AsWritten(/*lower=*/true); }

  // The next run of letters as it is written, without consuming it.
  std::string NextWord() const { return Reader(rest_).AsWritten(/*lower=*/false); }

  std::string AsWritten(bool lower) {
    SkipBlanks();
    std::string word;
    while (!rest_.empty() && IsLetter(rest_.front())) {
      word += lower ? static_cast<char>(rest_.front() | 0x20) : rest_.front();
      rest_.remove_prefix(1);
    }
    return word;
  }

  // Reads the word `per`, even if the unit follows without a blank: "100perminute".
  bool Per() {
    SkipBlanks();
    constexpr std::string_view kPer = "per";
    for (size_t i = 0; i < kPer.size(); ++i) {
      if (i == rest_.size() || (rest_[i] | 0x20) != kPer[i]) return false;
    }
    rest_.remove_prefix(kPer.size());
    return true;
  }

  // Reads a run of digits. Values beyond int64 saturate, and the bounds of Limit then refuse them.
  std::optional<int64_t> Count() {
    SkipBlanks();
    if (rest_.empty() || !IsDigit(rest_.front())) return std::nullopt;
    absl::uint128 value = 0;
    while (!rest_.empty() && IsDigit(rest_.front())) {
      if (value < (absl::uint128(1) << 100)) {
        value = value * 10 + static_cast<uint64_t>(rest_.front() - '0');
      }
      rest_.remove_prefix(1);
    }
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    return value > absl::uint128(kMost) ? kMost : static_cast<int64_t>(value);
  }

  // Reads digits with an optional fraction and multiplies them by `unit_ns`, exactly: nullopt
  // unless the product is a whole number of nanoseconds.
  std::optional<int64_t> Duration(int64_t whole, int64_t unit_ns) {
    absl::uint128 scaled = absl::uint128(static_cast<uint64_t>(whole));
    absl::uint128 scale = 1;
    if (!rest_.empty() && rest_.front() == '.') {
      rest_.remove_prefix(1);
      int digits = 0;
      for (; !rest_.empty() && IsDigit(rest_.front()); ++digits) {
        if (digits >= 18) return std::nullopt;
        scaled = scaled * 10 + static_cast<uint64_t>(rest_.front() - '0');
        scale *= 10;
        rest_.remove_prefix(1);
      }
      if (digits == 0) return std::nullopt;
    }
    pending_ = {scaled, scale};
    return unit_ns == 0 ? std::optional<int64_t>(0) : Scale(unit_ns);
  }

  std::optional<int64_t> Scale(int64_t unit_ns) const {
    const auto [value, scale] = pending_;
    if (value > (absl::uint128(1) << 64) * 1'000'000) return std::nullopt;
    // A product beyond 128 bits needs an absurd value.
    if (value != 0 && absl::Uint128Max() / value < absl::uint128(static_cast<uint64_t>(unit_ns))) {
      return std::nullopt;
    }
    const absl::uint128 ns = value * static_cast<uint64_t>(unit_ns);
    if (ns % scale != 0) return std::nullopt;
    if (ns / scale > absl::uint128(Limit::kMaxPeriodNs)) return std::nullopt;
    return static_cast<int64_t>(ns / scale);
  }

 private:
  static bool IsDigit(char c) { return c >= '0' && c <= '9'; }
  static bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
  void SkipBlanks() {
    const size_t blanks = rest_.find_first_not_of(" \t\n\r\f\v");
    rest_.remove_prefix(std::min(blanks, rest_.size()));
  }

  std::string_view rest_;
  std::pair<absl::uint128, absl::uint128> pending_ = {1, 1};
};

const Unit* FindUnit(std::string_view word) {
  for (const Unit& unit : kUnits) {
    for (std::string_view name : unit.names) {
      if (name.empty()) continue;
      if (word == name) return &unit;
      if (name.size() > 1 && word.size() == name.size() + 1 && word.back() == 's' &&
          word.substr(0, name.size()) == name) {
        return &unit;
      }
    }
  }
  return nullptr;
}

absl::Status Unreadable(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot read the limit ", Quote(text), ": ", absl::string_view(why.data(), why.size()),
      "; expected COUNT/[N] UNIT [burst COUNT], such as '100/minute', "
      "'5 per 2 seconds' or '10/second burst 40'; units are ns, us, ms, s, m, "
      "h, d, w, month and year"));
}

bool HasCommaInNumber(std::string_view text) {
  const auto is_digit = [&](size_t i) { return text[i] >= '0' && text[i] <= '9'; };
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    if (text[i] == ',' && is_digit(i - 1) && is_digit(i + 1)) return true;
  }
  return false;
}

// The number in the text may be too large for an int64, and so for Limit's own message.
absl::Status TooMany(std::string_view text, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot read the limit ", Quote(text), ": its ", absl::string_view(what.data(), what.size()),
      " is beyond ", Limit::kMaxCount, "; expected 1 to ", Limit::kMaxCount));
}

}  // namespace

absl::StatusOr<Limit> Limit::Parse(std::string_view text, const LimitSpec& defaults) {
  if (IsQuota(text)) return ParseQuota(text, defaults);
  LimitSpec spec = defaults;
  Reader in(text);
  if (in.AtEnd()) return Unreadable(text, "it is empty");
  const std::optional<int64_t> count = in.Count();
  if (!count) return Unreadable(text, "it does not begin with a count");
  if (*count > kMaxCount) return TooMany(text, "count");
  spec.count = *count;
  if (!in.Symbol('/') && !in.Per()) {
    return Unreadable(text,
                      in.Word() == "at"
                          ? "only a Limiter reads 'at once'; elsewhere a concurrency limit is "
                            "its count and its lease, '5/minute', with the algorithm "
                            "concurrency"
                          : "the count is not followed by '/' or 'per'");
  }
  bool multiple = false;
  if (const std::optional<int64_t> whole = in.Count()) {
    multiple = true;
    if (!in.Duration(*whole, 0)) {
      return Unreadable(text, "the multiple of the unit is not a number");
    }
  }
  const std::string as_written = in.NextWord();
  const std::string word = in.Word();
  const Unit* unit = FindUnit(word);
  if (as_written == "M" || word == "mo" || word == "mon") {
    return Unreadable(text, absl::StrCat("the unit ", as_written,
                                         " could be minutes or months, which are written m or "
                                         "minute, and month"));
  }
  if (unit == nullptr) {
    return Unreadable(text, word.empty() ? "the unit is missing" : "the unit is unknown");
  }
  spec.period_ns = unit->ns;
  spec.calendar = unit->calendar;
  spec.calendar_units = 1;
  if (multiple) {
    const std::optional<int64_t> period = in.Scale(unit->ns);
    if (!period || *period == 0) {
      return Unreadable(text,
                        "the period is zero, beyond 100 years or not a whole "
                        "number of nanoseconds");
    }
    spec.period_ns = *period;
    if (unit->calendar != Calendar::kNone) {
      if (*period % unit->ns != 0) {
        return Unreadable(text, "months and years come in whole numbers");
      }
      spec.calendar_units = *period / unit->ns;
    }
  }
  if (!in.AtEnd()) {
    const std::optional<int64_t> burst = in.Word() == "burst" ? in.Count() : std::nullopt;
    if (!burst || !in.AtEnd()) {
      return Unreadable(text, "what follows the unit is not 'burst COUNT'");
    }
    if (*burst > kMaxCount) return TooMany(text, "burst");
    if (defaults.burst && *defaults.burst != *burst) {
      return Unreadable(text, absl::StrCat("it names a burst, and another, ", *defaults.burst,
                                           ", was given beside it"));
    }
    spec.burst = burst;
  }
  return Create(std::move(spec));
}

absl::StatusOr<std::vector<Limit>> Limit::ParseMany(std::string_view text,
                                                    const LimitSpec& defaults) {
  std::vector<Limit> limits;
  for (std::string_view rest = text;;) {
    const size_t end = rest.find_first_of(";,|");
    const std::string_view part = rest.substr(0, end);
    if (part.size() < text.size() && Reader(part).AtEnd()) {
      return Unreadable(text, "one of its limits is empty");
    }
    absl::StatusOr<Limit> limit = Parse(part, defaults);
    if (!limit.ok()) {
      return HasCommaInNumber(text)
                 ? Unreadable(text, "a number has a comma in it, which separates limits")
                 : limit.status();
    }
    limits.push_back(*std::move(limit));
    if (end == std::string_view::npos) return limits;
    rest.remove_prefix(end + 1);
  }
}

}  // namespace tidegate
