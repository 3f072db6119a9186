// Which names a server of one machine is asked by.
#ifndef TIDEGATE_SERVER_HOSTS_H_
#define TIDEGATE_SERVER_HOSTS_H_

#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace tidegate::server {

// Whether a Host header is an address, a name without dots, a name below localhost, or one of
// `names`, which are in lower case. No other name is the server's own: the page of a web site whose
// name leads to 127.0.0.1 has it (DNS rebinding). Programs that send no Host are no browsers.
bool AcceptsHost(std::string_view host, absl::Span<const std::string> names);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_HOSTS_H_
