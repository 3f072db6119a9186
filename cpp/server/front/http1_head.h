// The head of an HTTP/1.1 request: its first line and its headers, read strictly. A head that
// servers and proxies might read differently is refused, since one request could hide in another.
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
  std::string names;  // the memory of the header names
};

// The status of an error and its reason; the status is 0 without an error.
struct Http1Error {
  int status = 0;
  std::string_view why;
};

// `bytes` are a whole head with its empty line; `head` refers to them.
Http1Error ParseHttp1Head(std::string_view bytes, size_t most_headers, Http1Head* head);

// Returns where the head that begins at `bytes` ends; npos if it does not end in `bytes`. Searches
// from `*looked` on, and moves it.
size_t FindHeadEnd(std::string_view bytes, size_t* looked);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_HTTP1_HEAD_H_
