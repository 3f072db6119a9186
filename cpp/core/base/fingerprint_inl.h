// Hashing, to be inlined where keys are short and calls are many.
#ifndef TIDEGATE_SRC_BASE_FINGERPRINT_INL_H_
#define TIDEGATE_SRC_BASE_FINGERPRINT_INL_H_

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tidegate/fingerprint.h"

namespace tidegate {

struct InlineHash {
  static Fingerprint Of(const Hasher& hasher, std::string_view key);
  static Fingerprint Of(const Hasher& hasher, std::string_view key, const Fingerprint& tag);
};

__attribute__((always_inline)) inline Fingerprint InlineHash::Of(const Hasher& hasher,
                                                                 std::string_view key) {
  // Hashes short keys as XXH3_128bits_withSecret() does, which GCC would not inline;
  // tests/cpp/fingerprint_test.cc checks that the two agree.
  const XXH128_hash_t h =
      key.size() <= 16
          ? XXH3_len_0to16_128b(reinterpret_cast<const xxh_u8*>(key.data()), key.size(),
                                hasher.secret_, 0)
          : XXH3_128bits_withSecret(key.data(), key.size(), hasher.secret_, Hasher::kSecretBytes);
  return {h.low64, h.high64};
}

__attribute__((always_inline)) inline Fingerprint InlineHash::Of(const Hasher& hasher,
                                                                 std::string_view key,
                                                                 const Fingerprint& tag) {
  Fingerprint f = Of(hasher, key);
  f.lo ^= tag.lo;
  f.hi ^= tag.hi;
  if (f.hi < Hasher::kLeastHigh) [[unlikely]]
    f.hi = Hasher::kLeastHigh;
  return f;
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_BASE_FINGERPRINT_INL_H_
