// The rings of a memory store: a sharded map from fingerprint to InstantRing,
// bounded in bytes.
#ifndef TIDEGATE_SRC_TABLE_LOG_TABLE_H_
#define TIDEGATE_SRC_TABLE_LOG_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "algorithms/log.h"
#include "table/shards.h"
#include "tidegate/decision.h"
#include "tidegate/fingerprint.h"
#include "tidegate/store.h"

namespace tidegate {

// Thread-safe.
class LogTable {
 public:
  explicit LogTable(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Returns the decision of `work` on the ring of `key`, which is created if there is none, while
  // no other thread uses it. A template, so that the step of a hit is inlined and constructs the
  // decision in its place.
  template <typename Work>
  Decision With(const Fingerprint& key, int64_t now_ns, const Work& work);
  // The same, but calls `work` with nullptr if there is no ring.
  void WithExisting(const Fingerprint& key, absl::FunctionRef<void(InstantRing*)> work);
  void Erase(const Fingerprint& key);
  void Clear();
  // Adds the counters of this table to `stats`.
  void Count(StoreStats* stats) const { rings_.Count(stats); }

 private:
  using Rings = Shards<InstantRing, 256>;
  using Shard = Rings::Shard;
  // The bytes of a ring beside its instants.
  static constexpr size_t kRingBytes = sizeof(Fingerprint) + sizeof(InstantRing) + 2;

  // Both require the shard's mutex.
  void Drop(Shard& shard, Rings::Values::iterator it);
  // Makes room; `kept` stays.
  void Sweep(Shard& shard, const Fingerprint& kept, int64_t now_ns);

  // All shards share one bound, so that a few large rings find room beside many
  // small ones. Each shard keeps the ring that it was asked for last.
  const size_t most_bytes_;
  std::atomic<size_t> bytes_{0};
  Rings rings_;
};

template <typename Work>
Decision LogTable::With(const Fingerprint& key, int64_t now_ns, const Work& work) {
  Shard& shard = rings_.Of(key);
  const std::lock_guard lock(shard.mutex);
  auto [it, made] = shard.values.try_emplace(key);
  const size_t before = made ? 0 : kRingBytes + it->second.bytes();
  Decision decision = work(it->second);
  const size_t grown = kRingBytes + it->second.bytes() - before;  // rings never shrink
  if (grown == 0) [[likely]]
    return decision;
  shard.bytes += grown;
  const size_t bytes = bytes_.fetch_add(grown, std::memory_order_relaxed) + grown;
  if (bytes > most_bytes_ || (made && shard.values.size() > shard.sweep_at))
    Sweep(shard, key, now_ns);
  return decision;
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_LOG_TABLE_H_
