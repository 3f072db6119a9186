// A map from fingerprint to Value in kCount parts, each with a mutex of its own.
#ifndef TIDEGATE_SRC_TABLE_SHARDS_H_
#define TIDEGATE_SRC_TABLE_SHARDS_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "tidegate/fingerprint.h"
#include "tidegate/store.h"

namespace tidegate {

template <typename Value, size_t kCount>
class Shards {
 public:
  struct Hash {
    size_t operator()(const Fingerprint& f) const { return f.lo; }
  };
  using Values = absl::flat_hash_map<Fingerprint, Value, Hash>;
  // The mutex guards all the rest. Not absl::Mutex: built with its deadlock detection, as in
  // Debian, it costs more than the decision.
  struct alignas(64) Shard {
    // To be called after a sweep.
    void SetNextSweep() { sweep_at = std::max<size_t>(64, 2 * values.size()); }

    mutable std::mutex mutex;
    Values values;
    size_t bytes = 0;      // as far as the owner counts them
    size_t sweep_at = 64;  // the number of values
    int64_t evictions = 0;
    int64_t evicted_live = 0;
  };

  Shard& Of(const Fingerprint& key) { return shards_[key.hi % kCount]; }
  const Shard& Of(const Fingerprint& key) const { return shards_[key.hi % kCount]; }
  auto begin() { return shards_.begin(); }
  auto end() { return shards_.end(); }

  // Adds the counters of all shards to `stats`.
  void Count(StoreStats* stats) const {
    for (const Shard& shard : shards_) {
      const std::lock_guard lock(shard.mutex);
      stats->keys += static_cast<int64_t>(shard.values.size());
      stats->evictions += shard.evictions;
      stats->evicted_live += shard.evicted_live;
    }
  }

 private:
  std::array<Shard, kCount> shards_;
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_SHARDS_H_
