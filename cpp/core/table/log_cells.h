// Logs over a Table: the state of a sliding-log or concurrency key without memory of its own and
// without a lock.
//
// A key of a limit of N units has places for N ends (log.h) and never more, which
// is what bounds it: place i is half of cell i/2 of the key, w0 being the later end
// of the two and w1 the earlier. A place whose end is not after `now` is free. A
// hit takes as many free places as it costs, each by a compare-and-swap of its cell; if other calls
// were faster, it gives back what it took. Ends are unordered over the places: a decision sorts a
// copy and uses log.h. A call takes its first place only if that place is as it was read: else
// other calls came in between, and it reads again.
//
// Since w0 is the later end, the table can reclaim these cells like all others. Four cells of a key
// share their groups in the table, so that a look at them comes down to few cache lines. All of it
// takes O(N).
//
// All cells have the mark of the whole log (mark.h), so that the table never evicts some of them
// for a key that was charged less. A call that raises it does so before its units are there, and
// one that lowers it, a large charge, afterwards: a slow call never leaves a mark that is too low.
//
// A key that owes has a further cell, with the newest end that a debt has given it and the code of
// debt.h. It is read only if an end lies more than a period ahead. A call that changes a debt
// changes each place, so only one call at a time does so: it marks that cell as its own, raises the
// code before it moves ends, and gives the cell free. Others wait, but not for ever, as it may have
// died: a call that is interrupted charges a part.
//
// Process-safe: at every instruction each cell holds only ends of admitted units.
#ifndef TIDEGATE_SRC_TABLE_LOG_CELLS_H_
#define TIDEGATE_SRC_TABLE_LOG_CELLS_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "algorithms/log.h"
#include "table/table.h"
#include "tidegate/decision.h"
#include "tidegate/fingerprint.h"
#include "tidegate/store.h"

namespace tidegate {

class LogCells {
 public:
  // `entered` is called for cells that were made.
  LogCells(Table& table, const Limit& limit, const Fingerprint& key,
           absl::FunctionRef<void(const Table::Entry&)> entered)
      : table_(table),
        limit_(limit),
        key_(key),
        cells_((static_cast<size_t>(limit.count()) + 1) / 2),
        entered_(entered) {}

  Decision Hit(const Moment& moment, int64_t cost);
  Decision Peek(const Moment& moment, int64_t cost) const;
  // Like StepLogCharge() in log.h.
  Decision Charge(const Moment& moment, int64_t cost, int64_t most_debt);
  int64_t Refund(const Moment& moment, int64_t cost);
  void Release(int64_t admitted_ns, const Moment& moment, int64_t cost);
  // Like ExtendLog() in log.h.
  bool Extend(int64_t admitted_ns, const Moment& moment, int64_t cost);
  void Reset();

 private:
  // The key of a cell: that of its block, in which the cells differ by few bits.
  Fingerprint KeyOf(size_t cell) const { return InBlock(BlockOf(cell), cell); }
  Fingerprint BlockOf(size_t cell) const;
  static Fingerprint InBlock(Fingerprint block, size_t cell);
  // Calls visit(cell, key) for all cells in order. Computes each block once.
  template <typename Visit>
  void ForEachKey(Visit visit) const;
  bool HasOnePlace(size_t cell) const { return limit_.count() % 2 == 1 && cell + 1 == cells_; }
  struct View {
    InstantRing ring;      // the ends after `now`, in order
    size_t free = 0;       // the first cell that has a free place, if any has
    int64_t beside = 0;    // the end in the other place of that cell, 0 if that is free too
    bool expired = false;  // whether some ends are not after `now`
    Mark mark = 0;         // the highest of the cells that the key has
    Mark least = 255;      // the lowest of them
  };
  View Read(int64_t now_ns) const;
  // Adds `cost` units that end there to the `alive` ones of `view`, or none and returns false: then
  // the key must be read again.
  bool Add(const View& view, size_t alive, int64_t end, int64_t cost, int64_t now_ns, int tries);
  // Takes `cost` free places, or none. New cells get this mark. If `as_read`, the first place must
  // be as it was in `view`.
  bool Take(const View& view, int64_t end, int64_t cost, int64_t now_ns, Mark mark, bool as_read);
  // Raises lower marks of the key's cells to `mark`, and lowers higher ones that are at most
  // `lowered_from`.
  void Remark(Mark mark, Mark lowered_from = 0);
  // Like InstantRing::Shift(); `ends` are those that count, in order.
  void Shift(const InstantRing& ends, int64_t periods, int64_t part, int64_t now_ns);
  // The code of the debt, which Read() puts into the ring.
  uint64_t ReadDebtCode(int64_t now_ns) const;
  // Makes the further cell this call's own; returns what its second word is then.
  uint64_t EnterDebt(int64_t now_ns);
  // Writes the cell, and gives it free if `leave`. Returns false if it is no longer this call's.
  bool WriteDebt(uint64_t mine, int64_t newest, uint64_t code, int64_t now_ns, bool leave);
  // Charges what finds no place. Returns false if some has found one, or another call interfered.
  bool ChargeOwed(int64_t now_ns, int64_t cost, int64_t most_debt, Decision* decision);
  // Gives back units that are owed, `cost` at most; returns how many.
  int64_t RefundDebt(int64_t now_ns, int64_t cost);
  // Moves ends that lie too far ahead back.
  void Clamp(const InstantRing& ring, int64_t now_ns);
  // Gives at most `most` places with this end another one, 0 to free them; returns how many.
  int64_t Move(int64_t end, int64_t to, int64_t most);
  int64_t Free(int64_t end, int64_t most) { return Move(end, 0, most); }
  // Does so with the `cost` units of a lease that began at `admitted_ns`, unless it has ended.
  int64_t MoveLease(int64_t admitted_ns, int64_t to, const Moment& moment, int64_t cost);
  // Changes each cell that holds an end after `above` by `change`.
  template <typename Change>
  void ForEach(int64_t above, Change change);

  Table& table_;
  const Limit& limit_;
  const Fingerprint key_;
  const size_t cells_;
  const absl::FunctionRef<void(const Table::Entry&)> entered_;
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_LOG_CELLS_H_
