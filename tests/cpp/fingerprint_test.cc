#include "tidegate/fingerprint.h"

#include <string>

#include "gtest/gtest.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tidegate {
namespace {

// All processes and hosts that share a table must compute the same fingerprints, whatever compiler
// built them.
TEST(FingerprintTest, IsXxh3WithASecretMadeFromTheSeed) {
  const Hasher::Seed seed{1, 2, 3};
  unsigned char secret[192];
  ASSERT_EQ(XXH3_generateSecret(secret, sizeof secret, seed.data(), seed.size()), XXH_OK);
  const Hasher hasher(seed);
  std::string key;
  for (int length = 0; length < 300; ++length) {
    const XXH128_hash_t expected =
        XXH3_128bits_withSecret(key.data(), key.size(), secret, sizeof secret);
    EXPECT_EQ(hasher.Hash(key), (Fingerprint{expected.low64, expected.high64})) << length;
    key.push_back(static_cast<char>('a' + length % 26));
  }
}

TEST(FingerprintTest, WithATagIsNeverAReservedValue) {
  const Hasher hasher(Hasher::Seed{});
  const Fingerprint plain = hasher.Hash("key");
  EXPECT_EQ(hasher.Hash("key", {3, 5}), (Fingerprint{plain.lo ^ 3, plain.hi ^ 5}));
  EXPECT_EQ(hasher.Hash("key", {0, plain.hi}), (Fingerprint{plain.lo, Hasher::kLeastHigh}));
}

}  // namespace
}  // namespace tidegate
