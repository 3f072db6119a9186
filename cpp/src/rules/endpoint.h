// Endpoints and the patterns that stand for many of them.
#ifndef TIDEGATE_RULES_ENDPOINT_H_
#define TIDEGATE_RULES_ENDPOINT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"

namespace tidegate {

struct EndpointPattern {
  // Of a path; empty for any other text.
  std::vector<std::string> parts;
  std::string text;       // canonical
  bool anything = false;  // `**`: also a request without an endpoint
  bool is_path = false;
  bool below = false;         // ends in `**`
  bool has_wildcard = false;  // `*`, `{name}` or `**` among its parts
  bool has_name = false;      // `{name}`

  static absl::StatusOr<EndpointPattern> Parse(std::string_view text);
};

bool IsAnyPart(std::string_view part);  // `*` or `{name}`

using PathParts = absl::InlinedVector<std::string_view, 16>;
// The parts of a path. Repeated and trailing slashes make none.
PathParts SplitPath(std::string_view path);
// The path without repeated and trailing slashes: itself where it has none of them, else made in
// `room`. What is no path stays as it is.
std::string_view CanonicalEndpoint(std::string_view endpoint, std::string* room);

// `endpoint`, which the pattern matches, with `{name}` again where the pattern has one.
void AppendNamed(const EndpointPattern& pattern, std::string_view endpoint, std::string* text);

}  // namespace tidegate

#endif  // TIDEGATE_RULES_ENDPOINT_H_
