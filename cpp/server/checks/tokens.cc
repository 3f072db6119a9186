#include "server/checks/tokens.h"

#include <openssl/crypto.h>

#include <algorithm>

namespace tidegate::server {

std::optional<Role> ParseRole(std::string_view name) {
  if (name == "viewer") return Role::kViewer;
  if (name == "check") return Role::kCheck;
  if (name == "operator") return Role::kOperator;
  if (name == "admin") return Role::kAdmin;
  return std::nullopt;
}

std::optional<Role> Tokens::RoleOf(std::string_view token) const {
  if (token.empty() || token.size() > kMostTokenBytes) return std::nullopt;
  const Digest given = Sha256(token);
  // Every entry is compared, so that the time does not reveal which entries were similar.
  unsigned found = 0;
  unsigned role = 0;
  for (const Entry& entry : entries_) {
    const unsigned same = CRYPTO_memcmp(given.data(), entry.digest.data(), kDigestBytes) == 0;
    found |= same;
    role |= (0U - same) & static_cast<unsigned>(entry.role);
  }
  if (found == 0) return std::nullopt;
  return static_cast<Role>(role);
}

std::optional<std::string_view> BearerToken(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size() ||
      !std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), [](char a, char b) {
        return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
      })) {
    return std::nullopt;
  }
  std::string_view token = authorization.substr(kScheme.size());
  while (!token.empty() && token.front() == ' ') token.remove_prefix(1);
  while (!token.empty() && token.back() == ' ') token.remove_suffix(1);
  return token;
}

}  // namespace tidegate::server
