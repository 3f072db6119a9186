#include "server/hosts.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace tidegate::server {

bool AcceptsHost(std::string_view host, absl::Span<const std::string> names) {
  if (host.starts_with('[')) return true;  // an address of IPv6: no name begins so
  host = host.substr(0, host.find(':'));
  if (host.ends_with('.')) host.remove_suffix(1);
  const std::string_view last = host.substr(host.rfind('.') + 1);  // all of a name without dots
  if (last.size() == host.size()) return true;
  // Browsers take a name whose last part is a number for an address of IPv4.
  const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
  if (!last.empty() && std::all_of(last.begin(), last.end(), is_digit)) return true;
  std::string name(host);
  absl::AsciiStrToLower(&name);
  return name.ends_with(".localhost") || std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace tidegate::server
