#include "logs/record.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "logs/numbers.h"

namespace tidegate::logs {
namespace {

constexpr const char* kExpectedStatus = "a status such as 200";
constexpr const char* kExpectedBytes = "a number of bytes";
constexpr const char* kExpectedDuration = "a duration such as 0.123";

int ScaleOf(Kind kind) {
  switch (kind) {
    case Kind::kSeconds:
    case Kind::kTimeTaken:
      return 9;
    case Kind::kMilliseconds:
      return 6;
    case Kind::kMicroseconds:
      return 3;
    default:
      return 0;
  }
}

bool IsMethod(std::string_view text) {
  if (text.empty() || text.size() > 32) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= 'A' && c <= 'Z') || c == '-' || c == '_'; });
}

// Removes the port of an address: 192.0.2.1:80, [2001:db8::1]:80. 2001:db8::1 has none.
std::string_view WithoutPort(std::string_view text) {
  if (text.size() > 2 && text[0] == '[') {
    const size_t end = text.find(']');
    return end == std::string_view::npos ? text : text.substr(1, end - 1);
  }
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || text.find(':') != colon) return text;
  return text.substr(0, colon);
}

// Removes the port of a text that always ends in one: 2001:db8::1:80 is 2001:db8::1.
std::string_view WithoutLastPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  int64_t port = 0;
  if (colon == std::string_view::npos || text[0] == '[') return WithoutPort(text);
  return ReadDigits(text.substr(colon + 1), &port) ? text.substr(0, colon) : text;
}

std::string Decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high >= 0 && low >= 0) {
        decoded.push_back(static_cast<char>(high * 16 + low));
        i += 2;
        continue;
      }
    }
    decoded.push_back(text[i]);
  }
  return decoded;
}

}  // namespace

Record::Record(Schema schema, TimeUnit unit)
    : keys(schema.keys.size()),
      schema_(std::move(schema)),
      times_(unit),
      scratch_(schema_.keys.size()) {}

void Record::Clear() {
  duration_ns = -1;
  bytes = 0;
  status = 0;
  std::fill(keys.begin(), keys.end(), kMissing);
  date_ = {};
  clock_ = {};
  has_time_ = false;
  has_end_ = false;
}

bool Record::Set(const Target& target, std::string_view text) {
  switch (target.kind) {
    case Kind::kSkip:
      return true;
    case Kind::kTime:
      has_time_ = true;
      return SetTime(times_.Read(text, &time_ns), text);
    case Kind::kEndTime:
      has_end_ = true;
      return SetTime(times_.Read(text, &end_ns_), text);
    case Kind::kDate:
      date_ = text;
      return true;
    case Kind::kClock:
      clock_ = text;
      return true;
    case Kind::kKey:
      return SetKey(target.column, text);
    case Kind::kWord:
      if (text.find(' ') != std::string_view::npos) return Fail("a text without blanks", text);
      return SetKey(target.column, text);
    case Kind::kEncodedKey:
      Scratch(target.column) = Decoded(text);
      return SetKey(target.column, Scratch(target.column));
    case Kind::kLastAddress: {
      text = text.substr(text.rfind(',') + 1);
      if (!text.empty() && text[0] == ' ') text.remove_prefix(1);
      return SetKey(target.column, WithoutPort(text));
    }
    case Kind::kAddress:
      return SetKey(target.column, WithoutPort(text));
    case Kind::kAddressPort:
      return SetKey(target.column, WithoutLastPort(text));
    case Kind::kRequest:
      return SetRequest(text);
    case Kind::kPath:
      return SetUrl(target.column, -1, text);
    case Kind::kStatus: {
      int64_t value = 0;
      if (text == kMissing || text.empty()) return true;
      if (text.size() > 3 || !ReadDigits(text, &value)) return Fail(kExpectedStatus, text);
      status = static_cast<int32_t>(value);
      return true;
    }
    case Kind::kBytes:
      if (text == kMissing || text.empty()) return true;
      return ReadDigits(text, &bytes) || Fail(kExpectedBytes, text);
    case Kind::kSeconds:
    case Kind::kMilliseconds:
    case Kind::kMicroseconds:
    case Kind::kNanoseconds:
    case Kind::kTimeTaken:
      return SetDuration(text, ScaleOf(target.kind));
  }
  return true;
}

bool Record::Set(const Target& target, int64_t number) {
  if (target.kind == Kind::kTime || target.kind == Kind::kEndTime) {
    const bool is_start = target.kind == Kind::kTime;
    (is_start ? has_time_ : has_end_) = true;
    const char* expected = times_.ReadNumber(number, is_start ? &time_ns : &end_ns_);
    if (expected == nullptr) return true;
    number_ = std::to_string(number);
    return Fail(expected, number_);
  }
  std::string& text = target.column >= 0 ? Scratch(target.column) : number_;
  text = std::to_string(number);
  return Set(target, std::string_view(text));
}

bool Record::Set(const Target& target, double number) {
  number_ = std::to_string(number);
  switch (target.kind) {
    case Kind::kTime:
    case Kind::kEndTime: {
      const bool is_start = target.kind == Kind::kTime;
      (is_start ? has_time_ : has_end_) = true;
      return SetTime(times_.ReadNumber(number, is_start ? &time_ns : &end_ns_), number_);
    }
    case Kind::kSeconds:
    case Kind::kMilliseconds:
    case Kind::kMicroseconds:
    case Kind::kNanoseconds:
    case Kind::kTimeTaken: {
      const double ns = number * std::pow(10.0, ScaleOf(target.kind));
      if (!(ns >= 0 && ns < 9e18)) return Fail(kExpectedDuration, number_);
      duration_ns = static_cast<int64_t>(std::llround(ns));
      return true;
    }
    case Kind::kStatus:
    case Kind::kBytes:
      if (number == std::floor(number) && std::abs(number) < 1e15) {
        return Set(target, static_cast<int64_t>(number));
      }
      return Fail(target.kind == Kind::kStatus ? kExpectedStatus : kExpectedBytes, number_);
    default:
      if (target.column < 0) return Set(target, std::string_view(number_));
      Scratch(target.column) = number_;
      return Set(target, std::string_view(Scratch(target.column)));
  }
}

bool Record::Complete() {
  if (!date_.empty() && !clock_.empty()) {
    number_.assign(date_).append("T").append(clock_).append("Z");
    has_time_ = true;
    if (!SetTime(times_.Read(number_, &time_ns), number_)) return false;
  }
  if (!has_time_) return Fail("a field with the time", "no time");
  // The clocks of two machines may differ; then the duration counts as 0.
  if (has_end_) duration_ns = std::max<int64_t>(end_ns_ - time_ns, 0);
  return true;
}

bool Record::SetTime(const char* expected, std::string_view text) {
  return expected == nullptr || Fail(expected, text);
}

bool Record::SetKey(int column, std::string_view text) {
  keys[static_cast<size_t>(column)] = text.empty() ? kMissing : text;
  return true;
}

// Text that is no request, such as a TLS handshake at a port without TLS, has neither method nor
// path.
bool Record::SetRequest(std::string_view text) {
  const size_t blank = text.find(' ');
  if (blank == std::string_view::npos || !IsMethod(text.substr(0, blank))) return true;
  if (schema_.method >= 0) SetKey(schema_.method, text.substr(0, blank));
  std::string_view url = text.substr(blank + 1);
  const size_t last = url.rfind(' ');
  if (last != std::string_view::npos &&
      (url.substr(last + 1, 5) == "HTTP/" || url.substr(last + 1) == kMissing)) {
    url = url.substr(0, last);
  }
  return SetUrl(schema_.path, schema_.host, url);
}

bool Record::SetUrl(int path_column, int host_column, std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme != std::string_view::npos && url.find_first_of("/?#") == scheme + 1) {
    const size_t authority = scheme + 3;
    const size_t end = std::min(url.find_first_of("/?#", authority), url.size());
    if (host_column >= 0) SetKey(host_column, WithoutPort(url.substr(authority, end - authority)));
    url = end < url.size() && url[end] == '/' ? url.substr(end) : std::string_view("/");
  }
  if (!schema_.keep_query) url = url.substr(0, url.find_first_of("?#"));
  if (path_column >= 0) SetKey(path_column, url);
  return true;
}

bool Record::SetDuration(std::string_view text, int scale) {
  if (text == kMissing || text.empty() || text == "-1") return true;
  return ReadDecimal(text, scale, &duration_ns) || Fail(kExpectedDuration, text);
}

}  // namespace tidegate::logs
