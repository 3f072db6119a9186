#include "base/text.h"

#include "absl/strings/str_cat.h"

namespace tidegate {

namespace {

// The size of the character of UTF-8 that `text` begins with; 0 if that is a control character, or
// no UTF-8.
size_t PrintableSize(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : 0;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = at(1);
  const bool is_control = lead == 0xc2 && second < 0xa0;
  const bool is_long = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool is_surrogate = lead == 0xed && second >= 0xa0;
  const bool is_beyond = lead == 0xf4 && second >= 0x90;
  return is_control || is_long || is_surrogate || is_beyond ? 0 : size;
}

}  // namespace

std::string Quote(std::string_view text) {
  // Bytes of the message: an escape is longer than what it stands for.
  constexpr size_t kMost = 80;
  std::string out = "'";
  size_t shown = 0;
  while (shown < text.size()) {
    const size_t size = PrintableSize(text.substr(shown));
    if (out.size() + (size == 0 ? 4 : size) > 1 + kMost) break;
    if (size == 0) {
      const auto byte = static_cast<unsigned char>(text[shown++]);
      absl::StrAppend(&out, "\\x", absl::Hex(byte, absl::kZeroPad2));
    } else {
      out += text.substr(shown, size);
      shown += size;
    }
  }
  if (shown < text.size()) out += "...";
  return out + "'";
}

}  // namespace tidegate
