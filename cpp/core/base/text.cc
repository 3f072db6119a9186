#include "base/text.h"

#include "absl/strings/str_cat.h"

namespace tidegate {

std::string Quote(std::string_view text) {
  constexpr size_t kMost = 80;
  std::string out = "'";
  for (char c : text.substr(0, kMost)) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u == 0x7f) {
      absl::StrAppend(&out, "\\x", absl::Hex(u, absl::kZeroPad2));
    } else {
      out += c;
    }
  }
  // Never cut a UTF-8 sequence in two: the message must stay text.
  if (text.size() > kMost) {
    while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) out.pop_back();
    if (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0xC0) out.pop_back();
    out += "...";
  }
  return out + "'";
}

}  // namespace tidegate
