// Digests of tokens and keys.
#ifndef TIDEGATE_SERVER_CHECKS_SHA256_H_
#define TIDEGATE_SERVER_CHECKS_SHA256_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tidegate::server {

inline constexpr size_t kDigestBytes = 32;
using Digest = std::array<uint8_t, kDigestBytes>;

// Throws std::runtime_error if OpenSSL has no SHA-256.
Digest Sha256(std::string_view bytes);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_SHA256_H_
