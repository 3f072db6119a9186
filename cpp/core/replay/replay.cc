#include "tidegate/replay.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "tidegate/replayer.h"
#include "tidegate/step.h"

namespace tidegate {

std::vector<Decision> Replay(absl::Span<const Limit> limits, absl::Span<const ReplayEvent> events) {
  if (limits.empty()) return std::vector<Decision>(events.size());
  std::vector<uint32_t> keys;
  std::vector<int64_t> costs, used;
  keys.reserve(events.size());
  costs.reserve(events.size());
  used.reserve(events.size());
  absl::flat_hash_map<absl::string_view, uint32_t> numbers;
  for (const ReplayEvent& event : events) {
    const absl::string_view key(event.key.data(), event.key.size());
    keys.push_back(numbers.try_emplace(key, static_cast<uint32_t>(numbers.size())).first->second);
    costs.push_back(event.cost);
    used.push_back(event.used == ReplayEvent::kCost ? event.cost : event.used);
  }
  const std::vector<uint32_t> counts(limits.size(), static_cast<uint32_t>(numbers.size()));
  Replayer replayer({limits.begin(), limits.end()}, counts);
  const std::vector<ChargeColumns> charges(limits.size(), {keys.data(), costs.data(), used.data()});
  std::vector<Decision> decisions;
  decisions.reserve(events.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const int64_t now_ns = std::clamp<int64_t>(events[i].now_ns, 0, kMaxInstantNs);
    decisions.push_back(replayer.Hit(charges, i, now_ns));
    // The replayer's own limits die with it.
    decisions.back().limit = &limits[decisions.back().rule];
  }
  return decisions;
}

}  // namespace tidegate
