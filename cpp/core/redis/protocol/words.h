// A command in the Redis protocol.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_WORDS_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_WORDS_H_

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/time_units.h"

namespace tidegate::redis {

// A command that is being built: its encoded words, and their number.
class Words {
 public:
  Words() { text_.reserve(512); }

  void Add(std::string_view word) {
    AppendNumber('$', static_cast<int64_t>(word.size()));
    text_.append(word);
    text_.append("\r\n");
    ++count_;
  }
  void Add(int64_t number) {
    char digits[24];
    const auto end = std::to_chars(std::begin(digits), std::end(digits), number).ptr;
    Add({digits, static_cast<size_t>(end - digits)});
  }
  void AddInstant(int64_t ns) {
    Add(ns / kSecondNs);
    Add(ns % kSecondNs);
  }
  // The whole command in the Redis protocol: an array of strings with their sizes.
  std::string Finish() {
    std::string command;
    command.reserve(text_.size() + 8);
    text_.swap(command);
    AppendNumber('*', count_);
    text_.append(command);
    return std::move(text_);
  }

 private:
  void AppendNumber(char kind, int64_t number) {
    char line[24];
    line[0] = kind;
    char* end = std::to_chars(line + 1, std::end(line) - 2, number).ptr;
    *end++ = '\r';
    *end++ = '\n';
    text_.append(line, static_cast<size_t>(end - line));
  }

  std::string text_;
  int64_t count_ = 0;
};

// Appends a number of 7 bytes, big-endian, as struct.unpack of the scripts reads it.
inline void AppendPacked(std::string* bytes, int64_t number) {
  std::array<char, 7> packed;
  for (int i = 6; i >= 0; --i, number >>= 8) packed[i] = static_cast<char>(number & 0xff);
  bytes->append(packed.data(), packed.size());
}

// A whole command.
inline std::string Format(const std::vector<std::string>& words) {
  Words command;
  for (const std::string& word : words) command.Add(word);
  return command.Finish();
}

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_WORDS_H_
