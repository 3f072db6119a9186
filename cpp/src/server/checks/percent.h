// Paths as clients send them, whose encoding nobody guesses: what is malformed is refused.
#ifndef TIDEGATE_SERVER_CHECKS_PERCENT_H_
#define TIDEGATE_SERVER_CHECKS_PERCENT_H_

#include <optional>
#include <string>
#include <string_view>

namespace tidegate::server {

// Returns any bytes, or nothing if a "%" is not followed by two hexadecimal digits. A "+" stays a
// "+".
std::optional<std::string> PercentDecoded(std::string_view text);

// The path of a URI as a client sent it: without scheme, host, query and fragment, decoded, and
// without "." and ".." segments, so that no spelling of a path escapes the rules for it. Without
// the parameters of its segments too ("/a;v=1/b" is "/a/b"), unless they are kept. None where it is
// malformed.
std::optional<std::string> PathOfUri(std::string_view uri, bool keeps_parameters);

// Whether an endpoint is no path, or a path without query, fragment and parameters.
bool IsPlainPath(std::string_view endpoint, bool keeps_parameters);
// A path without them.
std::string PlainPath(std::string_view path, bool keeps_parameters);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_PERCENT_H_
