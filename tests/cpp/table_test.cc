#include "table/table.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

// A table that owns its memory, with access to its cells.
class OwnedTable {
 public:
  explicit OwnedTable(size_t slices)
      : memory_(std::aligned_alloc(64, slices * Table::kSliceBytes)) {
    std::memset(memory_.get(), 0, slices * Table::kSliceBytes);
    table_ = Table(memory_.get(), slices, &newest_ns_);
  }
  Table* operator->() { return &table_; }
  Table& operator*() { return table_; }

  Cell& cell(size_t i) { return table_.slice(0)[i]; }
  Cell& Home(const Fingerprint& key) { return const_cast<Cell&>(*table_.Home(key)); }

  // The number of cells that each key has.
  std::map<std::pair<uint64_t, uint64_t>, int> Keys() {
    std::map<std::pair<uint64_t, uint64_t>, int> keys;
    for (size_t i = 0; i < table_.cells(); ++i) {
      const uint64_t lo = cell(i).lo;
      const uint64_t hi = cell(i).hi;
      if (lo == 0 || Table::IsNobody({lo, hi})) continue;
      ++keys[{lo, hi & ~Table::kOwnBits}];
    }
    return keys;
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  std::atomic<int64_t> newest_ns_{0};
  Table table_;
};

// A state that becomes idle `ns` after `now_ns`.
CellState Live(int64_t now_ns, int64_t ns, uint64_t w1 = 0) {
  return {static_cast<uint64_t>(now_ns + ns), w1};
}

constexpr Table::Entry kFound{};
constexpr Table::Entry kNew{.keys = 1};
constexpr Table::Entry kIdleGone{.idle = 1};
constexpr Table::Entry kLiveGone{.live = 1};

Table::Entry Enter(Table& table, const Fingerprint& key, int64_t now_ns, Table::Slot* slot) {
  Table::Entry entry;
  table.FindOrClaim(key, now_ns, 0, slot, &entry);
  return entry;
}

Table::Entry Set(Table& table, const Fingerprint& key, int64_t now_ns, const CellState& state,
                 Mark mark = 0) {
  Table::Entry entry;
  for (;;) {
    Table::Slot slot;
    table.FindOrClaim(key, now_ns, mark, &slot, &entry);
    if (Table::Replace(slot, state)) return entry;
  }
}

std::vector<Fingerprint> RandomKeys(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Fingerprint> keys;
  for (size_t i = 0; i < n; ++i) keys.push_back({random(), random() | 1});
  return keys;
}

// Keys that all search the same cells in the same order.
std::vector<Fingerprint> RivalKeys(size_t n, uint64_t seed) {
  constexpr uint64_t kPlaceBits = (uint64_t{1} << 21) - 1;
  std::vector<Fingerprint> keys = RandomKeys(n, seed);
  for (Fingerprint& key : keys) {
    key.lo = (key.lo & ~kPlaceBits) | (12'345 & kPlaceBits);
    key.hi >>= 8;  // the first slice, of up to 256
    key.hi |= 1;
  }
  return keys;
}
constexpr size_t kRivalCells = Table::kMostGroups * 8;

void ExpectState(Table& table, const Fingerprint& key, const CellState& state) {
  Table::Slot slot;
  ASSERT_TRUE(table.Find(key, &slot));
  EXPECT_EQ(slot.state, state);
  EXPECT_EQ(slot.raw, state);
}

TEST(TableTest, ZeroedMemoryIsAnEmptyTable) {
  OwnedTable table(2);
  Table::Slot slot;
  for (const Fingerprint& key : RandomKeys(100, 10)) EXPECT_FALSE(table->Find(key, &slot));
  EXPECT_EQ(table->cells(), 2 * Table::kSliceCells);
}

TEST(TableTest, ANewKeyIsFreshUntilItsFirstStateIsPut) {
  OwnedTable table(1);
  const Fingerprint key{5, 7};
  Table::Slot slot;
  EXPECT_EQ(Enter(*table, key, kStart, &slot), kNew);
  EXPECT_EQ(slot.state, CellState{});
  Table::Slot other;
  EXPECT_FALSE(table->Find(key, &other));
  EXPECT_TRUE(Table::Replace(slot, Live(kStart, kSecond)));
  ExpectState(*table, key, Live(kStart, kSecond));
  EXPECT_EQ(Enter(*table, key, kStart, &slot), kFound);
  EXPECT_TRUE(Table::Replace(slot, Live(kStart, 2 * kSecond)));
  EXPECT_FALSE(Table::Replace(slot, Live(kStart, 3 * kSecond))) << "it was read before";
  ExpectState(*table, key, Live(kStart, 2 * kSecond));
}

TEST(TableTest, HoldsEveryKeyAtTheHighestLoad) {
  OwnedTable table(3);
  const auto keys = RandomKeys(static_cast<size_t>(0.85 * 3 * Table::kSliceCells), 11);
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(Set(*table, keys[i], kStart, Live(kStart, kSecond, i)), kNew);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    ExpectState(*table, keys[i], Live(kStart, kSecond, i));
  }
}

TEST(TableTest, ALargerTableHoldsTheSameKeysInTheSameOrder) {
  auto keys = RandomKeys(1'000, 12);
  std::sort(keys.begin(), keys.end(),
            [](const Fingerprint& a, const Fingerprint& b) { return a.hi < b.hi; });
  for (const size_t slices : {size_t{1}, size_t{2}, size_t{3}, size_t{1'000'003}}) {
    size_t last = 0;
    for (const Fingerprint& key : keys) {
      const size_t slice = Table::SliceOf(key, slices);
      EXPECT_GE(slice, last);
      EXPECT_LT(slice, slices);
      last = slice;
    }
  }
  EXPECT_EQ(Table::SliceOf({0, ~uint64_t{0}}, 7), 6u);
}

TEST(TableTest, PutEntersAMovedKey) {
  OwnedTable table(1);
  const auto keys = RivalKeys(kRivalCells, 13);
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(table->Put(keys[i], Live(kStart, kSecond, i), kStart), kNew);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    ExpectState(*table, keys[i], Live(kStart, kSecond, i));
  }
  const Fingerprint more = RivalKeys(kRivalCells + 1, 14).back();
  EXPECT_EQ(table->Put(more, Live(kStart, 2 * kSecond), kStart), kLiveGone);
  ExpectState(*table, more, Live(kStart, 2 * kSecond));
}

// Fills all cells that a key may be in with keys that are live for a second; only the last is live
// for `last_ns`. Then enters one more key, and returns what was evicted for it.
Table::Entry EnterIntoFull(OwnedTable& table, const std::vector<Fingerprint>& keys,
                           int64_t last_ns) {
  for (size_t i = 0; i < kRivalCells; ++i) {
    const int64_t live_ns = i == kRivalCells - 1 ? last_ns : kSecond;
    EXPECT_EQ(Set(*table, keys[i], kStart, Live(kStart, live_ns)), kNew);
  }
  return Set(*table, keys[kRivalCells], kStart, Live(kStart, kSecond));
}

TEST(TableEvictionTest, AnIdleKeyIsEvictedBeforeALiveOne) {
  OwnedTable table(1);
  const auto keys = RivalKeys(kRivalCells + 1, 15);
  EXPECT_EQ(EnterIntoFull(table, keys, -kClockToleranceNs), kIdleGone);
  Table::Slot slot;
  EXPECT_FALSE(table->Find(keys[kRivalCells - 1], &slot));
  EXPECT_EQ(table.Keys().size(), kRivalCells);
}

// A reader whose clock is behind by the tolerance must still find the state.
TEST(TableEvictionTest, AKeyIsIdleOnlyAfterTheTolerance) {
  OwnedTable table(1);
  const auto keys = RivalKeys(kRivalCells + 1, 16);
  EXPECT_EQ(EnterIntoFull(table, keys, -kClockToleranceNs + 1), kLiveGone);
}

// The contents of one cell that a search visits.
struct Held {
  int64_t live_ns = kSecond;
  Mark mark = MarkOfLog(100, 1);
  uint64_t w1 = 0;
};

// The index of the cell that is evicted for one more key. `cells` are in the order of a search.
size_t Evicted(const std::vector<Held>& cells) {
  OwnedTable table(1);
  const auto keys = RivalKeys(kRivalCells + 1, 17);
  for (size_t i = 0; i < kRivalCells; ++i) {
    const Held& held = cells[i];
    EXPECT_EQ(Set(*table, keys[i], kStart, Live(kStart, held.live_ns, held.w1), held.mark), kNew);
  }
  EXPECT_EQ(Set(*table, keys.back(), kStart, Live(kStart, kSecond)), kLiveGone);
  Table::Slot slot;
  EXPECT_TRUE(table->Find(keys.back(), &slot));
  size_t gone = kRivalCells;
  for (size_t i = 0; i < kRivalCells; ++i) {
    if (table->Find(keys[i], &slot)) continue;
    EXPECT_EQ(gone, kRivalCells) << "two were evicted";
    gone = i;
  }
  return gone;
}

TEST(TableEvictionTest, TheKeyChargedLeastOftenIsEvictedEvenIfFarFromIdle) {
  std::vector<Held> cells(kRivalCells);
  cells[40] = {100 * kSecond, MarkOfLog(100, 20)};
  EXPECT_EQ(Evicted(cells), 40u);
  cells[60] = {1'000 * kSecond, MarkOfLog(100, 100)};
  EXPECT_EQ(Evicted(cells), 60u);
}

TEST(TableEvictionTest, BucketsWindowsAndLogsAreComparedByTheSameRank) {
  const auto unit_ns = static_cast<uint64_t>(kSecond) / 100;
  const Held bucket{kSecond, static_cast<Mark>(HalfLog(unit_ns))};
  const Held window{kSecond, MarkOfUnits(1), 100};
  const Held log{kSecond, MarkOfLog(100, 1)};
  const Held once[] = {{kSecond, static_cast<Mark>(HalfLog(100 * unit_ns))},
                       {kSecond, MarkOfUnits(100), 100},
                       {kSecond, MarkOfLog(100, 100)}};
  for (const Held& often : {bucket, window, log}) {
    for (const Held& other : once) {
      std::vector<Held> cells(kRivalCells, often);
      cells[20] = other;
      EXPECT_EQ(Evicted(cells), 20u) << int{often.mark} << ' ' << int{other.mark};
    }
  }
}

TEST(TableEvictionTest, OfEqualRanksTheNearestToIdleIsEvicted) {
  std::vector<Held> cells(kRivalCells);
  cells[0].live_ns = 5 * kSecond;
  cells[1].live_ns = 4 * kSecond;
  cells[2].live_ns = 6 * kSecond;
  EXPECT_EQ(Evicted(cells), 1u) << "among the first three";
  for (const size_t i : {size_t{30}, size_t{31}, size_t{33}}) cells[i].mark = MarkOfLog(2, 2);
  cells[31].live_ns = kSecond - 1;
  EXPECT_EQ(Evicted(cells), 31u);
}

// Buckets that others charged once each, 200 ms after the instant of the call that evicts: at that
// instant they look as if they had been charged 200 times.
TEST(TableEvictionTest, ACallThatWasHeldUpEvictsNoKeyThatWasChargedOften) {
  constexpr int64_t kUnit = kSecond / 1000;
  constexpr int64_t kLater = kStart + 200 * kUnit;
  OwnedTable table(1);
  const auto keys = RivalKeys(kRivalCells + 1, 18);
  const CellState log = Live(kStart, 1'000 * kSecond);
  Set(*table, keys[0], kStart, log, MarkOfLog(100, 1));
  for (size_t i = 1; i < kRivalCells; ++i) {
    Set(*table, keys[i], kLater, Live(kLater, kUnit), static_cast<Mark>(HalfLog(kUnit)));
  }
  EXPECT_EQ(Set(*table, keys.back(), kStart, Live(kStart, kUnit)), kLiveGone);
  ExpectState(*table, keys[0], log);
}

TEST(TableEvictionTest, AClockThatIsSetBackIsBelieved) {
  constexpr int64_t kBefore = kStart - 3'600 * kSecond;
  OwnedTable table(1);
  const auto keys = RivalKeys(kRivalCells + 1, 19);
  Set(*table, RandomKeys(1, 20)[0], kStart, Live(kStart, kSecond));
  // One bucket that was charged 100 times, where all others were charged once, for longer.
  const CellState often = Live(kBefore, kSecond);
  Set(*table, keys[0], kBefore, often, static_cast<Mark>(HalfLog(kSecond / 100)));
  for (size_t i = 1; i < kRivalCells; ++i) {
    Set(*table, keys[i], kBefore, Live(kBefore, 2 * kSecond),
        static_cast<Mark>(HalfLog(2 * kSecond)));
  }
  EXPECT_EQ(Set(*table, keys.back(), kBefore, Live(kBefore, kSecond)), kLiveGone);
  ExpectState(*table, keys[0], often);
}

// Otherwise each new key would evict the new key before it.
TEST(TableEvictionTest, OnlyNearbyKeysAreCompared) {
  std::vector<Held> cells(kRivalCells);
  cells[kRivalCells / 2].mark = MarkOfLog(1, 1);
  cells[kRivalCells - 1].mark = MarkOfLog(1, 1);
  EXPECT_EQ(Evicted(cells), 0u);
}

TEST(TableMarkTest, IsRaisedAndNeverLowered) {
  OwnedTable table(1);
  const Fingerprint key{5, uint64_t{7} << 16};
  Table::Slot slot;
  Table::Entry entry;
  table->FindOrClaim(key, kStart, 20, &slot, &entry);
  const uint64_t named = slot.cell->hi;
  EXPECT_EQ(Table::MarkIn(named), 20);
  ASSERT_TRUE(Table::Replace(slot, Live(kStart, kSecond)));
  for (const auto& [mark, then] : {std::pair{30, 30}, std::pair{25, 30}, std::pair{127, 127}}) {
    Table::Remark(slot.cell, key, static_cast<Mark>(mark));
    EXPECT_EQ(Table::MarkIn(slot.cell->hi), then);
  }
  EXPECT_EQ(slot.cell->hi & Table::kVersionMask, named & Table::kVersionMask);
  ExpectState(*table, key, Live(kStart, kSecond));
}

TEST(TableMarkTest, IsLoweredFromTheMarksThatTheCallHasRead) {
  OwnedTable table(1);
  const Fingerprint key{5, uint64_t{7} << 16};
  Table::Slot slot;
  Enter(*table, key, kStart, &slot);
  Table::Remark(slot.cell, key, 207);
  Table::Remark(slot.cell, key, 195, 206);  // others have raised it since
  EXPECT_EQ(Table::MarkIn(slot.cell->hi), 207);
  Table::Remark(slot.cell, key, 195, 207);
  EXPECT_EQ(Table::MarkIn(slot.cell->hi), 195);
}

TEST(TableMarkTest, OfAnotherKeyStays) {
  OwnedTable table(1);
  const Fingerprint key{5, uint64_t{7} << 16};
  Table::Slot slot;
  Enter(*table, key, kStart, &slot);
  const uint64_t named = slot.cell->hi;
  Table::Remark(slot.cell, {key.lo, key.hi + (1 << 16)}, 50);
  Table::Remark(slot.cell, {key.lo + 1, key.hi}, 50);
  EXPECT_EQ(slot.cell->hi, named);
}

TEST(TableMarkTest, MovesWithItsKey) {
  OwnedTable to(1);
  const auto keys = RivalKeys(kRivalCells + 1, 17);
  for (size_t i = 0; i < keys.size(); ++i) {
    OwnedTable one(1);
    Set(*one, keys[i], kStart, Live(kStart, kSecond), MarkOfLog(i + 1, 1));
    const Cell& cell = one.Home(keys[i]);
    to->Put({cell.lo, cell.hi}, Live(kStart, kSecond), kStart);
    Table::Slot slot;
    ASSERT_TRUE(to->Find(keys[i], &slot));
    EXPECT_EQ(Table::MarkIn(slot.cell->hi), MarkOfLog(i + 1, 1)) << i;
  }
}

// Leaves a cell as a process does that is killed while it enters a key.
void LeaveClaim(Cell& cell, const Fingerprint& stands, const Fingerprint& claimant,
                int64_t since_ns) {
  cell.lo = stands.lo;
  cell.hi = stands.hi;
  cell.w0 = Table::kClaimBit | static_cast<uint64_t>(since_ns);
  cell.w1 = claimant.lo;
}

constexpr Fingerprint kNobody{};
constexpr Fingerprint kDead{0xdead'0000'0000'0042, 0x1111};

TEST(TableClaimTest, AStaleClaimIsTakenOver) {
  for (const int64_t since :
       {kStart - Table::kClaimTimeoutNs - 1, kStart + Table::kClaimTimeoutNs + 1}) {
    for (const Fingerprint& stands : {kNobody, kDead, Fingerprint{1, 2}}) {
      OwnedTable table(1);
      LeaveClaim(table.Home(kDead), stands, kDead, since);
      // A key that is in the cell already has been counted.
      EXPECT_EQ(Set(*table, kDead, kStart, Live(kStart, kSecond, 9)),
                stands == kDead ? kFound : kNew);
      ExpectState(*table, kDead, Live(kStart, kSecond, 9));
      EXPECT_EQ(table.Keys().size(), 1u);
      EXPECT_EQ(table.Keys().begin()->second, 1);
    }
  }
}

TEST(TableClaimTest, AnyKeyMayTakeOverAStaleClaim) {
  const auto keys = RivalKeys(kRivalCells + 1, 18);
  OwnedTable table(1);
  for (size_t i = 0; i < kRivalCells; ++i) {
    Set(*table, keys[i], kStart, Live(kStart, kSecond));
  }
  LeaveClaim(table.Home(keys[0]), keys[0], keys[0], kStart - Table::kClaimTimeoutNs - 1);
  EXPECT_EQ(Set(*table, keys.back(), kStart, Live(kStart, kSecond)), kFound)
      << "no key was evicted";
  Table::Slot slot;
  EXPECT_FALSE(table->Find(keys[0], &slot));
}

TEST(TableClaimTest, AnOwnerLearnsThatItsClaimWasTakenOver) {
  OwnedTable table(1);
  Table::Slot slow;
  Enter(*table, kDead, kStart, &slow);
  const int64_t later = kStart + Table::kClaimTimeoutNs + 1;
  EXPECT_EQ(Set(*table, kDead, later, Live(later, kSecond, 1)), kFound);
  EXPECT_FALSE(Table::Replace(slow, Live(kStart, kSecond, 2)));
  ExpectState(*table, kDead, Live(later, kSecond, 1));
}

TEST(TableClaimTest, AFreshClaimOfAnotherKeyIsSkipped) {
  const auto keys = RivalKeys(2, 19);
  OwnedTable table(1);
  LeaveClaim(table.Home(keys[0]), kNobody, keys[0], kStart);
  EXPECT_EQ(Set(*table, keys[1], kStart, Live(kStart, kSecond)), kNew);
  ExpectState(*table, keys[1], Live(kStart, kSecond));
}

TEST(TableClaimTest, AReadNeverWaitsForAClaim) {
  for (const Fingerprint& stands : {kNobody, kDead}) {
    OwnedTable table(1);
    LeaveClaim(table.Home(kDead), stands, kDead, kStart);
    Table::Slot slot;
    EXPECT_FALSE(table->Find(kDead, &slot));
  }
}

// The owner of a claim that is younger than the timeout may be dead: it was killed, or it was a
// thread that does not exist in the child of a fork(). A call that finds such a claim must return,
// although the call's own instant does not change.
TEST(TableClaimTest, ACallReturnsEvenIfTheClaimantIsDead) {
  for (const Fingerprint& stands : {kNobody, kDead}) {
    EXPECT_EQ(InChild([&] {
                OwnedTable table(1);
                LeaveClaim(table.Home(kDead), stands, kDead, kStart - 1'000);
                Set(*table, kDead, kStart, Live(kStart, kSecond));
                return true;
              }),
              "ok");
  }
}

// Increments the counter in w1 of a key that is live for `ns`, and changes its mark.
void Count(Table& table, const Fingerprint& key, int64_t now_ns, int64_t ns) {
  for (;;) {
    Table::Slot slot;
    Enter(table, key, now_ns, &slot);
    if (!Table::Replace(slot, Live(now_ns, ns, slot.state.w1 + 1))) continue;
    Table::Remark(slot.cell, key, MarkOfLog(slot.state.w1 + 1, 1));
    return;
  }
}

TEST(TableRaceTest, ThreadsThatEnterTheSameKeysShareOneCellOfEach) {
  constexpr int kThreadsHere = 16;
  const auto keys = RandomKeys(2'000 / kSanitizerShare, 20);
  OwnedTable table(1);
  RunThreads(kThreadsHere, [&](int thread) {
    for (size_t i = 0; i < keys.size(); ++i) {
      // The threads are in step at first, and drift apart later.
      const size_t at = thread % 2 == 0 ? i : keys.size() - 1 - i;
      Count(*table, keys[at], kStart, kSecond);
    }
  });
  for (const auto& [key, cells] : table.Keys()) EXPECT_EQ(cells, 1);
  for (const Fingerprint& key : keys) ExpectState(*table, key, Live(kStart, kSecond, kThreadsHere));
}

// The claim of a thread that was delayed between reading its clock and entering a key has a past
// time: other threads find it stale while the thread still works, and the thread finds their claims
// in the future. They take over each other's claims, and still all count in one cell.
TEST(TableRaceTest, ThreadsWithDifferentClocksShareOneCellOfEachKey) {
  constexpr int kThreadsHere = 8;
  constexpr int kRounds = 40 / kSanitizerShare;
  int64_t lost = 0;
  int64_t twice = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto keys = RandomKeys(2'000, 100 + static_cast<uint64_t>(round));
    OwnedTable table(1);
    RunThreads(kThreadsHere, [&](int thread) {
      const int64_t now = kStart + thread * (Table::kClaimTimeoutNs + 1);
      for (const Fingerprint& key : keys) {
        for (;;) {
          Table::Slot slot;
          Enter(*table, key, now, &slot);
          if (Table::Replace(slot, Live(kStart, 10 * kSecond, slot.state.w1 + 1))) break;
        }
      }
    });
    for (const auto& [key, cells] : table.Keys()) twice += cells != 1;
    for (const Fingerprint& key : keys) {
      Table::Slot slot;
      lost += !table->Find(key, &slot) || slot.state.w1 != kThreadsHere;
    }
  }
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(twice, 0);
}

// In each round, the keys of the round before are idle, and the new keys compete for their cells.
TEST(TableRaceTest, NoCountIsLostWhenIdleCellsAreReused) {
  constexpr int kThreadsHere = 8;
  constexpr int kRounds = 400 / kSanitizerShare;
  constexpr size_t kKeys = 240;
  const auto keys = RivalKeys(kRounds * kKeys, 21);
  OwnedTable table(1);
  std::barrier round_ends(kThreadsHere);
  RunThreads(kThreadsHere, [&](int thread) {
    for (size_t round = 0; round < kRounds; ++round) {
      const int64_t now = kStart + static_cast<int64_t>(round) * 10 * kSecond;
      const Fingerprint* mine = &keys[round * kKeys];
      for (size_t i = 0; i < kKeys; ++i) {
        Count(*table, mine[(i * 7 + static_cast<size_t>(thread % 2)) % kKeys], now, kSecond);
      }
      round_ends.arrive_and_wait();
      if (thread == 0) {
        for (size_t i = 0; i < kKeys; ++i) {
          ExpectState(*table, mine[i], Live(now, kSecond, kThreadsHere));
        }
        for (const auto& [key, cells] : table.Keys()) {
          EXPECT_EQ(cells, 1);
        }
      }
      round_ends.arrive_and_wait();
    }
  });
}

// There are twice as many keys as cells. In each round half of them return, to cells that new keys
// are about to take.
TEST(TableRaceTest, NoCountIsLostOfKeysThatComeBack) {
  constexpr int kThreadsHere = 8;
  constexpr int kRounds = 400 / kSanitizerShare;
  constexpr size_t kKeys = 240;
  const auto keys = RivalKeys(2 * kKeys, 23);
  OwnedTable table(1);
  std::barrier round_ends(kThreadsHere);
  std::vector<std::vector<size_t>> chosen(kRounds);
  std::mt19937_64 random(24);
  for (auto& round : chosen) {
    std::vector<size_t> all(keys.size());
    std::iota(all.begin(), all.end(), size_t{0});
    std::shuffle(all.begin(), all.end(), random);
    round.assign(all.begin(), all.begin() + kKeys);
  }
  int64_t wrong = 0;
  RunThreads(kThreadsHere, [&](int thread) {
    for (size_t round = 0; round < kRounds; ++round) {
      const int64_t now = kStart + static_cast<int64_t>(round) * 10 * kSecond;
      for (size_t i = 0; i < kKeys; ++i) {
        const Fingerprint& key = keys[chosen[round][(i + static_cast<size_t>(thread) / 2) % kKeys]];
        for (;;) {
          Table::Slot slot;
          Enter(*table, key, now, &slot);
          // A state of an earlier round is idle, so the count starts again.
          const bool idle = slot.state.w0 <= static_cast<uint64_t>(now);
          if (Table::Replace(slot, Live(now, kSecond, idle ? 1 : slot.state.w1 + 1))) break;
        }
      }
      round_ends.arrive_and_wait();
      if (thread == 0) {
        for (const size_t i : chosen[round]) {
          Table::Slot slot;
          wrong += !table->Find(keys[i], &slot) || slot.state != Live(now, kSecond, kThreadsHere);
        }
        for (const auto& [key, cells] : table.Keys()) wrong += cells != 1;
      }
      round_ends.arrive_and_wait();
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(TableRaceTest, CallsReturnEvenWithMoreLiveKeysThanCells) {
  const auto keys = RivalKeys(1'000, 22);
  OwnedTable table(1);
  RunThreads(8, [&](int thread) {
    for (size_t i = 0; i < 20'000 / kSanitizerShare; ++i) {
      Count(*table, keys[(i * 13 + static_cast<size_t>(thread) * 101) % keys.size()], kStart,
            kSecond);
    }
  });
  const auto held = table.Keys();
  EXPECT_LE(held.size(), kRivalCells);
  for (const auto& [key, cells] : held) {
    EXPECT_EQ(cells, 1);
  }
}

}  // namespace
}  // namespace tidegate::testing
