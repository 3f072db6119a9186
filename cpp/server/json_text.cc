#include "server/json_text.h"

#include <simdjson.h>

#include "absl/strings/str_cat.h"

namespace tidegate::server {

namespace {

// Returns the length of the UTF-8 character that `text` begins with, or 0 if there is none.
size_t CharacterAt(std::string_view text) {
  for (size_t size = 1; size <= 4 && size <= text.size(); ++size) {
    if (simdjson::validate_utf8(text.data(), size)) return size;
  }
  return 0;
}

}  // namespace

void AppendJsonString(std::string_view text, std::string* json) {
  *json += '"';
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '"' || byte == '\\') {
      *json += '\\';
      *json += text[i++];
    } else if (byte < 0x20) {
      absl::StrAppend(json, "\\u", absl::Hex(byte, absl::kZeroPad4));
      ++i;
    } else if (byte < 0x80) {
      *json += text[i++];
    } else if (const size_t size = CharacterAt(text.substr(i)); size > 0) {
      json->append(text.substr(i, size));
      i += size;
    } else {
      *json += "\xEF\xBF\xBD";
      ++i;
    }
  }
  *json += '"';
}

}  // namespace tidegate::server
