// The head of a request of HTTP/1.1: its first line and its headers, read strictly. What servers
// and proxies might read differently, so that one request hides in another, is refused.
#ifndef TIDEGATE_SERVER_FRONT_HTTP1_HEAD_H_
#define TIDEGATE_SERVER_FRONT_HTTP1_HEAD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/call.h"

namespace tidegate::server {

struct Http1Head {
  std::string_view method;
  std::string_view target;  // "/path?query"
  std::vector<Header> headers;
  uint64_t content_length = 0;
  bool chunked = false;
  bool keep_alive = false;
  bool expects_continue = false;
  std::string names;  // which the headers have their names in
};

// The status of an error, and a reason; 0 if there is none.
struct Http1Error {
  int status = 0;
  std::string_view why;
};

// `bytes` are a whole head with its empty line; `head` has views of them.
Http1Error ParseHttp1Head(std::string_view bytes, size_t most_headers, Http1Head* head);

// Where the head ends that begins at `bytes`, npos if not within them. Looks from `*looked` on,
// which it moves.
size_t FindHeadEnd(std::string_view bytes, size_t* looked);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_HTTP1_HEAD_H_
