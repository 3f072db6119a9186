#include "tidegate/replay.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "algorithms/log.h"
#include "tidegate/step.h"
#include "tidegate/store.h"

namespace tidegate {
namespace {

// The state of one key under one limit.
struct State {
  CellState cell;
  InstantRing ring;
};

}  // namespace

std::vector<Decision> Replay(absl::Span<const Limit> limits, absl::Span<const ReplayEvent> events) {
  std::vector<Decision> decisions;
  decisions.reserve(events.size());
  absl::flat_hash_map<absl::string_view, std::vector<State>> keys;
  for (const ReplayEvent& event : events) {
    std::vector<State>& states = keys[absl::string_view(event.key.data(), event.key.size())];
    if (states.empty()) states.resize(limits.size());
    const int64_t now = std::clamp<int64_t>(event.now_ns, 0, kMaxInstantNs);
    PlanVerdict forecast;
    for (size_t i = 0; i < limits.size(); ++i) {
      forecast.Add(IsLog(limits[i].algorithm())
                       ? PeekLog(limits[i], states[i].ring, now, event.cost)
                       : Peek(limits[i], states[i].cell, now, event.cost),
                   static_cast<uint32_t>(i));
    }
    PlanVerdict verdict;
    for (size_t i = 0; i < limits.size(); ++i) {
      // Where the plan is refused, a hit that cannot pass still moves back what
      // a clock that went back has left ahead.
      const int64_t cost = forecast.get().allowed ? event.cost : limits[i].capacity() + 1;
      if (IsLog(limits[i].algorithm())) {
        verdict.Add(StepLog(limits[i], &states[i].ring, now, cost), static_cast<uint32_t>(i));
      } else {
        CellState next;
        verdict.Add(Step(limits[i], states[i].cell, now, cost, &next), static_cast<uint32_t>(i));
        states[i].cell = next;
      }
    }
    Decision decision = forecast.get().allowed ? verdict.get() : forecast.get();
    decision.at_ns = now;
    decisions.push_back(decision);
  }
  return decisions;
}

}  // namespace tidegate
