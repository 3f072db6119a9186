#include "redis/protocol/digest.h"

#include <openssl/evp.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "redis/transport/openssl_use.h"

namespace tidegate::redis {
namespace {

std::string Digest(const EVP_MD* kind, std::string_view text) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const OpenSslUse use;
  if (!use) return std::string(EVP_MAX_MD_SIZE, '\0');
  if (EVP_Digest(text.data(), text.size(), bytes, &size, kind, nullptr) != 1) std::abort();
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

std::string Sha1InHex(std::string_view text) {
  return absl::BytesToHexString(Digest(EVP_sha1(), text));
}

std::string Sha256InBase64(std::string_view text, size_t chars) {
  return absl::WebSafeBase64Escape(Digest(EVP_sha256(), text)).substr(0, chars);
}

}  // namespace tidegate::redis
