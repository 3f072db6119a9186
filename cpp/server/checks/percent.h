// Reads paths as clients send them. Malformed encodings are refused, not repaired.
#ifndef TIDEGATE_SERVER_CHECKS_PERCENT_H_
#define TIDEGATE_SERVER_CHECKS_PERCENT_H_

#include <optional>
#include <string>
#include <string_view>

namespace tidegate::server {

// Returns any bytes, or nothing if a "%" is not followed by two hexadecimal digits. A "+" stays a
// "+".
std::optional<std::string> PercentDecoded(std::string_view text);

// Returns the path of a URI as a client sent it: without scheme, host, query and fragment, decoded,
// and without "." and ".." segments, so that no spelling of a path escapes the rules for it. Also
// removes the parameters of segments ("/a;v=1/b" becomes "/a/b"), unless they are kept. Returns
// nothing for a malformed URI.
std::optional<std::string> PathOfUri(std::string_view uri, bool keeps_parameters);

// Whether an endpoint is not a path, or is a path without query, fragment and parameters.
bool IsPlainPath(std::string_view endpoint, bool keeps_parameters);
// Returns a path without query, fragment and parameters.
std::string PlainPath(std::string_view path, bool keeps_parameters);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_PERCENT_H_
