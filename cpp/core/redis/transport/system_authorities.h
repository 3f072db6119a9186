// The certificate authorities that the system trusts, for an OpenSSL that was built for another
// system: OpenSSL in a wheel looks at the paths of the system that built it.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_SYSTEM_AUTHORITIES_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_SYSTEM_AUTHORITIES_H_

#include <openssl/ssl.h>

#include <string>

#include "absl/types/span.h"

namespace tidegate::redis {

// The first of `elsewhere` that can be read; empty if one of `usual` exists, or none can be read.
std::string AuthoritiesElsewhere(absl::Span<const std::string> usual,
                                 absl::Span<const std::string> elsewhere);

// Makes `context` trust these authorities. SSL_CERT_FILE and SSL_CERT_DIR still take precedence.
// Returns false if the authorities cannot be read.
bool TrustSystemAuthorities(SSL_CTX* context);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_SYSTEM_AUTHORITIES_H_
