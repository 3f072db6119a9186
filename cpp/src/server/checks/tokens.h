// Who may call the service: tokens, known by their SHA-256 alone, and what their roles permit.
#ifndef TIDEGATE_SERVER_CHECKS_TOKENS_H_
#define TIDEGATE_SERVER_CHECKS_TOKENS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tidegate::server {

// In the order of what they permit: each permits what those before it do.
enum class Role : uint8_t {
  kViewer,    // to look: Peek, Status
  kCheck,     // to charge: Check, CheckMany, Refund
  kOperator,  // to forget what was charged: Reset
  kAdmin,
};
std::optional<Role> ParseRole(std::string_view name);

// Immutable; thread-safe.
class Tokens {
 public:
  static constexpr size_t kDigestBytes = 32;
  static constexpr size_t kMostTokenBytes = 512;
  using Digest = std::array<unsigned char, kDigestBytes>;
  struct Entry {
    Digest digest;
    Role role;
  };

  explicit Tokens(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  // The role of the token; none for an unknown one. The time that this takes depends on the
  // token's length and the number of tokens, not on what they are.
  std::optional<Role> RoleOf(std::string_view token) const;
  size_t size() const { return entries_.size(); }

 private:
  const std::vector<Entry> entries_;
};

// The token in the value of an Authorization header; none without the scheme Bearer.
std::optional<std::string_view> BearerToken(std::string_view authorization);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_TOKENS_H_
