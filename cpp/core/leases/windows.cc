#include "leases/windows.h"

#include <algorithm>

#include "algorithms/debt.h"
#include "algorithms/windows.h"

namespace tidegate::leases {
namespace {

constexpr int kCurrentShift = 32;  // of a sliding window's units

Decision StepIn(const Limit& limit, const CellState& cell, int64_t now_ns, int64_t cost,
                CellState* next) {
  return limit.algorithm() == Algorithm::kFixedWindow
             ? StepFixed(limit, cell, now_ns, cost, next)
             : StepSliding(limit, cell, now_ns, cost, next);
}

int UnitShift(const Limit& limit) {
  return limit.algorithm() == Algorithm::kFixedWindow ? 0 : kCurrentShift;
}

}  // namespace

WindowLevel LeaseWindow(const Limit& limit, const CellState& cell, int64_t now_ns, int64_t cost,
                        bool charged, int64_t want) {
  WindowLevel level;
  level.cell = cell;
  const Decision asked = StepIn(limit, cell, now_ns, cost, &level.cell);
  level.wait_ns = asked.retry_after_ns;
  const Decision now = charged ? asked : StepIn(limit, cell, now_ns, 0, &level.cell);
  level.room = limit.count() - now.used_units;
  if (charged && !now.behind) {
    level.granted = std::min(want, std::max<int64_t>(level.room, 0) / 2);
    level.cell.w1 += static_cast<uint64_t>(level.granted) << UnitShift(limit);
    level.room -= level.granted;
  }
  const bool is_fixed = limit.algorithm() == Algorithm::kFixedWindow;
  level.end_ns = static_cast<int64_t>(level.cell.w0) - (is_fixed ? 0 : limit.period_ns());
  return level;
}

CellState WithoutHeld(const Limit& limit, const CellState& cell, int64_t held) {
  const int shift = UnitShift(limit);
  const auto used = static_cast<int64_t>(WithoutDebtCode(cell.w1) >> shift);
  CellState without = cell;
  without.w1 -= static_cast<uint64_t>(std::min(held, used)) << shift;
  return without;
}

}  // namespace tidegate::leases
