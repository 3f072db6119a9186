#include "server/checks/sha256.h"

#include <openssl/evp.h>
#include <openssl/opensslv.h>

#include <stdexcept>

namespace tidegate::server {

namespace {

// From OpenSSL 3 on, each use of EVP_sha256() or SHA256() looks the function up by its name.
const EVP_MD* FunctionOfSha256() {
#if OPENSSL_VERSION_NUMBER >= 0x30000000L
  static const EVP_MD* const function = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return function;
#else
  return EVP_sha256();
#endif
}

}  // namespace

Digest Sha256(std::string_view bytes) {
  Digest digest;
  const EVP_MD* const function = FunctionOfSha256();
  if (function == nullptr ||
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, function, nullptr) != 1) {
    throw std::runtime_error("OpenSSL has no SHA-256");
  }
  return digest;
}

}  // namespace tidegate::server
