// The tokens that may call the service, stored only as SHA-256, with the roles that limit them.
#ifndef TIDEGATE_SERVER_CHECKS_TOKENS_H_
#define TIDEGATE_SERVER_CHECKS_TOKENS_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "server/checks/sha256.h"

namespace tidegate::server {

// In ascending order: each role permits everything that the roles before it permit.
enum class Role : uint8_t {
  kViewer,    // may read: Peek, Status
  kCheck,     // may charge: Check, CheckMany, Refund
  kOperator,  // may forget usage: Reset
  kAdmin,
};
std::optional<Role> ParseRole(std::string_view name);

// Immutable; thread-safe.
class Tokens {
 public:
  static constexpr size_t kMostTokenBytes = 512;
  struct Entry {
    Digest digest;
    Role role;
  };

  explicit Tokens(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  // The role of the token; nothing if it is unknown. The time depends only on the length of the
  // token and the number of tokens.
  std::optional<Role> RoleOf(std::string_view token) const;
  size_t size() const { return entries_.size(); }

 private:
  const std::vector<Entry> entries_;
};

// The token in the value of an Authorization header; nothing without the scheme Bearer.
std::optional<std::string_view> BearerToken(std::string_view authorization);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_TOKENS_H_
