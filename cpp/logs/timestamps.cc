#include "logs/timestamps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "logs/numbers.h"

namespace tidegate::logs {
namespace {

constexpr int64_t kNsPerSecond = 1'000'000'000;
// Seconds since the epoch have at least nine digits from 1973 on. A smaller number is not the time
// of a request, but perhaps the seconds since a start.
constexpr int64_t kLeast = 100'000'000;

constexpr const char* kExpectedTime =
    "a time such as 2026-01-31T13:05:00Z, 31/Jan/2026:13:05:00 +0100 or seconds since the epoch";
constexpr const char* kExpectedZone = "a time with a zone, as in the first line";
constexpr const char* kExpectedNoZone = "a time without a zone, as in the first line";
constexpr const char* kExpectedSame = "a number in the unit of the first line";
constexpr const char* kExpectedMagnitude =
    "a number of 1973 or later, in seconds, milliseconds, microseconds or nanoseconds since the "
    "epoch, or time_unit= to say what it is";

struct Civil {
  int64_t year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
};

// Howard Hinnant's days_from_civil, for years from 1970 on.
int64_t DaysOf(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const int64_t era = year / 400;
  const int64_t year_of_era = year - era * 400;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

int64_t DaysIn(int64_t year, int64_t month) {
  constexpr std::array<int64_t, 12> kDays{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return month == 2 && leap ? 29 : kDays[static_cast<size_t>(month - 1)];
}

// False for a date that no calendar has. A leap second is the first second of the next minute.
bool SecondsOf(const Civil& c, int64_t* seconds) {
  if (c.year < 1970 || c.year > 2261 || c.month < 1 || c.month > 12 || c.day < 1) return false;
  if (c.day > DaysIn(c.year, c.month)) return false;
  if (c.hour > 23 || c.minute > 59 || c.second > 60) return false;
  *seconds = DaysOf(c.year, c.month, c.day) * 86400 + c.hour * 3600 + c.minute * 60 + c.second;
  return true;
}

int64_t MonthNamed(std::string_view name) {
  constexpr std::string_view kMonths = "JanFebMarAprMayJunJulAugSepOctNovDec";
  for (size_t i = 0; i < 12; ++i) {
    if (kMonths.substr(i * 3, 3) == name) return static_cast<int64_t>(i) + 1;
  }
  return 0;
}

// Reads "Z", "+0100", "+01:00" or "+01".
bool ReadOffset(std::string_view text, int64_t* offset_s) {
  if (text == "Z" || text == "z" || text == "UTC") {
    *offset_s = 0;
    return true;
  }
  if (text.size() < 3 || (text[0] != '+' && text[0] != '-')) return false;
  int64_t hours = 0;
  int64_t minutes = 0;
  if (!ReadDigits(text.substr(1, 2), &hours)) return false;
  std::string_view rest = text.substr(3);
  if (!rest.empty() && rest[0] == ':') rest.remove_prefix(1);
  if (text.size() > 3 && (rest.size() != 2 || !ReadDigits(rest, &minutes))) return false;
  if (hours > 23 || minutes > 59) return false;
  *offset_s = (hours * 60 + minutes) * (text[0] == '-' ? -60 : 60);
  return true;
}

bool InRange(int64_t seconds) { return seconds >= 0 && seconds < INT64_MAX / kNsPerSecond; }

int ScaleOf(TimeUnit unit) {
  switch (unit) {
    case TimeUnit::kSeconds:
      return 9;
    case TimeUnit::kMilliseconds:
      return 6;
    case TimeUnit::kMicroseconds:
      return 3;
    default:
      return 0;
  }
}

}  // namespace

const char* TimeReader::NoteZone(bool given, int64_t offset_s) {
  const Zones found = given ? Zones::kSome : Zones::kNone;
  if (zones_ == Zones::kUnknown) zones_ = found;
  if (zones_ != found) return given ? kExpectedNoZone : kExpectedZone;
  if (given) {
    least_offset_ = std::min(least_offset_, offset_s);
    most_offset_ = std::max(most_offset_, offset_s);
  }
  return nullptr;
}

const char* TimeReader::FindUnit(int64_t whole) {
  TimeUnit found = TimeUnit::kUnknown;
  if (whole >= kLeast && whole < kLeast * 1000) found = TimeUnit::kSeconds;
  if (whole >= kLeast * 1000 && whole < kLeast * 1'000'000) found = TimeUnit::kMilliseconds;
  if (whole >= kLeast * 1'000'000 && whole < kLeast * kNsPerSecond) found = TimeUnit::kMicroseconds;
  if (whole >= kLeast * kNsPerSecond) found = TimeUnit::kNanoseconds;
  if (found == TimeUnit::kUnknown) return kExpectedMagnitude;
  unit_ = found;
  return nullptr;
}

const char* TimeReader::ReadNumber(int64_t number, int64_t* ns) {
  if (number < 0) return kExpectedMagnitude;
  if (unit_ == TimeUnit::kUnknown) {
    if (const char* expected = FindUnit(number)) return expected;
    guessed_ = true;
  } else if (guessed_) {
    const TimeUnit first = unit_;
    const char* expected = FindUnit(number);
    const bool same = expected == nullptr && unit_ == first;
    unit_ = first;
    if (!same) return kExpectedSame;
  }
  int64_t value = number;
  for (int i = ScaleOf(unit_); i > 0; --i) {
    if (__builtin_mul_overflow(value, int64_t{10}, &value)) return kExpectedMagnitude;
  }
  *ns = value;
  return nullptr;
}

const char* TimeReader::ReadNumber(double number, int64_t* ns) {
  if (!(number >= 0 && number < 9.2e18)) return kExpectedMagnitude;
  const double whole = std::floor(number);
  if (const char* expected = ReadNumber(static_cast<int64_t>(whole), ns)) return expected;
  if (number == whole) return nullptr;
  has_fractions_ = true;
  // A double of seconds since the epoch is exact to microseconds, but not to nanoseconds.
  const double unit_ns = std::pow(10.0, ScaleOf(unit_));
  const double rounded_to = unit_ == TimeUnit::kSeconds ? 1000.0 : 1.0;
  *ns += static_cast<int64_t>(std::round((number - whole) * unit_ns / rounded_to) * rounded_to);
  return nullptr;
}

const char* TimeReader::Read(std::string_view text, int64_t* ns) {
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') {
    text = text.substr(1, text.size() - 2);
  }
  if (text.size() < 5) return ReadText(text, ns);
  if (text[2] == '/' && text.size() == 26) return ReadCommon(text, ns);
  if (text[4] == '-' || text[4] == '/') return ReadIso(text, ns);
  return ReadText(text, ns);
}

const char* TimeReader::ReadText(std::string_view text, int64_t* ns) {
  const size_t point = text.find('.');
  int64_t whole = 0;
  // Today's times in nanoseconds have nineteen digits.
  if (text.size() == 19 && point == std::string_view::npos) {
    int64_t last = 0;
    if (!ReadDigits(text.substr(0, 18), &whole) || !ReadDigits(text.substr(18), &last) ||
        __builtin_mul_overflow(whole, int64_t{10}, &whole) ||
        __builtin_add_overflow(whole, last, &whole)) {
      return kExpectedTime;
    }
    return ReadNumber(whole, ns);
  }
  if (!ReadDigits(text.substr(0, point), &whole)) return kExpectedTime;
  if (const char* expected = ReadNumber(whole, ns)) return expected;
  if (point == std::string_view::npos) return nullptr;
  has_fractions_ = true;
  return ReadDecimal(text, ScaleOf(unit_), ns) ? nullptr : kExpectedTime;
}

// 01/Aug/1995:02:00:00 -0400
const char* TimeReader::ReadCommon(std::string_view text, int64_t* ns) {
  if (std::memcmp(text.data(), minute_, sizeof(minute_)) != 0 ||
      std::memcmp(text.data() + 20, zone_, sizeof(zone_)) != 0) {
    Civil c;
    int64_t offset_s = 0;
    int64_t seconds = 0;
    c.month = MonthNamed(text.substr(3, 3));
    if (text[6] != '/' || text[11] != ':' || text[14] != ':' || text[17] != ':' ||
        text[20] != ' ' || !ReadDigits(text.substr(0, 2), &c.day) ||
        !ReadDigits(text.substr(7, 4), &c.year) || !ReadDigits(text.substr(12, 2), &c.hour) ||
        !ReadDigits(text.substr(15, 2), &c.minute) || !ReadOffset(text.substr(21), &offset_s) ||
        !SecondsOf(c, &seconds)) {
      return kExpectedTime;
    }
    if (const char* expected = NoteZone(true, offset_s)) return expected;
    if (!InRange(seconds - offset_s)) return kExpectedTime;
    minute_s_ = seconds - offset_s;
    std::memcpy(minute_, text.data(), sizeof(minute_));
    std::memcpy(zone_, text.data() + 20, sizeof(zone_));
  }
  int64_t second = 0;
  if (!ReadDigits(text.substr(18, 2), &second) || second > 60) return kExpectedTime;
  *ns = (minute_s_ + second) * kNsPerSecond;
  return nullptr;
}

// 2026-01-31T13:05:00.123456+01:00; a blank may replace the T, a comma the point; a blank may stand
// before the zone; everything after the minutes may be missing.
const char* TimeReader::ReadIso(std::string_view text, int64_t* ns) {
  Civil c;
  const char dash = text[4];
  if (text.size() < 16 || text[7] != dash || text[13] != ':' ||
      (text[10] != 'T' && text[10] != 't' && text[10] != ' ') ||
      !ReadDigits(text.substr(0, 4), &c.year) || !ReadDigits(text.substr(5, 2), &c.month) ||
      !ReadDigits(text.substr(8, 2), &c.day) || !ReadDigits(text.substr(11, 2), &c.hour) ||
      !ReadDigits(text.substr(14, 2), &c.minute)) {
    return kExpectedTime;
  }
  std::string_view rest = text.substr(16);
  if (!rest.empty() && rest[0] == ':') {
    if (rest.size() < 3 || !ReadDigits(rest.substr(1, 2), &c.second)) return kExpectedTime;
    rest.remove_prefix(3);
  }
  int64_t fraction = 0;
  if (!rest.empty() && (rest[0] == '.' || rest[0] == ',')) {
    size_t end = 1;
    int64_t scale = kNsPerSecond;
    while (end < rest.size() && rest[end] >= '0' && rest[end] <= '9') {
      scale /= 10;  // 0 beyond nanoseconds
      fraction += (rest[end] - '0') * scale;
      ++end;
    }
    if (end == 1) return kExpectedTime;
    has_fractions_ = has_fractions_ || fraction != 0;
    rest.remove_prefix(end);
  }
  if (!rest.empty() && rest[0] == ' ') rest.remove_prefix(1);
  int64_t offset_s = 0;
  int64_t seconds = 0;
  if (!rest.empty() && !ReadOffset(rest, &offset_s)) return kExpectedTime;
  if (!SecondsOf(c, &seconds) || !InRange(seconds - offset_s)) return kExpectedTime;
  if (const char* expected = NoteZone(!rest.empty(), offset_s)) return expected;
  *ns = (seconds - offset_s) * kNsPerSecond + fraction;
  return nullptr;
}

}  // namespace tidegate::logs
