// The cells of a log in a table.
#include "table/log_cells.h"

#include <atomic>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

// The marks of all cells that are in use.
std::set<int> Marks(const std::vector<Cell>& cells) {
  std::set<int> marks;
  for (const Cell& cell : cells) {
    const Fingerprint name{cell.lo, cell.hi};
    if (name.lo != 0 && !Table::IsNobody(name)) marks.insert(Table::MarkIn(name.hi));
  }
  return marks;
}

Decision HitLog(std::vector<Cell>& cells, const Limit& limit, int64_t now_ns, int64_t cost) {
  std::atomic<int64_t> newest_ns{0};
  Table table(cells.data(), 1, &newest_ns);
  const auto nothing = [](const Table::Entry&) {};
  return LogCells(table, limit, {5, uint64_t{7} << 16}, nothing)
      .Hit({.now_ns = now_ns, .confirmed = true}, cost);
}

TEST(LogMarkTest, OfAllCellsIsThatOfTheLog) {
  std::vector<Cell> cells(Table::kSliceCells);
  const Limit limit =
      *Limit::Create({.count = 900, .period_ns = kSecond, .algorithm = Algorithm::kSlidingLog});
  for (int i = 0; i < 600; ++i) HitLog(cells, limit, kStart, 1);
  EXPECT_EQ(Marks(cells), std::set<int>{MarkOfLog(600, 1)});
  HitLog(cells, limit, kStart, 300);
  EXPECT_EQ(Marks(cells), std::set<int>{MarkOfLog(900, 300)});
  // All have expired: the key is worth no more than a new one.
  HitLog(cells, limit, kStart + kSecond, 1);
  EXPECT_EQ(Marks(cells), std::set<int>{MarkOfLog(1, 1)});
}

// A mark that a slow call leaves too low lets the table evict cells of a full log.
TEST(LogMarkTest, IsThatOfTheLogWhenCallsRace) {
  constexpr int kHits = 1'500 / kSanitizerShare;
  constexpr int kThreadsHere = 8;
  const Limit limit =
      *Limit::Create({.count = kHits, .period_ns = kSecond, .algorithm = Algorithm::kSlidingLog});
  for (int round = 0; round < 5; ++round) {
    std::vector<Cell> cells(Table::kSliceCells);
    std::atomic<int> admitted = 0;
    RunThreads(kThreadsHere, [&](int) {
      while (HitLog(cells, limit, kStart, 1).allowed) ++admitted;
    });
    EXPECT_EQ(admitted, kHits);
    EXPECT_EQ(Marks(cells), std::set<int>{MarkOfLog(kHits, 1)});
  }
}

// Each charge and each refund changes the whole debt, so that of two at once none may be lost.
TEST(LogDebtTest, IsExactWhenCallsRace) {
  constexpr int kCalls = 900 / kSanitizerShare;
  constexpr int kThreadsHere = 4;
  const Limit limit = *Limit::Create({.count = 11,
                                      .period_ns = kSecond,
                                      .algorithm = Algorithm::kSlidingLog,
                                      .max_debt = int64_t{1} << 40});
  for (int round = 0; round < 5; ++round) {
    std::vector<Cell> cells(Table::kSliceCells);
    const auto call = [&](auto&& how) {
      std::atomic<int64_t> newest_ns{0};
      Table table(cells.data(), 1, &newest_ns);
      return how(LogCells(table, limit, {5, uint64_t{7} << 16}, [](const Table::Entry&) {}));
    };
    const Moment moment{.now_ns = kStart, .confirmed = true};
    call([&](LogCells log) { return log.Charge(moment, 100, limit.max_debt()).charged; });
    RunThreads(kThreadsHere, [&](int thread) {
      for (int i = 0; i < kCalls; ++i) {
        call(
            [&](LogCells log) { return log.Charge(moment, 1 + thread, limit.max_debt()).charged; });
        if (i % 3 == 0) call([&](LogCells log) { return log.Refund(moment, 1); });
      }
    });
    const Decision found = call([&](LogCells log) { return log.Peek(moment, 1); });
    EXPECT_EQ(found.used_units, 100 + kCalls * (1 + 2 + 3 + 4) - kThreadsHere * ((kCalls + 2) / 3));
    EXPECT_FALSE(found.behind);
  }
}

// The one that dies has marked the cell as its own.
TEST(LogDebtTest, IsChangedAfterACallDiedThatChangedIt) {
  const Limit limit = *Limit::Create(
      {.count = 3, .period_ns = kSecond, .algorithm = Algorithm::kSlidingLog, .max_debt = 1000});
  std::vector<Cell> cells(Table::kSliceCells);
  std::atomic<int64_t> newest_ns{0};
  Table table(cells.data(), 1, &newest_ns);
  LogCells log(table, limit, {5, uint64_t{7} << 16}, [](const Table::Entry&) {});
  const Moment moment{.now_ns = kStart, .confirmed = true};
  log.Charge(moment, 5, 1000);
  int marked = 0;
  for (Cell& cell : cells) {
    const uint64_t code = CodeOfDebt(kSecond);
    if ((cell.w1.load() & kMostDebtCode) != code || cell.w1.load() >> 20 != 0) continue;
    cell.w1.store(cell.w1.load() | (kMostDebtCode + 1));
    ++marked;
  }
  ASSERT_EQ(marked, 1);
  EXPECT_EQ(log.Charge(moment, 4, 1000).charged, 4);
  EXPECT_EQ(log.Peek(moment, 1).used_units, 9);
}

}  // namespace
}  // namespace tidegate::testing
