// Whom a decision is about, and recorded for.
#ifndef TIDEGATE_SERVER_CHECKS_CALLER_H_
#define TIDEGATE_SERVER_CHECKS_CALLER_H_

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "server/checks/asked.h"

namespace tidegate::server {

// Empty where a request does not say. Texts may have any bytes.
struct Caller {
  std::string_view user;
  std::string_view endpoint;
  std::string_view tier;
  std::string_view ip;
};

// `digest` is what the user is made in, where it must be: a caller who is known by a key alone goes
// by a digest of it.
Caller CallerOf(const Asked& asked, std::string* digest);

// A copy, for when the request is gone; of each text as much as is recorded.
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
