#include "table/quota_table.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "quotas/step.h"

namespace tidegate {

QuotaTable::QuotaTable(size_t most_bytes)
    : most_states_(std::max<size_t>(16, most_bytes / kStateBytes / kShards)) {}

void QuotaTable::With(const Fingerprint& key, const QuotaTerms& terms, int64_t now_ns,
                      absl::FunctionRef<bool(QuotaState&)> work) {
  Shard& shard = states_.Of(key);
  const std::lock_guard lock(shard.mutex);
  const auto it = shard.values.find(key);
  QuotaState state = it == shard.values.end() ? QuotaState() : it->second.state;
  if (!work(state)) return;
  const int64_t forgotten_s = ForgottenAt(terms, state);
  if (it != shard.values.end()) {
    it->second = {forgotten_s, std::move(state)};
    return;
  }
  shard.values.emplace(key, Kept{forgotten_s, std::move(state)});
  if (shard.values.size() > std::min(shard.sweep_at, most_states_)) {
    Sweep(shard, key, now_ns / 1'000'000'000);
  }
}

QuotaState QuotaTable::Read(const Fingerprint& key) const {
  const Shard& shard = states_.Of(key);
  const std::lock_guard lock(shard.mutex);
  const auto it = shard.values.find(key);
  return it == shard.values.end() ? QuotaState() : it->second.state;
}

void QuotaTable::Erase(const Fingerprint& key) {
  Shard& shard = states_.Of(key);
  const std::lock_guard lock(shard.mutex);
  shard.values.erase(key);
}

void QuotaTable::Clear() {
  for (Shard& shard : states_) {
    const std::lock_guard lock(shard.mutex);
    shard.values.clear();
  }
}

// Drops states that equal fresh ones. If too many are left, also drops a sixteenth of the live
// states: first states without top-ups, then by least usage, then by the earliest expiry.
void QuotaTable::Sweep(Shard& shard, const Fingerprint& kept, int64_t now_s) {
  shard.evictions += static_cast<int64_t>(absl::erase_if(
      shard.values, [now_s](const auto& entry) { return entry.second.forgotten_s + 1 <= now_s; }));
  if (shard.values.size() > most_states_) {
    std::vector<std::tuple<bool, int64_t, int64_t, Fingerprint>> order;
    order.reserve(shard.values.size());
    for (const auto& [key, held] : shard.values) {
      if (key == kept) continue;
      order.emplace_back(!held.state.top_ups.empty(), held.state.used, held.forgotten_s, key);
    }
    const size_t excess = shard.values.size() - most_states_ + most_states_ / 16;
    const auto least = [](const auto& a, const auto& b) {
      return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a)) <
             std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b));
    };
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(excess, order.size()));
    std::nth_element(order.begin(), end == order.end() ? end - 1 : end, order.end(), least);
    for (auto it = order.begin(); it != end; ++it) shard.values.erase(std::get<3>(*it));
    shard.evicted_live += end - order.begin();
  }
  shard.SetNextSweep();
}

}  // namespace tidegate
