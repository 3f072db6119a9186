// Where the cells of a key that needs several lie: neighbours share the groups of the table that
// one block's fingerprint names.
#ifndef TIDEGATE_SRC_TABLE_NEIGHBOURS_H_
#define TIDEGATE_SRC_TABLE_NEIGHBOURS_H_

#include <cstddef>
#include <cstdint>

namespace tidegate {

inline constexpr size_t kNeighbours = 4;  // cells of a block

// SplitMix64's finaliser: a bijection.
inline uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_NEIGHBOURS_H_
