// The quota of a key in the cells of a Table, without other memory and without a lock.
//
// The state (quotas/step.h) is longer than a cell, so it is packed into a separate record: eight
// bytes in w1 of each of a few cells, whose names follow from the key and a random number. The
// key's own cell is the head: the upper half of its w1 is that random number, and the lower half
// counts the units charged since the record was written. So a charge is a compare-and-swap of the
// head. Every other change of the state (a new period, a top-up, a soft event) first writes a new
// record, then replaces the head, and frees the old record; a slower thread starts again. A record
// never changes. w0 of all these cells is the instant from which the state equals a fresh one, so
// the table reclaims them like all others.
//
// Process-safe: at every instruction the head points to a complete record. A process that dies in
// between leaves an orphaned record, until its instant has passed. If the table is full and evicts
// a cell of a record, the key becomes a new key, and the loss is counted.
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
  // `entered` is called for cells that were created.
  QuotaCells(Table& table, const QuotaTerms& terms, const Fingerprint& key, int64_t now_ns,
             absl::FunctionRef<void(const Table::Entry&)> entered)
      : table_(table), terms_(terms), key_(key), now_ns_(now_ns), entered_(entered) {}

  QuotaState Read() const;
  void Update(absl::FunctionRef<bool(QuotaState&)> work);
  void Forget();

 private:
  // The head, and the state that it points to.
  struct View {
    CellState head;  // 0, 0 if there is no head
    Mark mark = 0;
    QuotaState written;  // the state in the record
    QuotaState state;
    uint64_t record() const { return head.w1 >> kUnitBits; }
    int64_t units() const { return static_cast<int64_t>(head.w1 & 0xffffffff); }
  };
  static constexpr int kUnitBits = 32;
  View Look() const;
  Fingerprint NameOf(uint64_t record, size_t part) const;
  // Reads the bytes of a record; empty if a part of it was evicted.
  std::string BytesOf(uint64_t record) const;
  void WriteRecord(uint64_t record, std::string_view bytes, uint64_t until_ns);
  void FreeRecord(uint64_t record);
  // Replaces the head if it is still the head of the view.
  bool ReplaceHead(const View& view, const CellState& next);
  // Changes only the head, if that is enough to reach `state`. Returns nothing if it is not enough;
  // otherwise whether the head was still the head of the view.
  std::optional<bool> CountUnits(const View& view, const QuotaState& state);

  Table& table_;
  const QuotaTerms& terms_;
  const Fingerprint key_;
  const int64_t now_ns_;
  const absl::FunctionRef<void(const Table::Entry&)> entered_;
  Mark mark_ = 0;  // the mark of the cells to write
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_QUOTA_CELLS_H_
