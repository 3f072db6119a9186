// Strict percent-decoding: malformed texts are refused, never guessed at.
#ifndef TIDEGATE_SERVER_CHECKS_PERCENT_H_
#define TIDEGATE_SERVER_CHECKS_PERCENT_H_

#include <optional>
#include <string>
#include <string_view>

namespace tidegate::server {

// Returns any bytes, or nothing if a "%" is not followed by two hexadecimal digits. A "+" stays a
// "+".
std::optional<std::string> PercentDecoded(std::string_view text);

// Returns the path of a URI that a client sent: without scheme, host, query and fragment, decoded,
// and without "." and ".." segments, so that no spelling of a path escapes its rules. Returns
// nothing if the URI is malformed.
std::optional<std::string> PathOfUri(std::string_view uri);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_PERCENT_H_
