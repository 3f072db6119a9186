// The quota of a key over a Table, without memory of its own and without a lock.
//
// The state (quotas/step.h) is longer than a cell, so it is written aside: packed, as a record of
// eight bytes in w1 of each of a few cells, whose names follow from the key and a random number.
// The upper half of w1 of the key's own cell, its head, is that number; the lower half counts the
// units that were charged since the record was written. So a charge is a compare-and-swap of the
// head. Whatever else changes the state (a new period, a top-up, a soft event) writes a new record
// first, then replaces the head, and frees the old record; whoever was slower begins anew. A record
// never changes. w0 of all these cells is the instant from which the state is as a fresh one, so
// the table reclaims them like all others.
//
// Process-safe: at every instruction the head leads to a whole record. A process that dies between
// two of them leaves a record that nothing leads to, until its instant has passed. If the table is
// full and evicts a cell of a record, the key is as a new one, and the loss is counted.
#ifndef TIDEGATE_SRC_TABLE_QUOTA_CELLS_H_
#define TIDEGATE_SRC_TABLE_QUOTA_CELLS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "table/table.h"
#include "tidegate/fingerprint.h"
#include "tidegate/quota.h"

namespace tidegate {

class QuotaCells {
 public:
  // `entered` is called for cells that were made.
  QuotaCells(Table& table, const QuotaTerms& terms, const Fingerprint& key, int64_t now_ns,
             absl::FunctionRef<void(const Table::Entry&)> entered)
      : table_(table), terms_(terms), key_(key), now_ns_(now_ns), entered_(entered) {}

  QuotaState Read() const;
  void Update(absl::FunctionRef<bool(QuotaState&)> work);
  void Reset();

 private:
  // The head, and the state that it leads to.
  struct View {
    CellState head;  // 0, 0: none
    Mark mark = 0;
    QuotaState written;  // by the record
    QuotaState state;
    uint64_t record() const { return head.w1 >> kUnitBits; }
    int64_t units() const { return static_cast<int64_t>(head.w1 & 0xffffffff); }
  };
  static constexpr int kUnitBits = 32;
  View Look() const;
  Fingerprint NameOf(uint64_t record, size_t part) const;
  // The bytes of a record; empty if a part of it is gone.
  std::string BytesOf(uint64_t record) const;
  void WriteRecord(uint64_t record, std::string_view bytes, uint64_t until_ns);
  void FreeRecord(uint64_t record);
  // Replaces the head if it is still the one of the view.
  bool ReplaceHead(const View& view, const CellState& next);
  // Changes the head alone, if that can make it lead to `state`. Nothing if it cannot; else whether
  // it was still the one of the view.
  std::optional<bool> CountUnits(const View& view, const QuotaState& state);

  Table& table_;
  const QuotaTerms& terms_;
  const Fingerprint key_;
  const int64_t now_ns_;
  const absl::FunctionRef<void(const Table::Entry&)> entered_;
  Mark mark_ = 0;  // of the cells that are written
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_QUOTA_CELLS_H_
