// The cells of a log in a table.
#include "table/log_cells.h"

#include <atomic>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate {
namespace {

using testing::kSanitizerShare;
using testing::kSecond;
using testing::kStart;
using testing::RunThreads;

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
  Table table(cells.data(), 1);
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

}  // namespace
}  // namespace tidegate
