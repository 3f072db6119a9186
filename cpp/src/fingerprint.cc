#include "tidegate/fingerprint.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <random>

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

Fingerprint Hasher::Hash(std::string_view key) const {
  const XXH128_hash_t h =
      XXH3_128bits_withSecret(key.data(), key.size(), secret_, kSecretBytes);
  return {h.low64, h.high64};
}

}  // namespace tidegate
