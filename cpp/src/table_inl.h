// The part of Table that every hit takes.
#ifndef TIDEGATE_SRC_TABLE_INL_H_
#define TIDEGATE_SRC_TABLE_INL_H_

#include "cas16.h"
#include "tidegate/table.h"

namespace tidegate {

inline bool Table::FindAtHome(const Fingerprint& key, Slot* slot) const {
  auto* const cell = const_cast<Cell*>(Home(key));
  // The state first, then whose it is, then whether it is still that.
  const uint64_t w0 = cell->w0.load(std::memory_order_acquire);
  const uint64_t w1 = cell->w1.load(std::memory_order_acquire);
  if (cell->lo.load(std::memory_order_acquire) != key.lo ||
      cell->hi.load(std::memory_order_acquire) != key.hi ||
      cell->w0.load(std::memory_order_acquire) != w0 || (w0 & kClaimBit) != 0) {
    return false;
  }
  slot->cell = cell;
  slot->raw = slot->state = {w0, w1};
  return true;
}

inline bool Table::ReplaceInline(const Slot& slot, const CellState& next) {
  return CompareAndSwap(&slot.cell->w0, {slot.raw.w0, slot.raw.w1}, {next.w0, next.w1});
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_INL_H_
