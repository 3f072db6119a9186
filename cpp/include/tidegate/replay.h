// Replay: the decisions that these limits would have made on these requests.
#ifndef TIDEGATE_REPLAY_H_
#define TIDEGATE_REPLAY_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "tidegate/decision.h"

namespace tidegate {

struct ReplayEvent {
  std::string_view key;
  int64_t now_ns;  // clamped to [0, kMaxInstantNs]
  int64_t cost = 1;
  // What the request used, which becomes its charge if it passes; kCost: its cost.
  static constexpr int64_t kCost = -1;
  int64_t used = kCost;
};

// Decides the events in the order given, by the steps that the stores use, with exact and unbounded
// state. The decisions point into `limits`. Pure.
std::vector<Decision> Replay(absl::Span<const Limit> limits, absl::Span<const ReplayEvent> events);

}  // namespace tidegate

#endif  // TIDEGATE_REPLAY_H_
