// Endpoints, and patterns that match many of them.
#ifndef TIDEGATE_RULES_ENDPOINT_H_
#define TIDEGATE_RULES_ENDPOINT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"

namespace tidegate {

struct EndpointPattern {
  std::vector<std::string> parts;  // of a path; empty for any other text
  std::string text;                // canonical
  bool anything = false;           // `**`, which matches a request without an endpoint too
  bool is_path = false;
  bool below = false;         // ends in `**`
  bool has_wildcard = false;  // `*`, `{name}` or `**` among its parts
  bool has_name = false;      // `{name}`

  static absl::StatusOr<EndpointPattern> Parse(std::string_view text);
};

bool IsAnyPart(std::string_view part);  // `*` or `{name}`

using PathParts = absl::InlinedVector<std::string_view, 16>;
// The parts of a path. Repeated and trailing slashes add no empty parts.
PathParts SplitPath(std::string_view path);
// A path without repeated and trailing slashes: `endpoint` itself if it has none, else a view of
// `room`. An endpoint that is not a path stays as it is.
std::string_view CanonicalEndpoint(std::string_view endpoint, std::string* room);

// Appends `endpoint`, which the pattern matches, with each part that a `{name}` matched replaced by
// that `{name}`.
void AppendNamed(const EndpointPattern& pattern, std::string_view endpoint, std::string* text);

}  // namespace tidegate

#endif  // TIDEGATE_RULES_ENDPOINT_H_
