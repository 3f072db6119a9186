// Numbers and texts that stand one after the other in the bytes of a token.
#ifndef TIDEGATE_SERVER_CHECKS_PACKED_H_
#define TIDEGATE_SERVER_CHECKS_PACKED_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidegate::server {

// Appends the lowest `bytes` bytes of `number`, the lowest one first.
inline void AppendNumber(uint64_t number, size_t bytes, std::string* packed) {
  for (size_t i = 0; i < bytes; ++i) *packed += static_cast<char>(number >> (8 * i) & 0xff);
}

// `text` has less than 64 KiB.
inline void AppendText(std::string_view text, std::string* packed) {
  AppendNumber(text.size(), 2, packed);
  *packed += text;
}

// Reads what these have appended. After an end that comes too early all that it reads is 0 or
// empty.
class Unpacker {
 public:
  explicit Unpacker(std::string_view packed) : left_(packed) {}

  uint64_t Number(size_t bytes) {
    uint64_t number = 0;
    const std::string_view taken = Take(bytes);
    for (size_t i = 0; i < taken.size(); ++i) {
      number |= uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    }
    return number;
  }
  std::string Text() { return std::string(Take(Number(2))); }
  bool is_over() const { return is_sound_ && left_.empty(); }
  bool is_sound() const { return is_sound_; }

 private:
  std::string_view Take(size_t bytes) {
    if (bytes > left_.size()) {
      is_sound_ = false;
      left_ = {};
      return {};
    }
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

  std::string_view left_;
  bool is_sound_ = true;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_PACKED_H_
