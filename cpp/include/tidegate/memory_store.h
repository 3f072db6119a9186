// The store of one process: Tables that grow in small steps, and rings for the
// algorithms that remember single admissions.
//
//   auto store = MemoryStore::Create({.capacity = 1'000'000});
//
// Memory. One-word algorithms take 32 bytes a cell, at loads of 0.68 to 0.85:
// 38 to 48 bytes a key. `capacity` keys fit without loss; of further ones each
// displaces an idle key, or else the least often charged of its neighbours
// (StoreStats::evicted_live). Nothing is preallocated.
//
// Growth. A table that is fuller than 0.79 is replaced by one a quarter larger
// (or smaller, where most of its keys are idle), one slice of 4,096 cells at a
// time, by the threads that call, so that no call does more than a few hundred
// microseconds of it. Where a table is so large that its pages take milliseconds to
// come, a slice waits for a thread that fetches them (pages.h).
//
// Thread-safe. Calls on cells are lock-free but for those moments; calls on
// rings lock one of many mutexes. fork() waits for calls that are under way, so a
// child finds everything whole.
#ifndef TIDEGATE_MEMORY_STORE_H_
#define TIDEGATE_MEMORY_STORE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tidegate/gate.h"
#include "tidegate/pages.h"
#include "tidegate/store.h"
#include "tidegate/table.h"

namespace tidegate {

class LogTable;

struct MemoryOptions {
  static constexpr int64_t kDefaultCapacity = int64_t{1} << 24;
  static constexpr int64_t kMaxCapacity = int64_t{1} << 32;
  int64_t capacity = kDefaultCapacity;  // keys, 1 to kMaxCapacity
};

class MemoryStore final : public Store {
 public:
  static absl::StatusOr<std::shared_ptr<MemoryStore>> Create(const MemoryOptions& options = {});
  ~MemoryStore() override;

  std::string_view kind() const override { return "memory"; }
  BoundLimit Bind(const Limit& limit, std::string_view scope) const override;
  Decision Hit(const Charge& charge, const Moment& moment) override;
  Decision Peek(const Charge& charge, const Moment& moment) override;
  int64_t Refund(const Charge& charge, const Moment& moment) override;
  void Reset(const Charge& charge, const Moment& moment) override;
  void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) override;
  void HitMany(absl::Span<const Charge> charges, const Moment& moment, Verdict* verdicts) override;
  StoreStats stats() const override;

 private:
  friend struct CellCalls;

  MemoryStore(const MemoryOptions& options, Pages first);

  // Windows, logs and costs beyond the capacity.
  Decision HitOther(const Charge& charge, const Fingerprint& key, const Moment& moment);
  Decision HitLog(const Charge& charge, const Fingerprint& key, const Moment& moment);
  __attribute__((always_inline)) Gate::Pass Enter() { return Gate::Pass(gate_); }
  // The table that holds `key` now. Within a pass.
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
  // Counts a new cell, and now and then does a step of growth. Not in a pass.
  void Entered(const Table::Entry& entry, int64_t now_ns);
  void Maintain(int64_t now_ns);
  void BeginMove(int64_t now_ns);
  int64_t NewInNext() const;
  bool IsMoveDue() const;
  void MoveSlice(int64_t now_ns);
  // Whether a move into the first `slices` of `to` is to wait for their pages.
  bool IsToWait(Pages& to, size_t slices);
  bool BeginEnlarging();
  void EnlargeSlice(int64_t now_ns);
  void MoveCells(Cell* cells, Table& to, int64_t now_ns);
  void FinishMove();
  double KeptShare(size_t slice, int64_t now_ns) const;
  // Slices of a new table for `keys`.
  size_t WantedFor(double keys) const;

  const Hasher hasher_;
  const size_t most_slices_;
  mutable Gate gate_;
  // Changed only while alone in the gate.
  Pages current_;
  Pages next_;  // holds what current_'s first moved_slices_ slices held
  size_t moved_slices_ = 0;
  Pages larger_;  // to be next_, which turned out too small; holds its first enlarged_slices_
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
};

}  // namespace tidegate

#endif  // TIDEGATE_MEMORY_STORE_H_
