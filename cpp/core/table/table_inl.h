// The part of Table that every hit runs. Words are passed one by one: a struct that is written by
// halves and read as a whole stalls the processor for longer than everything else takes.
#ifndef TIDEGATE_SRC_TABLE_TABLE_INL_H_
#define TIDEGATE_SRC_TABLE_TABLE_INL_H_

#include "base/cas16.h"
#include "table/table.h"

// GCC judges the functions of the hot path too large to inline; in practice they
// are one straight line.
#define TIDEGATE_INLINE __attribute__((always_inline)) inline

namespace tidegate {

TIDEGATE_INLINE Cell* Table::FindNear(const Fingerprint& key, uint64_t& w0, uint64_t& w1) const {
  Cell* const group = slice(SliceOf(key, slices_)) + (key.lo & (kGroups - 1)) * kGroupCells;
  size_t at = StartOf(key);
  for (size_t i = 0; i < kGroupCells; ++i, at = (at + 1) & (kGroupCells - 1)) {
    Cell* const cell = group + at;
    const uint64_t lo = cell->lo.load(std::memory_order_acquire);
    if (lo == key.lo) [[likely]] {
      return ReadOwned(cell, key, w0, w1) ? cell : nullptr;
    }
    if (lo == 0) return nullptr;  // most likely empty
  }
  return nullptr;
}

TIDEGATE_INLINE Cell* Table::Locate(const Fingerprint& key) const {
  Cell* const group = slice(SliceOf(key, slices_)) + (key.lo & (kGroups - 1)) * kGroupCells;
  const size_t start = StartOf(key);
  Cell* const first = group + start;
  Cell* const second = group + ((start + 2) & (kGroupCells - 1));
  const auto is = [&](const Cell* cell) {
    return unsigned{cell->lo.load(std::memory_order_relaxed) == key.lo};
  };
  // The two lines that were fetched, without a branch, which could not be predicted.
  const unsigned in = is(first) | is(first + 1) << 1 | is(second) << 2 | is(second + 1) << 3;
  if (in != 0) [[likely]] {
    const int at = std::countr_zero(in);
    return (at < 2 ? first : second) + (at & 1);
  }
  for (size_t i = 4; i < kGroupCells; ++i) {
    Cell* const cell = group + ((start + i) & (kGroupCells - 1));
    const uint64_t lo = cell->lo.load(std::memory_order_relaxed);
    if (lo == key.lo) return cell;
    if (lo == 0) return nullptr;
  }
  PrefetchIn(GroupAfter(key), key);
  return nullptr;
}

TIDEGATE_INLINE bool Table::ReadOwned(const Cell* cell, const Fingerprint& key, uint64_t& w0,
                                      uint64_t& w1) {
  // Reads the state first, then its name, then checks that the state is unchanged.
  w0 = cell->w0.load(std::memory_order_acquire);
  w1 = cell->w1.load(std::memory_order_acquire);
  return cell->lo.load(std::memory_order_acquire) == key.lo &&
         SameHigh(cell->hi.load(std::memory_order_acquire), key.hi) &&
         cell->w0.load(std::memory_order_acquire) == w0 && (w0 & kClaimBit) == 0;
}

TIDEGATE_INLINE bool Table::ReplaceWords(Cell* cell, uint64_t w0, uint64_t w1, uint64_t next_w0,
                                         uint64_t next_w1, bool one_word) {
  if (one_word && w1 == 0) [[likely]]
    return cell->w0.compare_exchange_strong(w0, next_w0);
  return CompareAndSwap(&cell->w0, {w0, w1}, {next_w0, next_w1});
}

TIDEGATE_INLINE void Table::RemarkIfLarger(Cell* cell, const Fingerprint& key, Mark mark) {
  if (MarkIn(cell->hi.load(std::memory_order_relaxed)) < mark) [[unlikely]]
    Remark(cell, {key.lo, key.hi}, mark);
}

template <typename MarkFunction, typename StepFunction>
TIDEGATE_INLINE void Table::Update(const Fingerprint& key, int64_t now_ns, Manner manner,
                                   Entry& entry, MarkFunction mark, StepFunction step) {
  uint64_t w0 = 0;
  uint64_t w1 = 0;
  Cell* const cell = FindNear(key, w0, w1);
  UpdateFrom(cell, w0, w1, key, now_ns, manner, entry, mark, step);
}

template <typename MarkFunction, typename StepFunction>
TIDEGATE_INLINE void Table::UpdateAt(Cell* located, const Fingerprint& key, int64_t now_ns,
                                     Manner manner, Entry& entry, MarkFunction mark,
                                     StepFunction step) {
  uint64_t w0 = 0;
  uint64_t w1 = 0;
  Cell* const cell = located != nullptr && ReadOwned(located, key, w0, w1) ? located : nullptr;
  UpdateFrom(cell, w0, w1, key, now_ns, manner, entry, mark, step);
}

template <typename MarkFunction, typename StepFunction>
TIDEGATE_INLINE void Table::UpdateFrom(Cell* cell, uint64_t w0, uint64_t w1, const Fingerprint& key,
                                       int64_t now_ns, Manner manner, Entry& entry,
                                       MarkFunction mark, StepFunction step) {
  for (;; cell = FindNear(key, w0, w1)) {
    if (cell == nullptr) [[unlikely]] {
      Slot slot;
      // A copy: a name whose address is taken could not stay in registers.
      const Fingerprint name = key;
      FindOrClaim(name, now_ns, mark(), &slot, &entry);
      cell = slot.cell;
      w0 = slot.raw.w0;
      w1 = slot.raw.w1;
    }
    const bool claimed = (w0 & kClaimBit) != 0;
    uint64_t next_w0 = 0;
    uint64_t next_w1 = 0;
    if (!step(claimed ? 0 : w0, claimed ? 0 : w1, next_w0, next_w1)) {
      // A claim must not be left behind; the key gets a fresh state.
      if (claimed) [[unlikely]]
        Replace({cell, {w0, w1}, {}}, {0, key.lo});
      return;
    }
    if (ReplaceWords(cell, w0, w1, next_w0, next_w1, manner.one_word)) [[likely]] {
      if (!manner.is_one) [[unlikely]]
        RemarkIfLarger(cell, key, mark());
      return;
    }
  }
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_TABLE_INL_H_
