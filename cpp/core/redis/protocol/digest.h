// Digests by OpenSSL. While the process exits, when OpenSSL must not be used, they are of zeros.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_DIGEST_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_DIGEST_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace tidegate::redis {

// By which EVALSHA names a script.
std::string Sha1InHex(std::string_view text);

// The first `chars` characters of the URL-safe Base64 of the SHA-256, of 6 bits each.
std::string Sha256InBase64(std::string_view text, size_t chars);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_DIGEST_H_
