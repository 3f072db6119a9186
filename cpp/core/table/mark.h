// A mark: a byte of a cell that records how its key was charged. With the state of the cell it
// gives the key's rank: the smallest number of charges that explains the state. A table that must
// evict a live key evicts one of the lowest rank: an attacker who wants a key forgotten by
// inventing others has to charge each of those as often.
//
//   0 to 127     of a bucket: its largest charge, as the logarithm of its nanoseconds
//   128 to 191   of a window: its largest charge, as the logarithm of its units
//   192 to 255   of a log: the rank itself, since no cell of it knows the others
//
// Logarithms are those of HalfLog(). A charge of one unit is never larger than the earlier ones, so
// a cell keeps its mark then: for nearly all calls marks cost nothing.
#ifndef TIDEGATE_SRC_TABLE_MARK_H_
#define TIDEGATE_SRC_TABLE_MARK_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "tidegate/limit.h"
#include "tidegate/step.h"

namespace tidegate {

using Mark = uint8_t;

inline constexpr int kUnitsMark = 128;
inline constexpr int kRankMark = 192;

// Twice the logarithm to the base 2, rounded down to a whole number, which grows at 1, 1.5, 2, 3,
// 4, 6, 8, ... That of 0 is that of 1.
__attribute__((always_inline)) inline int HalfLog(uint64_t value) {
  if (value < 2) return 0;
  const int bits = static_cast<int>(std::bit_width(value)) - 1;
  return 2 * bits + static_cast<int>((value >> (bits - 1)) & 1);
}

inline Mark MarkOfUnits(uint64_t units) {
  return static_cast<Mark>(kUnitsMark + std::min(HalfLog(units), kRankMark - kUnitsMark - 1));
}

inline Mark MarkOfRank(int rank) {
  return static_cast<Mark>(std::clamp(kRankMark + rank, kRankMark, 255));
}

// The mark of a log of which `alive` units count, at most `most_at_once` of them by one charge.
inline Mark MarkOfLog(uint64_t alive, uint64_t most_at_once) {
  return MarkOfRank(HalfLog(alive) - HalfLog(most_at_once));
}

// The mark of a log that had this mark, and `alive` units before a charge of `cost`. The old mark
// gives the largest charge before.
inline Mark MarkOfLogAfter(Mark mark, uint64_t alive, uint64_t cost) {
  if (alive == 0 || mark < kRankMark) return MarkOfRank(0);
  const int largest = std::max(HalfLog(alive) - (mark - kRankMark), HalfLog(cost));
  return MarkOfRank(HalfLog(alive + cost) - std::max(largest, 0));
}

// The mark of a charge of a bucket or window.
__attribute__((always_inline)) inline Mark MarkOf(const Limit& limit, int64_t cost) {
  if (!IsBucket(limit.algorithm())) return MarkOfUnits(static_cast<uint64_t>(cost));
  // Fractions count as whole ones: no charge is to look smaller than it is.
  const int64_t unit_ns = limit.step_ns() + (limit.step_fraction() != 0);
  return static_cast<Mark>(std::min(
      HalfLog(static_cast<uint64_t>(cost) * static_cast<uint64_t>(unit_ns)), kUnitsMark - 1));
}

// The rank in half steps of a logarithm, 0 for a state that one charge explains.
inline int RankOf(Mark mark, const CellState& state, int64_t now_ns) {
  if (mark >= kRankMark) return mark - kRankMark;
  if (mark >= kUnitsMark) {
    // The units of both windows, if there are two.
    const uint64_t units = (state.w1 >> 32) + (state.w1 & 0xffffffff);
    return std::max(0, HalfLog(units) - (mark - kUnitsMark));
  }
  const int64_t owed_ns = static_cast<int64_t>(state.w0) - now_ns;
  return std::max(0, HalfLog(static_cast<uint64_t>(std::max<int64_t>(owed_ns, 0))) - mark);
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_MARK_H_
