// The centre's part of leases for windows: what a node that is granted units of a window knows of
// it.
//
// The centre counts granted units in the window like any others, and the node spends them before
// that window ends, counted from before its question. So a window never admits more than its count,
// and nothing has to be known of units that are out. In a sliding window the weight of the window
// before only falls meanwhile: a unit that had room when it was granted has room when it is spent.
// Units that are given back are taken off the window they were granted in: lua/fixed_window.lua and
// lua/sliding_window.lua.
//
// Pure; thread-safe as such.
#ifndef TIDEGATE_SRC_LEASES_WINDOWS_H_
#define TIDEGATE_SRC_LEASES_WINDOWS_H_

#include <cstdint>

#include "tidegate/limit.h"
#include "tidegate/step.h"

namespace tidegate::leases {

inline bool IsWindow(Algorithm algorithm) {
  return algorithm == Algorithm::kFixedWindow || algorithm == Algorithm::kSlidingWindow;
}

// A window after a call.
struct WindowLevel {
  CellState cell;       // with what was charged and granted
  int64_t end_ns = 0;   // by the server's clock; it names the window
  int64_t room = 0;     // units; negative if more than the count are used
  int64_t wait_ns = 0;  // if the call was refused
  int64_t granted = 0;
};

// The state `cell` at `now_ns`, charged with `cost`, from 0 up, if `charged`; then at most half of
// the room is granted, up to `want`.
WindowLevel LeaseWindow(const Limit& limit, const CellState& cell, int64_t now_ns, int64_t cost,
                        bool charged, int64_t want);

// The state without `held` units of its window.
CellState WithoutHeld(const Limit& limit, const CellState& cell, int64_t held);

}  // namespace tidegate::leases

#endif  // TIDEGATE_SRC_LEASES_WINDOWS_H_
