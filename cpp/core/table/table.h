// A hash table of fixed capacity, laid over the caller's memory: anonymous
// memory for the memory store, a mapped file for the shared-memory store. It
// keeps a fingerprint of each key, its name, and never the key itself.
//
// Layout. A table is a run of slices of 4,096 cells; a key lives in the slice
// that the high word of its fingerprint picks in order (so a larger table holds
// the same keys in the same order), in one of up to kMostGroups groups of 8
// cells (256 bytes) that its low word lists.
//
//   memory:  | slice 0            | slice 1            | ...
//   slice:   | group 0 | group 1 | ... | group 511 |
//   group:   | cell 0 .. cell 7 |
//   cell:    | name lo, hi (16 bytes) | state w0, w1 (16 bytes) |
//   name:    112 bits of the fingerprint, and in the lowest 16 of hi a mark (mark.h)
//            and a version, 8 bits each
//
// All-zero memory is an empty table.
//
// Protocol. Both halves of a cell change by 16-byte compare-and-swap only, so
// no lock exists that a killed process could keep.
//   empty     name 0, state 0. A cell that was claimed once is never empty again, so a
//             search may stop at the first empty cell.
//   owned     name X; the state is a CellState of X (step.h).
//   claimed   state w0 has kClaimBit, the time of the claim and a nonce; w1 is the low
//             word of the fingerprint that claims. The cell belongs to no key: the key
//             of its name is being entered or removed.
// A key enters a cell by (1) state -> claimed, (2) name -> X in its next version,
// from the name that was read there while the claim stood, (3) a look through all of X's
// groups for a second cell of X, giving up if there is one, (4) state -> X's
// first state. Since names precede looks, of two threads that enter the same key at
// least one sees the other. The mark of a name may change at any time without a new version: a
// thread that is about to write over the name reads it again. The owner of a claim older than
// kClaimTimeoutNs is presumed dead; any thread may take the claim over by the same steps. If the
// owner was only held up, its step 4 finds another state, or its step 2 another version, and it
// starts over, having taken nothing from anyone. tests/model/ checks all interleavings of this.
//
// Reclaiming. Cells whose w0 lies kClockToleranceNs or more behind are full again by every reader's
// clock, and may be reclaimed. A key that is used again finds its cell faster than it makes a new
// one, so cells that have been idle for less than kKeepIdleNs are reclaimed only if no cell is
// empty. If a key's groups hold only live cells, one that was charged the least often is evicted
// and counted (Victim in table.cc). How often, is judged at the newest instant at which any call
// entered a key: at the instant of a call that was held up since, every key that was charged
// meanwhile would look as if it were charged often.
//
// Thread-safe and process-safe.
#ifndef TIDEGATE_SRC_TABLE_TABLE_H_
#define TIDEGATE_SRC_TABLE_TABLE_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "table/mark.h"
#include "tidegate/fingerprint.h"
#include "tidegate/step.h"

namespace tidegate {

struct alignas(16) Cell {
  std::atomic<uint64_t> lo;
  std::atomic<uint64_t> hi;
  std::atomic<uint64_t> w0;
  std::atomic<uint64_t> w1;
};
static_assert(sizeof(Cell) == 32);

class Table {
 public:
  static constexpr size_t kSliceCells = 4096;
  static constexpr size_t kSliceBytes = kSliceCells * sizeof(Cell);
  // At a load of 0.85 about half of the groups are full, so a key finds no place
  // in 2^-32 of all cases.
  static constexpr int kMostGroups = 32;
  static constexpr uint64_t kClaimBit = uint64_t{1} << 63;
  static constexpr int64_t kClaimTimeoutNs = 20'000'000;

  static constexpr int64_t kKeepIdleNs = 2'000'000'000;

  static constexpr uint64_t kVersionMask = 0xff;
  static constexpr int kMarkShift = 8;
  // The bits of a high word that do not belong to the key.
  static constexpr uint64_t kOwnBits = 0xffff;
  // Whether two high words belong to one key.
  static bool SameHigh(uint64_t a, uint64_t b) { return ((a ^ b) & ~kOwnBits) == 0; }
  static Mark MarkIn(uint64_t high) { return static_cast<Mark>(high >> kMarkShift); }
  static bool IsNobody(const Fingerprint& name) {
    return name.lo == kNobody.lo && SameHigh(name.hi, kNobody.hi);
  }
  // The name, in any version, of a cell whose claim was given up.
  static constexpr Fingerprint kNobody{1, 0};

  // A cell that belongs to a key, or is claimed for it, as it was read.
  struct Slot {
    Cell* cell = nullptr;
    CellState raw;    // what compare-and-swap expects
    CellState state;  // the key's state: fresh if the cell is claimed
  };

  // How calls changed the keys that have cells, for the store's counters: the names in cells change
  // by compare-and-swap, so sums of these are exact.
  struct Entry {
    int32_t keys = 0;  // keys that got a cell, minus keys that lost theirs
    int16_t idle = 0;  // keys that lost their cell and nothing else
    int16_t live = 0;  // keys that lost their usage

    bool operator==(const Entry&) const = default;
    bool changed() const { return std::bit_cast<uint64_t>(*this) != 0; }
  };

  Table() = default;
  // `memory` is zeroed or holds a table of as many slices; 16-byte aligned. `newest_ns` is 0 for a
  // new table, and shared by all who use the memory.
  Table(void* memory, size_t slices, std::atomic<int64_t>* newest_ns)
      : cells_(static_cast<Cell*>(memory)), slices_(slices), newest_ns_(newest_ns) {}

  size_t slices() const { return slices_; }
  size_t cells() const { return slices_ * kSliceCells; }
  Cell* slice(size_t i) const { return cells_ + i * kSliceCells; }

  // The slice that `key` belongs to in a table of `slices`.
  static size_t SliceOf(const Fingerprint& key, size_t slices) {
    __extension__ typedef unsigned __int128 Wide;
    return static_cast<size_t>((static_cast<Wide>(key.hi) * slices) >> 64);
  }

  // Where a search for `key` begins.
  const Cell* Home(const Fingerprint& key) const {
    return slice(SliceOf(key, slices_)) + (key.lo & (kGroups - 1)) * kGroupCells + StartOf(key);
  }

  bool IsFar() const { return slices_ >= kFarFrom; }

  // Fetches the cells there into the cache.
  __attribute__((always_inline)) void Prefetch(const Fingerprint& key) const {
    PrefetchIn(key.lo & (kGroups - 1), key);
  }

  // The same if the table is larger than the caches, for all cells that FindNear() may read and the
  // beginning of the next group: lines that are fetched together take hardly longer than one.
  __attribute__((always_inline)) void PrefetchIfFar(const Fingerprint& key) const {
    if (!IsFar()) [[likely]]
      return;
    const Cell* const group = slice(SliceOf(key, slices_)) + (key.lo & (kGroups - 1)) * kGroupCells;
    for (size_t i = 0; i < kGroupCells; i += 2) __builtin_prefetch(group + i, 1);
    const Cell* const next = slice(SliceOf(key, slices_)) + GroupAfter(key) * kGroupCells;
    __builtin_prefetch(next + StartOf(key), 1);
  }

  // Searches only the first group, where nearly all keys are, in registers. Null means unknown.
  // Defined in table_inl.h.
  Cell* FindNear(const Fingerprint& key, uint64_t& w0, uint64_t& w1) const;

  // The same for one of many keys, some time after its Prefetch(). The result is for UpdateAt(). If
  // it is null, the next group is being fetched into the cache.
  Cell* Locate(const Fingerprint& key) const;

  // Reads the cell of `key`. Returns false if there is none, or only one that is still being
  // claimed.
  bool Find(const Fingerprint& key, Slot* slot) const;

  // The same, and claims a cell if there is none, with this mark. A claim becomes the
  // key's with the first Replace(), which must follow. Adds to `entry`.
  void FindOrClaim(const Fingerprint& key, int64_t now_ns, Mark mark, Slot* slot, Entry* entry);

  // Replaces the state that `slot` read by `next`. Returns false if another thread changed it: then
  // the key must be looked up again.
  static bool Replace(const Slot& slot, const CellState& next);

  // Properties of an update that allow shortcuts.
  struct Manner {
    bool one_word = false;  // see ReplaceWords()
    bool is_one = false;    // a single unit, which leaves the mark of an existing key
  };

  // Looks `key` up, or claims a cell for it, and replaces its state by the result of `step`, again
  // each time that another thread changes it in between. `step(w0, w1, next_w0, next_w1)` returns
  // whether to write; `mark()` returns the mark of the charge, and is called only if it is needed.
  // Defined in table_inl.h.
  template <typename MarkFunction, typename StepFunction>
  void Update(const Fingerprint& key, int64_t now_ns, Manner manner, Entry& entry,
              MarkFunction mark, StepFunction step);

  // The same, beginning with the cell that Locate() found, which may be null.
  template <typename MarkFunction, typename StepFunction>
  void UpdateAt(Cell* located, const Fingerprint& key, int64_t now_ns, Manner manner, Entry& entry,
                MarkFunction mark, StepFunction step);

  // Raises the mark of a cell to `mark`, or lowers it if it is higher and at most `lowered_from`.
  // Does nothing if the cell is no longer the key's.
  static void Remark(Cell* cell, const Fingerprint& key, Mark mark, Mark lowered_from = 0);
  static void RemarkIfLarger(Cell* cell, const Fingerprint& key, Mark mark);

  // Replace() for states in registers. Limits whose states never use w1 are `one_word`, and need a
  // compare-and-swap of half the cost.
  static bool ReplaceWords(Cell* cell, uint64_t w0, uint64_t w1, uint64_t next_w0, uint64_t next_w1,
                           bool one_word);

  // Enters a key that the table does not hold, while no other thread uses it.
  Entry Put(const Fingerprint& key, const CellState& state, int64_t now_ns);

 private:
  static constexpr size_t kGroupCells = 8;
  static constexpr size_t kGroups = kSliceCells / kGroupCells;
  static constexpr size_t kFarFrom = (size_t{4} << 20) / kSliceBytes;

  // The cell in each group at which the search for `key` begins: the first of a cache line.
  static size_t StartOf(const Fingerprint& key) { return (key.lo >> 18) & (kGroupCells - 2); }

  // The group that follows the first.
  static size_t GroupAfter(const Fingerprint& key) {
    return ((key.lo & (kGroups - 1)) + Stride(key)) & (kGroups - 1);
  }
  static size_t Stride(const Fingerprint& key) { return ((key.lo >> 9) & (kGroups - 1)) | 1; }

  // Two of the four lines of a group. A prefetch never faults. Inlined, since GCC drops calls of
  // functions that only prefetch.
  __attribute__((always_inline)) void PrefetchIn(size_t group, const Fingerprint& key) const {
    const Cell* const cells = slice(SliceOf(key, slices_)) + group * kGroupCells;
    __builtin_prefetch(cells + StartOf(key), 1);
    __builtin_prefetch(cells + ((StartOf(key) + 2) & (kGroupCells - 1)), 1);
  }

  // Reads the state of a cell. Returns false if it is not the key's, or only claimed for it.
  static bool ReadOwned(const Cell* cell, const Fingerprint& key, uint64_t& w0, uint64_t& w1);
  template <typename MarkFunction, typename StepFunction>
  void UpdateFrom(Cell* cell, uint64_t w0, uint64_t w1, const Fingerprint& key, int64_t now_ns,
                  Manner manner, Entry& entry, MarkFunction mark, StepFunction step);
  template <typename Visit>
  void Walk(const Fingerprint& key, Visit visit) const;
  bool HasAnother(const Fingerprint& key, const Cell* mine) const;
  bool Claim(const Fingerprint& key, int64_t now_ns, Mark mark, Slot* slot, Entry* entry);
  // The instant at which a call of this instant judges live cells.
  int64_t JudgedAt(int64_t now_ns) const;

  Cell* cells_ = nullptr;
  size_t slices_ = 0;
  std::atomic<int64_t>* newest_ns_ = nullptr;  // the newest instant at which a key was entered
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_TABLE_H_
