// The cells of a MemoryStore's tables, which Limiter steps without a virtual call.
#ifndef TIDEGATE_SRC_STORES_MEMORY_CELLS_H_
#define TIDEGATE_SRC_STORES_MEMORY_CELLS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/gate.h"
#include "base/pages.h"
#include "table/cell_store.h"
#include "table/table.h"
#include "tidegate/memory_store.h"

namespace tidegate {

class LogTable;
class QuotaTable;

class MemoryCells final : public CellStore<MemoryCells, MemoryStore> {
 public:
  MemoryCells(const MemoryOptions& options, Pages first);
  ~MemoryCells() override;

  BoundLimit Bind(const Limit& limit, std::string_view scope) const override;
  Decision Hit(const Charge& charge, const Moment& moment) override;
  Decision Peek(const Charge& charge, const Moment& moment) override;
  Decision ChargeUsed(Op op, const Charge& charge, const Moment& moment) override;
  int64_t Refund(const Charge& charge, const Moment& moment) override;
  void Reset(const Charge& charge, const Moment& moment) override;
  void Forget(const Charge& charge, const Moment& moment) override;
  void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) override;
  int64_t Extend(absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment) override;
  absl::Status Accepts(const Limit&) const override { return absl::OkStatus(); }
  absl::StatusOr<QuotaStatus> StatusOf(const Charge& charge, const Moment& moment) override;
  absl::Status TopUp(const Charge& charge, const QuotaTopUp& top_up, const Moment& moment) override;
  absl::Status BringForward(const Charge& charge, const Moment& moment) override;
  StoreStats stats() const override;
  void Clear() override;

 private:
  friend struct CellCalls;

  // Windows, logs and costs beyond the capacity.
  Decision HitOther(const Charge& charge, const Fingerprint& key, const Moment& moment);
  Decision HitLog(const Charge& charge, const Fingerprint& key, const Moment& moment);
  // Defined in memory_quotas.cc.
  Decision HitQuota(const Charge& charge, const Fingerprint& key, const Moment& moment);
  Decision PeekAtQuota(const Charge& charge, const Fingerprint& key, const Moment& moment);
  Decision ChargeQuota(Op op, const Charge& charge, const Fingerprint& key, const Moment& moment);
  int64_t RefundToQuota(const Charge& charge, const Fingerprint& key, const Moment& moment);
  void ResetQuota(const Charge& charge, const Moment& moment);
  __attribute__((always_inline)) Gate::Pass Enter() { return Gate::Pass(gate_); }
  // The table that currently holds `key`. Call it within a pass.
  Table& TableOf(const Fingerprint& key) {
    Table& table = current_.table();
    if (next_.ok() && Table::SliceOf(key, table.slices()) < moved_slices_) [[unlikely]] {
      Table& next = next_.table();
      return larger_.ok() && Table::SliceOf(key, next.slices()) < enlarged_slices_ ? larger_.table()
                                                                                   : next;
    }
    return table;
  }
  __attribute__((always_inline)) Gate::QuickPass EnterQuickly(int own_number) {
    return Gate::QuickPass(gate_, own_number);
  }
  bool IsTendingDue(int64_t now_ns) const {
    return now_ns >= tend_at_ns_.load(std::memory_order_relaxed);
  }
  bool IsDue(const Table::Entry& entry, int64_t now_ns) const {
    return entry.changed() || IsTendingDue(now_ns);
  }
  // Counts a new cell, and occasionally does a step of growth. Not within a pass.
  void Entered(const Table::Entry& entry, int64_t now_ns);
  void Maintain(int64_t now_ns);
  void BeginMove(int64_t now_ns);
  int64_t NewInNext() const;
  bool IsMoveDue() const;
  void MoveSlice(int64_t now_ns);
  // Whether a move into the first `slices` of `to` must wait for their pages.
  bool IsToWait(Pages& to, size_t slices);
  bool BeginEnlarging();
  void EnlargeSlice(int64_t now_ns);
  void MoveCells(Cell* cells, Table& to, int64_t now_ns);
  void FinishMove();
  double KeptShare(size_t slice, int64_t now_ns) const;
  // The slices of a new table for `keys`.
  size_t WantedFor(double keys) const;

  const Hasher hasher_;
  const size_t most_slices_;
  mutable Gate gate_;
  // Changed only while alone in the gate.
  Pages current_;
  Pages next_;  // holds what current_'s first moved_slices_ slices held
  size_t moved_slices_ = 0;
  Pages larger_;  // replaces next_, which turned out too small; holds its first enlarged_slices_
  size_t enlarged_slices_ = 0;
  int64_t next_used_ = 0;  // cells of next_, or else larger_, that hold a key, about

  std::atomic<int64_t> used_{0};  // cells that hold a key, in both tables
  std::atomic<int64_t> grow_at_{0};
  std::atomic<int64_t> tend_at_ns_{0};  // when to look at the next slice
  std::atomic<size_t> tended_{0};       // slices looked at in this round
  std::atomic<int64_t> kept_seen_{0};   // cells worth keeping in this round
  std::atomic<int64_t> evictions_{0};
  std::atomic<int64_t> evicted_live_{0};
  std::unique_ptr<LogTable> logs_;
  std::unique_ptr<QuotaTable> quotas_;
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_STORES_MEMORY_CELLS_H_
