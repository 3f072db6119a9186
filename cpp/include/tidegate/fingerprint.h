// 128 bits that identify a key: a keyed hash (XXH3 with a secret of the store's own), so that
// nobody outside can make two keys collide, and memory does not depend on the length of keys.
#ifndef TIDEGATE_FINGERPRINT_H_
#define TIDEGATE_FINGERPRINT_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace tidegate {

struct Fingerprint {
  uint64_t lo = 0;
  uint64_t hi = 0;
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Fingerprint& f) {
    return H::combine(std::move(state), f.lo);
  }
};

// The secret of one store. Thread-safe.
class Hasher {
 public:
  static constexpr size_t kSeedBytes = 32;
  using Seed = std::array<unsigned char, kSeedBytes>;

  // A seed from the system's source of randomness.
  static Seed RandomSeed();

  explicit Hasher(const Seed& seed);

  Fingerprint Hash(std::string_view key) const;
  // The least high word of a fingerprint of a key under one limit: the table uses smaller values
  // for itself.
  static constexpr uint64_t kLeastHigh = uint64_t{1} << 16;
  Fingerprint Hash(std::string_view key, const Fingerprint& tag) const;

 private:
  friend struct InlineHash;
  static constexpr size_t kSecretBytes = 192;
  alignas(64) unsigned char secret_[kSecretBytes];
};

}  // namespace tidegate

#endif  // TIDEGATE_FINGERPRINT_H_
