#include "table/log_cells.h"

#include <sched.h>

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "table/neighbours.h"
#include "table/table_inl.h"

namespace tidegate {
namespace {

constexpr int kMostLogTries = 1000;
// So often a call that others overtake reads again; then it takes whatever place is free.
constexpr int kMostReads = 64;
// So often a call waits a millisecond for another one that changes a debt, before it takes that for
// dead.
constexpr int kMostWaits = 200;
// The second word of the further cell: the code of a debt, whether a call is changing the debt, and
// how many calls have done so.
constexpr uint64_t kChanging = kMostDebtCode + 1;
constexpr uint64_t kOneCall = 2 * kChanging;

// The two ends in a cell, the later first. In a fresh cell w1 is no end.
struct Pair {
  int64_t later;
  int64_t earlier;
};

Pair PairOf(uint64_t w0, uint64_t w1, bool one_place) {
  return {static_cast<int64_t>(w0), w0 == 0 || one_place ? 0 : static_cast<int64_t>(w1)};
}

CellState StateOf(const Pair& pair, const Fingerprint& cell_key) {
  const int64_t later = std::max<int64_t>({pair.later, pair.earlier, 0});
  const int64_t earlier = std::max<int64_t>(std::min(pair.later, pair.earlier), 0);
  // The state after a reset: a fresh one that identifies this key.
  if (later == 0) return {0, cell_key.lo};
  return {static_cast<uint64_t>(later), static_cast<uint64_t>(earlier)};
}

// The end of a cell's pair that counts, of which one place at least is free.
int64_t BesideIn(const Pair& pair, int64_t now_ns) { return pair.later > now_ns ? pair.later : 0; }

}  // namespace

Fingerprint LogCells::BlockOf(size_t cell) const {
  const uint64_t block = cell / kNeighbours + 1;
  Fingerprint f{Mix(key_.lo ^ (block * 0x9e3779b97f4a7c15)),
                Mix(key_.hi + block * 0xd1b54a32d192ed03)};
  if (f.hi < Hasher::kLeastHigh) f.hi = Hasher::kLeastHigh;
  return f;
}

Fingerprint LogCells::InBlock(Fingerprint block, size_t cell) {
  // Only bits that do not choose the group differ.
  block.lo ^= static_cast<uint64_t>(cell % kNeighbours) << 40;
  return block;
}

template <typename Visit>
void LogCells::ForEachKey(Visit visit) const {
  Fingerprint block;
  for (size_t i = 0; i < cells_; ++i) {
    if (i % kNeighbours == 0) block = BlockOf(i);
    visit(i, InBlock(block, i));
  }
}

LogCells::View LogCells::Read(int64_t now_ns) const {
  absl::InlinedVector<int64_t, 128> ends;
  View view;
  view.free = cells_;
  ForEachKey([&](size_t i, const Fingerprint& key) {
    Table::Slot slot;
    const bool found = table_.Find(key, &slot);
    const Pair pair = found ? PairOf(slot.state.w0, slot.state.w1, HasOnePlace(i)) : Pair{0, 0};
    for (const int64_t end : {pair.later, pair.earlier}) {
      if (end > now_ns) ends.push_back(end);
      view.expired = view.expired || (end > 0 && end <= now_ns);
    }
    if (found) {
      const Mark mark = Table::MarkIn(slot.cell->hi.load(std::memory_order_relaxed));
      view.mark = std::max(view.mark, mark);
      view.least = std::min(view.least, mark);
    }
    const bool full = pair.later > now_ns && (pair.earlier > now_ns || HasOnePlace(i));
    if (!full && view.free == cells_) {
      view.free = i;
      view.beside = BesideIn(pair, now_ns);
    }
  });
  std::sort(ends.begin(), ends.end());
  for (const int64_t end : ends) view.ring.PushBack(end, 1);
  if (!ends.empty() && ends.back() - limit_.period_ns() > now_ns) [[unlikely]] {
    view.ring.SetDebtCode(ReadDebtCode(now_ns));
  }
  return view;
}

uint64_t LogCells::ReadDebtCode(int64_t now_ns) const {
  Table::Slot slot;
  const bool owes = table_.Find(KeyOf(cells_), &slot) && slot.state.w0 != 0 &&
                    static_cast<int64_t>(slot.state.w0) > now_ns;
  return owes ? slot.state.w1 & kMostDebtCode : 0;
}

uint64_t LogCells::EnterDebt(int64_t now_ns) {
  uint64_t waited_for = 0;
  for (int tries = 0;; ++tries) {
    bool entered = false;
    uint64_t mine = 0;
    Table::Entry entry;
    table_.Update(
        KeyOf(cells_), now_ns, {.is_one = true}, entry, [] { return MarkOfRank(255 - kRankMark); },
        [&](uint64_t w0, uint64_t w1, uint64_t& next_w0, uint64_t& next_w1) {
          const bool fresh = w0 == 0;
          if (!fresh && (w1 & kChanging) != 0 &&
              (w1 != waited_for || tries < kMostReads + kMostWaits)) {
            if (w1 != waited_for) tries = 0;
            waited_for = w1;
            entered = false;
            return false;
          }
          const bool owes = !fresh && static_cast<int64_t>(w0) > now_ns;
          const uint64_t calls = fresh ? 0 : w1 / kOneCall;
          mine = (calls + 1) * kOneCall | kChanging | (owes ? w1 & kMostDebtCode : 0);
          // An end that has passed would leave the cell to other keys.
          next_w0 = std::max(owes ? w0 : 0, static_cast<uint64_t>(now_ns + limit_.period_ns()));
          next_w1 = mine;
          entered = true;
          return true;
        });
    if (entry.changed()) entered_(entry);
    if (entered) return mine;
    if (tries < kMostReads) {
      sched_yield();
    } else {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
}

bool LogCells::WriteDebt(uint64_t mine, int64_t newest, uint64_t code, int64_t now_ns, bool leave) {
  bool written = false;
  Table::Entry entry;
  table_.Update(
      KeyOf(cells_), now_ns, {.is_one = true}, entry, [] { return MarkOfRank(255 - kRankMark); },
      [&](uint64_t w0, uint64_t w1, uint64_t& next_w0, uint64_t& next_w1) {
        written = w0 != 0 && w1 / kOneCall == mine / kOneCall;
        next_w0 = static_cast<uint64_t>(newest);
        next_w1 = mine / kOneCall * kOneCall | (leave ? 0 : kChanging) | code;
        return written;
      });
  if (entry.changed()) entered_(entry);
  return written;
}

void LogCells::Clamp(const InstantRing& ring, int64_t now_ns) {
  const int64_t most = LatestEnd(limit_, ring, now_ns);
  const int64_t by = ring.debt_code() == 0 ? 0 : ring.newest() - most;
  ForEach(by == 0 ? most : now_ns, [&](int64_t end) {
    return by == 0 ? std::min(end, most) : end > now_ns ? end - by : end;
  });
}

void LogCells::Shift(const InstantRing& ends, int64_t periods, int64_t part, int64_t now_ns) {
  const bool later = part > 0;
  const auto size = static_cast<int64_t>(ends.size());
  // Those before the edge move once more, or those after it; and as many of those at the edge.
  const int64_t edge = part == 0 ? 0 : ends[static_cast<size_t>(later ? part - 1 : size + part)];
  const auto not_before = static_cast<int64_t>(ends.FirstAfter(edge - 1));
  const auto after = static_cast<int64_t>(ends.FirstAfter(edge));
  int64_t at_edge = part == 0 ? 0 : later ? part - not_before : after - (size + part);
  const auto moved = [&](int64_t end) {
    if (end <= now_ns) return end;
    int64_t by = periods;
    if (part != 0 && (end == edge ? at_edge-- > 0 : (end < edge) == later)) by += later ? 1 : -1;
    return end + by * limit_.period_ns();
  };
  for (size_t i = 0; i < cells_; ++i) {
    const Fingerprint key = KeyOf(i);
    Table::Slot slot;
    while (table_.Find(key, &slot)) {
      const Pair pair = PairOf(slot.state.w0, slot.state.w1, HasOnePlace(i));
      const int64_t before = at_edge;
      const int64_t later_end = moved(pair.later);
      const CellState next = StateOf({later_end, moved(pair.earlier)}, key);
      if (next == slot.state || Table::Replace(slot, next)) break;
      at_edge = before;
    }
  }
}

Decision LogCells::Charge(const Moment& moment, int64_t cost, int64_t most_debt) {
  const int64_t now_ns = moment.now_ns;
  int64_t in_place = 0;  // what has been charged in free places
  for (int tries = 0;; ++tries) {
    View view = Read(now_ns);
    if (IsBehind(limit_, view.ring, now_ns)) {
      if (!moment.confirmed) {
        Decision decision = PeekLog(limit_, view.ring, now_ns, 1);
        decision.SetCharged(in_place);
        return decision;
      }
      Clamp(view.ring, now_ns);
    }
    const InstantRing before = Read(now_ns).ring;
    const auto places = static_cast<int64_t>(before.size());
    Decision decision = StepLogCharge(limit_, &view.ring, now_ns, cost - in_place, most_debt);
    const int64_t in_room =
        std::min(decision.charged, std::max<int64_t>(0, limit_.count() - places));
    if (in_room > 0) {
      int64_t end = now_ns + limit_.period_ns();
      if (!before.empty()) end = std::max(end, before.newest());
      const bool added = Add(view, before.size(), end, in_room, now_ns, tries);
      if (!added && tries < kMostLogTries) continue;
      if (added && in_room < decision.charged) {
        in_place += in_room;
        continue;
      }
      decision.SetCharged(in_place + (added ? in_room : 0));
      return decision;
    }
    if (decision.charged > 0 && !ChargeOwed(now_ns, cost - in_place, most_debt, &decision)) {
      if (tries < kMostLogTries) continue;
      decision.SetCharged(0);
    }
    decision.SetCharged(in_place + decision.charged);
    return decision;
  }
}

bool LogCells::ChargeOwed(int64_t now_ns, int64_t cost, int64_t most_debt, Decision* decision) {
  const uint64_t mine = EnterDebt(now_ns);
  const InstantRing ends = Read(now_ns).ring;
  InstantRing after = Read(now_ns).ring;
  *decision = StepLogCharge(limit_, &after, now_ns, cost, most_debt);
  const auto places = static_cast<int64_t>(ends.size());
  const bool full = places == limit_.count();
  const int64_t owed = full ? decision->charged : 0;
  const uint64_t before_code = mine & kMostDebtCode;
  if (owed == 0) {
    const int64_t newest = ends.empty() ? now_ns + limit_.period_ns() : ends.newest();
    WriteDebt(mine, newest, before_code, now_ns, true);
    return full;
  }
  if (!WriteDebt(mine, after.newest(), std::max(before_code, after.debt_code()), now_ns, false)) {
    return false;
  }
  Shift(ends, owed / places, owed % places, now_ns);
  WriteDebt(mine, after.newest(), after.debt_code(), now_ns, true);
  return true;
}

template <typename Change>
void LogCells::ForEach(int64_t above, Change change) {
  ForEachKey([&](size_t i, const Fingerprint& key) {
    Table::Slot slot;
    while (table_.Find(key, &slot)) {
      const Pair pair = PairOf(slot.state.w0, slot.state.w1, HasOnePlace(i));
      if (pair.later <= above) break;
      const CellState next = StateOf({change(pair.later), change(pair.earlier)}, key);
      if (next == slot.state || Table::Replace(slot, next)) break;
    }
  });
}

Decision LogCells::Peek(const Moment& moment, int64_t cost) const {
  return PeekLog(limit_, Read(moment.now_ns).ring, moment.now_ns, cost);
}

Decision LogCells::Hit(const Moment& moment, int64_t cost) {
  if (limit_.IsOversize(cost)) [[unlikely]] {
    // All places first: of several such calls at once, one gets them.
    const Decision full = Hit(moment, limit_.count());
    if (!full.allowed) return full;
    Decision decision = Charge(moment, cost - limit_.count(), limit_.max_debt());
    decision.behind = full.behind;
    decision.charged = Decision::kUnset;
    return decision;
  }
  const int64_t now_ns = moment.now_ns;
  for (int tries = 0;; ++tries) {
    View view = Read(now_ns);
    if (IsBehind(limit_, view.ring, now_ns)) {
      if (!moment.confirmed) return PeekLog(limit_, view.ring, now_ns, cost);
      Clamp(view.ring, now_ns);
    }
    Decision decision = StepLog(limit_, &view.ring, now_ns, cost);
    if (!decision.allowed) return decision;
    const size_t alive = view.ring.size() - static_cast<size_t>(cost);
    if (Add(view, alive, view.ring.newest(), cost, now_ns, tries)) return decision;
    if (tries == kMostLogTries) {
      // Calls that each want several places at once obstruct each other.
      decision = PeekLog(limit_, view.ring, now_ns, cost);
      decision.allowed = false;
      decision.retry_after_ns = std::max<int64_t>(decision.retry_after_ns, 1);
      return decision;
    }
  }
}

bool LogCells::Add(const View& view, size_t alive, int64_t end, int64_t cost, int64_t now_ns,
                   int tries) {
  // Clear the expired ends: they would count again if the clock went back.
  if (view.expired) ForEach(0, [now_ns](int64_t e) { return e > now_ns ? e : 0; });
  const Mark mark = MarkOfLogAfter(view.mark, alive, static_cast<uint64_t>(cost));
  if (view.least < mark) Remark(mark);
  const bool as_read = tries < kMostReads;
  if (!Take(view, end, cost, now_ns, mark, as_read)) {
    if (!as_read) sched_yield();
    return false;
  }
  if (mark < view.mark) Remark(mark, view.mark);
  if (!as_read) {
    // The log is larger by now than this call has read.
    const View after = Read(now_ns);
    const int more = HalfLog(after.ring.size()) - HalfLog(alive + static_cast<uint64_t>(cost));
    Remark(std::max(after.mark, MarkOfRank(mark - kRankMark + std::max(more, 0))));
  }
  return true;
}

void LogCells::Remark(Mark mark, Mark lowered_from) {
  ForEachKey([&](size_t, const Fingerprint& key) {
    Table::Slot slot;
    if (table_.Find(key, &slot)) Table::Remark(slot.cell, key, mark, lowered_from);
  });
}

bool LogCells::Take(const View& view, int64_t end, int64_t cost, int64_t now_ns, Mark mark,
                    bool as_read) {
  int64_t left = cost;
  bool overtaken = false;
  for (size_t n = 0; n < cells_ && left > 0 && !overtaken; ++n) {
    const size_t i = (view.free + n) % cells_;
    const Fingerprint key = KeyOf(i);
    int64_t took = 0;
    Table::Entry entry;
    table_.Update(
        key, now_ns, {.is_one = true}, entry, [mark] { return mark; },
        [&](uint64_t w0, uint64_t w1, uint64_t& next_w0, uint64_t& next_w1) {
          Pair pair = PairOf(w0, w1, HasOnePlace(i));
          took = 0;
          overtaken =
              as_read && n == 0 && (BesideIn(pair, now_ns) != view.beside || pair.earlier > now_ns);
          if (overtaken) return false;
          if (pair.earlier <= now_ns && !HasOnePlace(i)) {
            pair.earlier = end;
            ++took;
          }
          if (pair.later <= now_ns && took < left) {
            pair.later = end;
            ++took;
          }
          const CellState next = StateOf(pair, key);
          next_w0 = next.w0;
          next_w1 = next.w1;
          return took > 0;
        });
    if (entry.changed()) entered_(entry);
    left -= took;
  }
  if (left == 0) return true;
  // Places with equal ends are interchangeable.
  Free(end, cost - left);
  return false;
}

int64_t LogCells::Move(int64_t end, int64_t to, int64_t most) {
  int64_t moved = 0;
  for (size_t i = 0; i < cells_ && moved < most; ++i) {
    const Fingerprint key = KeyOf(i);
    Table::Slot slot;
    while (table_.Find(key, &slot)) {
      Pair pair = PairOf(slot.state.w0, slot.state.w1, HasOnePlace(i));
      int64_t here = 0;
      for (int64_t* place : {&pair.earlier, &pair.later}) {
        if (*place != end || moved + here == most) continue;
        *place = to;
        ++here;
      }
      if (here == 0) break;
      if (!Table::Replace(slot, StateOf(pair, key))) continue;
      moved += here;
      break;
    }
  }
  return moved;
}

int64_t LogCells::RefundDebt(int64_t now_ns, int64_t cost) {
  if (ReadDebtCode(now_ns) == 0) return 0;
  const uint64_t mine = EnterDebt(now_ns);
  InstantRing ends = Read(now_ns).ring;
  const int64_t owed = std::min(cost, OwedIn(limit_, ends, now_ns, 0));
  if (owed > 0) {
    const auto alive = static_cast<int64_t>(ends.size());
    Shift(ends, -(owed / alive), -(owed % alive), now_ns);
    ends.Shift(-(owed / alive), -(owed % alive), limit_.period_ns());
  }
  const int64_t newest = ends.empty() ? now_ns + limit_.period_ns() : ends.newest();
  WriteDebt(mine, newest, mine & kMostDebtCode, now_ns, true);
  return owed;
}

int64_t LogCells::Refund(const Moment& moment, int64_t cost) {
  const int64_t owed = RefundDebt(moment.now_ns, cost);
  const int64_t most = std::min(cost - owed, limit_.count());
  int64_t freed = 0;
  while (freed < most) {
    const InstantRing ring = Read(moment.now_ns).ring;
    if (ring.empty()) break;
    freed += Free(ring.newest(), most - freed);
  }
  return owed + freed;
}

int64_t LogCells::MoveLease(int64_t admitted_ns, int64_t to, const Moment& moment, int64_t cost) {
  // While units are owed, those of the lease may have taken other ends.
  if (to == 0 && admitted_ns + limit_.period_ns() > moment.now_ns &&
      OwedIn(limit_, Read(moment.now_ns).ring, moment.now_ns, 0) > 0) {
    return Refund(moment, cost);
  }
  const int64_t wanted = std::min(cost, limit_.count());
  int64_t moved = 0;
  while (moved < wanted) {
    const InstantRing ring = Read(moment.now_ns).ring;
    const UnitsAt units = UnitsOf(limit_, ring, admitted_ns, moment.now_ns, 1, moment.late);
    if (units.size == 0) break;
    const int64_t chosen = ring[units.first];
    if (chosen == to) return wanted;
    moved += Move(chosen, to, 1);
  }
  return moved;
}

void LogCells::Release(int64_t admitted_ns, const Moment& moment, int64_t cost) {
  MoveLease(admitted_ns, 0, moment, cost);
}

bool LogCells::Extend(int64_t admitted_ns, const Moment& moment, int64_t cost) {
  return MoveLease(admitted_ns, moment.now_ns + limit_.period_ns(), moment, cost) > 0;
}

void LogCells::Reset() {
  for (size_t i = 0; i <= cells_; ++i) {
    const Fingerprint key = KeyOf(i);
    Table::Slot slot;
    while (table_.Find(key, &slot) && !Table::Replace(slot, {0, key.lo})) {
    }
  }
}

}  // namespace tidegate
