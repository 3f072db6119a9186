// Text for messages.
#ifndef TIDEGATE_BASE_TEXT_H_
#define TIDEGATE_BASE_TEXT_H_

#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace tidegate {

// Abseil's string_view may be a type of its own.
inline absl::string_view Absl(std::string_view s) { return {s.data(), s.size()}; }

// Quotes text of unknown length and content for a message, which is UTF-8 whatever the text is.
// Control characters and other bytes are escaped.
std::string Quote(std::string_view text);

}  // namespace tidegate

#endif  // TIDEGATE_BASE_TEXT_H_
