// Hashing, to be inlined where keys are short and calls are many.
#ifndef TIDEGATE_SRC_FINGERPRINT_INL_H_
#define TIDEGATE_SRC_FINGERPRINT_INL_H_

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tidegate/fingerprint.h"

namespace tidegate {

inline Fingerprint Hasher::HashInline(std::string_view key) const {
  // Short keys by what XXH3_128bits_withSecret() does for them, since GCC would not inline
  // that; tests/cpp/fingerprint_test.cc holds the two to be the same.
  const XXH128_hash_t h =
      key.size() <= 16
          ? XXH3_len_0to16_128b(reinterpret_cast<const xxh_u8*>(key.data()), key.size(), secret_, 0)
          : XXH3_128bits_withSecret(key.data(), key.size(), secret_, kSecretBytes);
  return {h.low64, h.high64};
}

inline Fingerprint Hasher::HashInline(std::string_view key, const Fingerprint& tag) const {
  Fingerprint f = HashInline(key);
  f.lo ^= tag.lo;
  f.hi ^= tag.hi;
  if (f.hi < kLeastHigh) [[unlikely]]
    f.hi = kLeastHigh;
  return f;
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_FINGERPRINT_INL_H_
