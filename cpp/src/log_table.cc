#include "log_table.h"

#include <algorithm>
#include <vector>

#include "tidegate/step.h"

namespace tidegate {

void LogTable::With(const Fingerprint& key, int64_t now_ns,
                    absl::FunctionRef<void(InstantRing&)> work) {
  Shard& shard = ShardOf(key);
  absl::MutexLock lock(&shard.mutex);
  auto [it, made] = shard.rings.try_emplace(key);
  const size_t before = made ? 0 : kRingBytes + it->second.bytes();
  work(it->second);
  shard.bytes += kRingBytes + it->second.bytes() - before;
  if (shard.bytes > most_shard_bytes_ ||
      (made && shard.rings.size() > shard.sweep_at)) [[unlikely]] {
    Sweep(shard, now_ns);
  }
}

void LogTable::WithExisting(const Fingerprint& key,
                            absl::FunctionRef<void(InstantRing*)> work) {
  Shard& shard = ShardOf(key);
  absl::MutexLock lock(&shard.mutex);
  const auto it = shard.rings.find(key);
  work(it == shard.rings.end() ? nullptr : &it->second);
}

void LogTable::Erase(const Fingerprint& key) {
  Shard& shard = ShardOf(key);
  absl::MutexLock lock(&shard.mutex);
  const auto it = shard.rings.find(key);
  if (it == shard.rings.end()) return;
  shard.bytes -= kRingBytes + it->second.bytes();
  shard.rings.erase(it);
}

// Drops idle rings; where that is not enough, also those nearest to idle, down
// to 15/16 of the bound.
void LogTable::Sweep(Shard& shard, int64_t now_ns) {
  const auto idle_from = [](const InstantRing& ring) {
    return ring.empty() ? int64_t{0} : ring.newest();
  };
  const auto drop = [&](auto it) {
    shard.bytes -= kRingBytes + it->second.bytes();
    shard.rings.erase(it);
  };
  for (auto it = shard.rings.begin(); it != shard.rings.end();) {
    const auto here = it++;
    if (idle_from(here->second) + kClockToleranceNs > now_ns) continue;
    drop(here);
    ++shard.evictions;
  }
  if (shard.bytes > most_shard_bytes_) {
    std::vector<std::pair<int64_t, Fingerprint>> order;
    order.reserve(shard.rings.size());
    for (const auto& [key, ring] : shard.rings) order.emplace_back(idle_from(ring), key);
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    const size_t enough = most_shard_bytes_ - most_shard_bytes_ / 16;
    // The last one stays: a single ring may be larger than the bound.
    for (size_t i = 0; i + 1 < order.size() && shard.bytes > enough; ++i) {
      drop(shard.rings.find(order[i].second));
      ++shard.evicted_live;
    }
  }
  shard.sweep_at = std::max<size_t>(64, 2 * shard.rings.size());
}

void LogTable::Count(StoreStats* stats) const {
  for (const Shard& shard : shards_) {
    absl::MutexLock lock(&shard.mutex);
    stats->keys += static_cast<int64_t>(shard.rings.size());
    stats->evictions += shard.evictions;
    stats->evicted_live += shard.evicted_live;
  }
}

}  // namespace tidegate
