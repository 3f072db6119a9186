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
  Shard& shard = ShardOf(key);
  const std::lock_guard lock(shard.mutex);
  const auto it = shard.states.find(key);
  QuotaState state = it == shard.states.end() ? QuotaState() : it->second.state;
  if (!work(state)) return;
  const int64_t forgotten_s = ForgottenAt(terms, state);
  if (it != shard.states.end()) {
    it->second = {forgotten_s, std::move(state)};
    return;
  }
  shard.states.emplace(key, Kept{forgotten_s, std::move(state)});
  if (shard.states.size() > std::min(shard.sweep_at, most_states_)) {
    Sweep(shard, key, now_ns / 1'000'000'000);
  }
}

QuotaState QuotaTable::Read(const Fingerprint& key) const {
  const Shard& shard = shards_[key.hi % kShards];
  const std::lock_guard lock(shard.mutex);
  const auto it = shard.states.find(key);
  return it == shard.states.end() ? QuotaState() : it->second.state;
}

void QuotaTable::Erase(const Fingerprint& key) {
  Shard& shard = ShardOf(key);
  const std::lock_guard lock(shard.mutex);
  shard.states.erase(key);
}

void QuotaTable::Clear() {
  for (Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    shard.states.clear();
  }
}

// Drops states that equal fresh ones. If too many are left, also drops a sixteenth of the live
// states: first states without top-ups, then by least usage, then by the earliest expiry.
void QuotaTable::Sweep(Shard& shard, const Fingerprint& kept, int64_t now_s) {
  shard.evictions += static_cast<int64_t>(absl::erase_if(
      shard.states, [now_s](const auto& entry) { return entry.second.forgotten_s + 1 <= now_s; }));
  if (shard.states.size() > most_states_) {
    std::vector<std::tuple<bool, int64_t, int64_t, Fingerprint>> order;
    order.reserve(shard.states.size());
    for (const auto& [key, held] : shard.states) {
      if (key == kept) continue;
      order.emplace_back(!held.state.top_ups.empty(), held.state.used, held.forgotten_s, key);
    }
    const size_t excess = shard.states.size() - most_states_ + most_states_ / 16;
    const auto least = [](const auto& a, const auto& b) {
      return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a)) <
             std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b));
    };
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(excess, order.size()));
    std::nth_element(order.begin(), end == order.end() ? end - 1 : end, order.end(), least);
    for (auto it = order.begin(); it != end; ++it) shard.states.erase(std::get<3>(*it));
    shard.evicted_live += end - order.begin();
  }
  shard.sweep_at = std::max<size_t>(64, 2 * shard.states.size());
}

void QuotaTable::Count(StoreStats* stats) const {
  for (const Shard& shard : shards_) {
    const std::lock_guard lock(shard.mutex);
    stats->keys += static_cast<int64_t>(shard.states.size());
    stats->evictions += shard.evictions;
    stats->evicted_live += shard.evicted_live;
  }
}

}  // namespace tidegate
