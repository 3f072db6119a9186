#include "tidegate/fingerprint.h"

#include <random>

#include "base/fingerprint_inl.h"

namespace tidegate {

Hasher::Seed Hasher::RandomSeed() {
  std::random_device device;  // getrandom(2), /dev/urandom or arc4random
  Seed seed;
  for (unsigned char& byte : seed) byte = static_cast<unsigned char>(device());
  return seed;
}

Hasher::Hasher(const Seed& seed) {
  static_assert(kSecretBytes >= XXH3_SECRET_SIZE_MIN);
  (void)XXH3_generateSecret(secret_, kSecretBytes, seed.data(), seed.size());
}

Fingerprint Hasher::Hash(std::string_view key) const { return InlineHash::Of(*this, key); }

Fingerprint Hasher::Hash(std::string_view key, const Fingerprint& tag) const {
  return InlineHash::Of(*this, key, tag);
}

}  // namespace tidegate
