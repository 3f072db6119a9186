// Compare-and-swap of two adjacent words at once: cmpxchg16b, casp or an
// exclusive pair. std::atomic of 16 bytes would go through libatomic, which need
// not be lock-free. A full barrier.
#ifndef TIDEGATE_SRC_BASE_CAS16_H_
#define TIDEGATE_SRC_BASE_CAS16_H_

#include <atomic>
#include <bit>
#include <cstdint>

namespace tidegate {

struct alignas(16) TwoWords {
  uint64_t first;
  uint64_t second;
};

// `first` is 16-byte aligned and followed by the other word.
inline bool CompareAndSwap(std::atomic<uint64_t>* first, TwoWords expected, TwoWords desired) {
  __extension__ typedef unsigned __int128 Both;
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  return __sync_bool_compare_and_swap(reinterpret_cast<Both*>(first), std::bit_cast<Both>(expected),
                                      std::bit_cast<Both>(desired));
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_BASE_CAS16_H_
