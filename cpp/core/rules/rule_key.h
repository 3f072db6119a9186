// The keys that rules count by.
#ifndef TIDEGATE_RULES_RULE_KEY_H_
#define TIDEGATE_RULES_RULE_KEY_H_

#include <algorithm>
#include <string>
#include <string_view>

namespace tidegate {

// The key of a rule that counts all requests together.
inline constexpr std::string_view kKeyOfAll = "*";

// The method that a rule counts by: `text` in upper case, since a client may spell it in any case,
// and some frameworks run the same handler then. Made in `room` if it differs.
inline std::string_view CountedMethod(std::string_view text, std::string* room) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  if (std::none_of(text.begin(), text.end(), is_lower)) return text;
  room->assign(text);
  for (char& c : *room) {
    if (is_lower(c)) c = static_cast<char>(c - 'a' + 'A');
  }
  return *room;
}

// Appends one of several values, so that different lists of values make different keys.
template <typename Text>
void AppendToKey(std::string_view value, bool is_first, Text* key) {
  if (!is_first) key->push_back('|');
  for (const char c : value) {
    if (c == '|' || c == '\\') key->push_back('\\');
    key->push_back(c);
  }
}

}  // namespace tidegate

#endif  // TIDEGATE_RULES_RULE_KEY_H_
