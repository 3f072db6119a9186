#include "table/table.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "table/table_inl.h"

namespace tidegate {
namespace {

// How often a call checks whether a claim has ended, yielding in between.
constexpr int kMostTableTries = 100;
// The newest instant is kept this exactly: keys may be entered by many processes at once.
constexpr int64_t kNewestStepNs = 100'000;
// A call whose instant lies further behind the newest one has another clock, or it was set back.
constexpr int64_t kMostHeldUpNs = 60'000'000'000;

enum class Reading { kOwned, kClaimed, kOthers };

bool IsClaim(uint64_t w0) { return (w0 & Table::kClaimBit) != 0; }

// The low bits of a claim's time, about four microseconds, are replaced by a nonce: two callers of
// one key at one instant must not take each other's claims for their own.
constexpr uint64_t kNonceMask = 0xfff;
uint64_t Nonce() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_nsec);
#endif
}

bool IsStale(uint64_t claim_w0, int64_t now_ns) {
  const auto since = static_cast<int64_t>(claim_w0 & ~Table::kClaimBit);
  const int64_t age = now_ns - since;
  return age > Table::kClaimTimeoutNs || age < -Table::kClaimTimeoutNs;
}

bool IsIdle(uint64_t w0, int64_t now_ns, int64_t for_ns) {
  return w0 == 0 || static_cast<int64_t>(w0) <= now_ns - for_ns;
}

bool Holds(const Cell& cell, const Fingerprint& key) {
  return cell.lo.load(std::memory_order_acquire) == key.lo &&
         Table::SameHigh(cell.hi.load(std::memory_order_acquire), key.hi);
}

uint64_t HighWith(uint64_t high, Mark mark, uint64_t version) {
  return (high & ~Table::kOwnBits) | uint64_t{mark} << Table::kMarkShift |
         (version & Table::kVersionMask);
}

// The name to write over `before`. It has the next version, so that a call that still expects
// `before` fails, even if the same key has come back.
Fingerprint NameOver(const Fingerprint& before, const Fingerprint& key, Mark mark) {
  return {key.lo, HighWith(key.hi, mark, before.hi + 1)};
}

bool IsEmpty(const Cell& cell) {
  return cell.lo.load(std::memory_order_acquire) == 0 &&
         cell.hi.load(std::memory_order_acquire) == 0 &&
         cell.w0.load(std::memory_order_acquire) == 0;
}

CellState Load(const Cell& cell) {
  for (;;) {
    const uint64_t w0 = cell.w0.load(std::memory_order_acquire);
    const uint64_t w1 = cell.w1.load(std::memory_order_acquire);
    if (cell.w0.load(std::memory_order_acquire) == w0) return {w0, w1};
  }
}

// Reads the state of a cell that held `key` a moment ago, together with proof
// that it still did when the state was read.
Reading Read(const Cell& cell, const Fingerprint& key, CellState* state) {
  *state = Load(cell);
  if (!Holds(cell, key) || cell.w0.load(std::memory_order_acquire) != state->w0) [[unlikely]] {
    return Reading::kOthers;
  }
  return IsClaim(state->w0) ? Reading::kClaimed : Reading::kOwned;
}

bool ReplaceState(Cell* cell, const CellState& from, const CellState& to) {
  return CompareAndSwap(&cell->w0, {from.w0, from.w1}, {to.w0, to.w1});
}

bool ReplaceKey(Cell* cell, const Fingerprint& from, const Fingerprint& to) {
  return CompareAndSwap(&cell->lo, {from.lo, from.hi}, {to.lo, to.hi});
}

// Chooses the live cell to evict for a new key: one of the lowest rank. Only a limited number of
// cells are compared; otherwise a new key, charged only once so far, would be evicted for the next
// key anywhere near. Of equal cells the nearest to idle is evicted, but again only of a limited
// number: otherwise a key that was charged little would always be evicted before its next charge if
// its neighbours were charged much. Nobody can predict which cells come first, since that depends
// on the key's fingerprint.
class Victim {
 public:
  void Consider(Cell* cell, const CellState& state, int64_t judged_ns) {
    if (++judged_ > kMostJudged) return;
    const Mark mark = Table::MarkIn(cell->hi.load(std::memory_order_acquire));
    const int rank = RankOf(mark, state, judged_ns);
    if (slot_.cell != nullptr) {
      if (rank > rank_) return;
      if (rank < rank_) {
        equals_ = 0;
      } else if (++equals_ >= kMostEquals || state.w0 >= slot_.raw.w0) {
        return;
      }
    }
    slot_ = {cell, state, {}};
    rank_ = rank;
  }

  const Table::Slot& slot() const { return slot_; }

 private:
  static constexpr int kMostJudged = 64;
  static constexpr int kMostEquals = 3;

  Table::Slot slot_;
  int rank_ = 0;
  int equals_ = 0;
  int judged_ = 0;
};

}  // namespace

// Calls `visit` with each cell that may hold `key`, in order, up to the first
// empty cell (which it also gets), until it returns false.
template <typename Visit>
inline void Table::Walk(const Fingerprint& key, Visit visit) const {
  Cell* const base = slice(SliceOf(key, slices_));
  size_t group = key.lo & (kGroups - 1);
  const size_t stride = Stride(key);
  const size_t start = StartOf(key);
  for (int n = 0; n < kMostGroups; ++n) {
    Cell* const cells = base + group * kGroupCells;
    for (size_t i = 0; i < kGroupCells; ++i) {
      if (!visit(&cells[(start + i) & (kGroupCells - 1)])) return;
    }
    group = (group + stride) & (kGroups - 1);
  }
}

bool Table::Find(const Fingerprint& key, Slot* slot) const {
  bool found = false;
  bool again = true;
  while (again) {
    again = false;
    Walk(key, [&](Cell* cell) {
      if (Holds(*cell, key)) {
        const Reading reading = Read(*cell, key, &slot->raw);
        if (reading == Reading::kOthers) {
          again = true;
        } else if (reading == Reading::kOwned) {
          slot->cell = cell;
          slot->state = slot->raw;
          found = true;
        }
        return false;
      }
      return !IsEmpty(*cell);
    });
  }
  return found;
}

bool Table::HasAnother(const Fingerprint& key, const Cell* mine) const {
  bool another = false;
  Walk(key, [&](Cell* cell) {
    if (cell != mine && Holds(*cell, key)) another = true;
    return !another && !IsEmpty(*cell);
  });
  return another;
}

// Steps 1 to 3 of the protocol, on slot->cell in the state slot->raw.
bool Table::Claim(const Fingerprint& key, int64_t now_ns, Mark mark, Slot* slot, Entry* entry) {
  const CellState claim{
      kClaimBit | (static_cast<uint64_t>(now_ns) & ~kNonceMask) | (Nonce() & kNonceMask), key.lo};
  Cell* const cell = slot->cell;
  if (!ReplaceState(cell, slot->raw, claim)) return false;
  Fingerprint before;
  Fingerprint name;
  // Repeated if the mark of the name changed meanwhile.
  do {
    before = {cell->lo.load(std::memory_order_acquire), cell->hi.load(std::memory_order_acquire)};
    // Another caller has taken the claim over, and the name may be that caller's.
    if (Load(*cell) != claim) [[unlikely]]
      return false;
    name = NameOver(before, key, mark);
  } while (!ReplaceKey(cell, before, name));
  if (before == Fingerprint{} || IsNobody(before)) {
    ++entry->keys;
  } else if (IsClaim(slot->raw.w0)) {
    // A key that was being entered loses nothing, and a key that was being removed was idle.
    if (slot->raw.w1 != before.lo && before.lo != key.lo) ++entry->idle;
  } else {
    ++(IsIdle(slot->raw.w0, now_ns, kClockToleranceNs) ? entry->idle : entry->live);
  }
  if (HasAnother(key, cell)) {
    // The name first: a cell of this key must never be seen owned and fresh.
    while (!ReplaceKey(cell, name, NameOver(name, Table::kNobody, 0))) {
      const uint64_t high = cell->hi.load(std::memory_order_acquire);
      const bool is_mine = cell->lo.load(std::memory_order_acquire) == name.lo &&
                           high == HighWith(name.hi, MarkIn(high), name.hi);
      if (!is_mine) return false;
      name.hi = high;
    }
    --entry->keys;
    ReplaceState(cell, claim, {0, 0});
    return false;
  }
  slot->raw = claim;
  slot->state = {};
  return true;
}

int64_t Table::JudgedAt(int64_t now_ns) const {
  const int64_t newest_ns = newest_ns_->load(std::memory_order_relaxed);
  if (now_ns - newest_ns >= kNewestStepNs || newest_ns - now_ns > kMostHeldUpNs) {
    newest_ns_->store(now_ns, std::memory_order_relaxed);
    return now_ns;
  }
  return std::max(now_ns, newest_ns);
}

void Table::FindOrClaim(const Fingerprint& key, int64_t now_ns, Mark mark, Slot* slot,
                        Entry* entry) {
  // Of a key that is there, no other cell needs to be judged.
  if (Find(key, slot)) return;
  for (int tries = 0;; ++tries) {
    if (tries > 16) sched_yield();
    // `now` does not advance within a call, so a claim is also taken over after many tries, which
    // is always safe.
    const bool patient = tries < kMostTableTries;
    const auto is_stale = [&](uint64_t w0) { return !patient || IsStale(w0, now_ns); };
    Slot idle;   // for long
    Slot spare;  // idle, but not for long
    Slot empty;
    Victim victim;
    bool found = false;
    bool wait = false;
    const int64_t judged_ns = JudgedAt(now_ns);
    Walk(key, [&](Cell* cell) {
      if (Holds(*cell, key)) {
        const Reading reading = Read(*cell, key, &slot->raw);
        slot->cell = cell;
        if (reading == Reading::kOwned) {
          slot->state = slot->raw;
          found = true;
        } else if (reading == Reading::kClaimed && is_stale(slot->raw.w0)) {
          idle = *slot;
        } else {
          wait = true;
        }
        return false;
      }
      const CellState state = Load(*cell);
      if (IsClaim(state.w0)) {
        if (is_stale(state.w0)) {
          if (idle.cell == nullptr) idle = {cell, state, {}};
        } else if (state.w1 == key.lo) {
          wait = true;  // another call is entering the same key
          return false;
        }
        return true;
      }
      if (state.w0 == 0 && IsEmpty(*cell)) {
        empty = {cell, state, {}};
        return false;
      }
      if (IsIdle(state.w0, now_ns, kKeepIdleNs)) {
        if (idle.cell == nullptr) idle = {cell, state, {}};
      } else if (IsIdle(state.w0, now_ns, kClockToleranceNs)) {
        if (spare.cell == nullptr) spare = {cell, state, {}};
      } else {
        victim.Consider(cell, state, judged_ns);
      }
      return true;
    });
    if (found) [[likely]]
      return;
    if (wait) continue;
    const Slot* const choices[] = {&idle, &empty, &spare, &victim.slot()};
    for (const Slot* choice : choices) {
      if (choice->cell == nullptr) continue;
      *slot = *choice;
      if (Claim(key, now_ns, mark, slot, entry)) return;
      break;
    }
  }
}

Table::Entry Table::Put(const Fingerprint& key, const CellState& state, int64_t now_ns) {
  Cell* empty = nullptr;
  Walk(key, [&](Cell* cell) {
    if (IsEmpty(*cell)) empty = cell;
    return empty == nullptr;
  });
  if (empty == nullptr) [[unlikely]] {
    Slot slot;
    Entry entry;
    FindOrClaim(key, now_ns, MarkIn(key.hi), &slot, &entry);
    Replace(slot, state);
    return entry;
  }
  empty->lo.store(key.lo, std::memory_order_relaxed);
  empty->hi.store(key.hi, std::memory_order_relaxed);
  empty->w0.store(state.w0, std::memory_order_relaxed);
  empty->w1.store(state.w1, std::memory_order_relaxed);
  return {.keys = 1};
}

void Table::Remark(Cell* cell, const Fingerprint& key, Mark mark, Mark lowered_from) {
  for (;;) {
    const Fingerprint name{key.lo, cell->hi.load(std::memory_order_acquire)};
    const Mark before = MarkIn(name.hi);
    if (before == mark || before > std::max(mark, lowered_from) || !Holds(*cell, key)) return;
    if (ReplaceKey(cell, name, {name.lo, HighWith(name.hi, mark, name.hi)})) return;
  }
}

bool Table::Replace(const Slot& slot, const CellState& next) {
  return ReplaceState(slot.cell, slot.raw, next);
}

}  // namespace tidegate
