#include "server/call.h"

namespace tidegate::server {

std::string_view Request::header(std::string_view name) const {
  for (const Header& header : headers) {
    if (header.name == name) return header.value;
  }
  return {};
}

}  // namespace tidegate::server
