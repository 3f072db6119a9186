#include "rules/endpoint.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tidegate {

namespace {

bool IsPath(std::string_view text) { return !text.empty() && text.front() == '/'; }

bool IsName(std::string_view part) {
  if (part.size() < 3 || part.front() != '{' || part.back() != '}') return false;
  for (const char c : part.substr(1, part.size() - 2)) {
    if (c == '{' || c == '}' || c == '*') return false;
  }
  return true;
}

absl::Status BadEndpoint(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("the endpoint ", Quote(text), " ", Absl(why)));
}

}  // namespace

bool IsAnyPart(std::string_view part) { return part == "*" || IsName(part); }

absl::StatusOr<EndpointPattern> EndpointPattern::Parse(std::string_view text) {
  EndpointPattern pattern;
  pattern.text = std::string(text);
  if (text.empty())
    return BadEndpoint(text, "is empty; expected a path such as '/api/*', or a name");
  if (text == "**") {
    pattern.anything = true;
    return pattern;
  }
  if (!IsPath(text)) {
    if (text.find_first_of("*{}") != std::string_view::npos) {
      return BadEndpoint(
          text,
          "has a wildcard but no leading '/'; expected a path such as '/api/*', or '**' for "
          "every endpoint");
    }
    return pattern;
  }
  if (text.find_first_of("?#") != std::string_view::npos) {
    return BadEndpoint(text,
                       "has a query or a fragment, which no endpoint has; expected a path alone");
  }
  pattern.is_path = true;
  std::string canonical;
  for (const std::string_view part : SplitPath(text)) {
    if (pattern.below)
      return BadEndpoint(text, "has '**' before its end; expected it as the last part");
    absl::StrAppend(&canonical, "/", Absl(part));
    if (part == "**") {
      pattern.below = pattern.has_wildcard = true;
      continue;
    }
    if (part == "." || part == "..") {
      return BadEndpoint(text,
                         "has a part '.' or '..', which matches no path that a service serves");
    }
    if (IsAnyPart(part)) {
      pattern.has_wildcard = true;
      pattern.has_name |= part != "*";
    } else if (part.find_first_of("*{}") != std::string_view::npos) {
      return BadEndpoint(text, absl::StrCat("has the part ", Quote(part),
                                            "; expected '*' or '{name}' for a whole part"));
    }
    pattern.parts.emplace_back(part);
  }
  pattern.text = canonical.empty() ? "/" : canonical;
  return pattern;
}

PathParts SplitPath(std::string_view path) {
  PathParts parts;
  size_t at = 0;
  while (at < path.size()) {
    if (path[at] == '/') {
      ++at;
      continue;
    }
    const size_t end = std::min(path.find('/', at), path.size());
    parts.push_back(path.substr(at, end - at));
    at = end;
  }
  return parts;
}

std::string_view CanonicalEndpoint(std::string_view endpoint, std::string* room) {
  if (!IsPath(endpoint)) return endpoint;
  const bool trailing = endpoint.size() > 1 && endpoint.back() == '/';
  if (!trailing && endpoint.find("//") == std::string_view::npos) return endpoint;
  room->clear();
  for (const std::string_view part : SplitPath(endpoint)) {
    room->push_back('/');
    room->append(part);
  }
  if (room->empty()) room->push_back('/');
  return *room;
}

void AppendNamed(const EndpointPattern& pattern, std::string_view endpoint, std::string* text) {
  const PathParts parts = SplitPath(endpoint);
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool named = i < pattern.parts.size() && IsName(pattern.parts[i]);
    text->push_back('/');
    text->append(named ? std::string_view(pattern.parts[i]) : parts[i]);
  }
  if (parts.empty()) text->push_back('/');
}

}  // namespace tidegate
