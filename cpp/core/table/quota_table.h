// The quotas of a memory store: a sharded map from fingerprint to QuotaState, bounded in bytes.
#ifndef TIDEGATE_SRC_TABLE_QUOTA_TABLE_H_
#define TIDEGATE_SRC_TABLE_QUOTA_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "table/shards.h"
#include "tidegate/fingerprint.h"
#include "tidegate/quota.h"
#include "tidegate/store.h"

namespace tidegate {

// Thread-safe.
class QuotaTable {
 public:
  explicit QuotaTable(size_t most_bytes);

  // Calls `work` with the state of `key`, or with a fresh state, while no other thread uses it;
  // stores the state if `work` returns true.
  void With(const Fingerprint& key, const QuotaTerms& terms, int64_t now_ns,
            absl::FunctionRef<bool(QuotaState&)> work);
  QuotaState Read(const Fingerprint& key) const;
  void Erase(const Fingerprint& key);
  void Clear();
  // Adds the counters of this table to `stats`.
  void Count(StoreStats* stats) const { states_.Count(stats); }

 private:
  static constexpr size_t kShards = 64;
  struct Kept {
    int64_t forgotten_s;
    QuotaState state;
  };
  using States = Shards<Kept, kShards>;
  using Shard = States::Shard;
  // The approximate bytes of a state in the map, with one or two top-ups.
  static constexpr size_t kStateBytes = sizeof(Fingerprint) + sizeof(Kept) + 64;

  void Sweep(Shard& shard, const Fingerprint& kept, int64_t now_s);

  const size_t most_states_;  // the bound for each shard
  States states_;
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_QUOTA_TABLE_H_
