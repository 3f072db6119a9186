#include "base/text.h"

#include "absl/strings/str_cat.h"

namespace tidegate {

std::string Quote(std::string_view text) {
  // Bytes of the message: an escape is longer than what it stands for.
  constexpr size_t kMost = 80;
  std::string out = "'";
  size_t shown = 0;
  for (; shown < text.size(); ++shown) {
    const auto u = static_cast<unsigned char>(text[shown]);
    const bool is_plain = u >= 0x20 && u != 0x7f;
    if (out.size() + (is_plain ? 1 : 4) > 1 + kMost) break;
    if (is_plain) {
      out += text[shown];
    } else {
      absl::StrAppend(&out, "\\x", absl::Hex(u, absl::kZeroPad2));
    }
  }
  // Never cut a UTF-8 sequence in two: the message must stay text.
  if (shown < text.size()) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) out.pop_back();
    if (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0xC0) out.pop_back();
    out += "...";
  }
  return out + "'";
}

}  // namespace tidegate
