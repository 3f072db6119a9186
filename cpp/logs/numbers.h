// Numbers in the text of a log, read exactly or refused.
#ifndef TIDEGATE_SRC_LOGS_NUMBERS_H_
#define TIDEGATE_SRC_LOGS_NUMBERS_H_

#include <cstdint>
#include <string_view>

namespace tidegate::logs {

// The value of a hexadecimal digit, or -1.
inline int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Reads at most 18 digits; false if the text has more or anything else.
inline bool ReadDigits(std::string_view text, int64_t* value) {
  if (text.empty() || text.size() > 18) return false;
  int64_t sum = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    sum = sum * 10 + (c - '0');
  }
  *value = sum;
  return true;
}

// Reads a decimal such as 12.345, times 10^scale. Digits beyond the scale are cut off. False if the
// text is not such a number, or the value exceeds 64 bits.
inline bool ReadDecimal(std::string_view text, int scale, int64_t* value) {
  const size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  std::string_view fraction;
  if (point != std::string_view::npos) {
    fraction = text.substr(point + 1);
    if (fraction.empty()) return false;
  }
  int64_t sum = 0;
  if (!ReadDigits(whole, &sum)) return false;
  for (const char c : fraction) {
    if (c < '0' || c > '9') return false;
  }
  for (int i = 0; i < scale; ++i) {
    const int digit = static_cast<size_t>(i) < fraction.size() ? fraction[i] - '0' : 0;
    if (__builtin_mul_overflow(sum, int64_t{10}, &sum)) return false;
    if (__builtin_add_overflow(sum, int64_t{digit}, &sum)) return false;
  }
  *value = sum;
  return true;
}

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_NUMBERS_H_
