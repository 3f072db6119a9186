// The caller whom a decision is about, and for whom it is recorded.
#ifndef TIDEGATE_SERVER_CHECKS_CALLER_H_
#define TIDEGATE_SERVER_CHECKS_CALLER_H_

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "server/checks/asked.h"

namespace tidegate::server {

// A text is empty if the request does not have it. Texts may have any bytes.
struct Caller {
  std::string_view user;
  std::string_view endpoint;
  std::string_view tier;
  std::string_view ip;
};

// The name by which a user is recorded, which `name` keeps where it is not `user` itself: a user
// whose name looks like the digest of a key has another one than the holder of that key.
std::string_view NameOfUser(std::string_view user, std::string* name);

// Reads the caller. A caller who is known only by a key is named by a digest of the key. `name`
// keeps the name where the request does not have it.
Caller CallerOf(const Asked& asked, std::string* name);

// A copy that outlives the request, with as much of each text as is recorded.
class KeptCaller {
 public:
  void Keep(const Caller& caller);
  Caller view() const;

 private:
  std::string text_;
  std::array<size_t, 4> sizes_ = {};
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_CALLER_H_
