// The keys that rules count by.
#ifndef TIDEGATE_RULES_RULE_KEY_H_
#define TIDEGATE_RULES_RULE_KEY_H_

#include <string_view>

namespace tidegate {

// The key of a rule that counts all requests together.
inline constexpr std::string_view kKeyOfAll = "*";

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
