// The steps of fixed and sliding windows, like those in step.h.
#ifndef TIDEGATE_SRC_ALGORITHMS_WINDOWS_H_
#define TIDEGATE_SRC_ALGORITHMS_WINDOWS_H_

#include <cstdint>

#include "tidegate/decision.h"
#include "tidegate/limit.h"
#include "tidegate/step.h"

namespace tidegate {

// Does what StepInWindow() cannot.
Decision StepFixed(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                   CellState* next);
Decision StepSliding(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                     CellState* next);

// What StepCharge() charged, and whether the state lay too far ahead.
struct Charging {
  int64_t units = 0;
  bool behind = false;
};
Charging ChargeWindow(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost,
                      int64_t most_debt, CellState* next);

CellState RefundToWindow(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost);
int64_t RefundableInWindow(const Limit& limit, const CellState& state, int64_t now_ns);

// The time until one unit more than `remaining` is free in a sliding window.
int64_t MoreAfterOfSliding(const Decision& d);

}  // namespace tidegate

#endif  // TIDEGATE_SRC_ALGORITHMS_WINDOWS_H_
