// Decisions summed by caller, endpoint and refusing rule, until Drain() takes them: the source of
// usage, violations and anomalies.
#ifndef TIDEGATE_SERVER_CHECKS_RECORDER_H_
#define TIDEGATE_SERVER_CHECKS_RECORDER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace tidegate::server {

struct Sums {
  int64_t allowed = 0;
  int64_t refused = 0;
  int64_t refused_in_shadow = 0;
  int64_t degraded = 0;
  int64_t cost = 0;  // the cost of allowed requests

  void Add(const Sums& other);
};

// One decision. Texts may have any bytes, and are cut to Recorder::kMostText; a text is empty if
// the request does not have it.
struct Recorded {
  std::string_view user;
  std::string_view endpoint;
  std::string_view rule;  // the rule that refused, or would have refused if it were enforced
  std::string_view tier;
  std::string_view caller_ip;
  Sums sums;
};

// Thread-safe. Memory is bounded to `capacity` rows with texts of at most kMostText bytes, and a
// fourth more for users who are known, whom no number of invented names displaces.
class Recorder {
 public:
  static constexpr size_t kMostText = 255;
  static constexpr int64_t kDefaultCapacity = 65'536;

  // The sum of decisions with the same user (or address, if there is no user), endpoint and rule.
  // The tier, and the address of a user, are those of the first decision.
  struct Row {
    std::string user;
    std::string endpoint;
    std::string rule;
    std::string tier;
    std::string caller_ip;
    Sums sums;
    bool is_rest = false;  // the sum of all decisions that found no free row
  };

  explicit Recorder(int64_t capacity = kDefaultCapacity) : capacity_(capacity) {}

  // For a caller and endpoint that have a row this takes tens of nanoseconds and no allocation.
  void Record(const Recorded& decision);
  // Says which users are known from now on.
  void SetKnown(std::vector<std::string> users);
  // Returns the rows since the last call and clears them. Decisions wait only while a table is
  // swapped.
  std::vector<Row> Drain();
  // The number of decisions so far that found no free row.
  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }
  int64_t rows() const { return rows_.load(std::memory_order_relaxed); }

 private:
  // `ip` is empty if there is a user.
  struct KeyView {
    std::string_view user, ip, endpoint, rule;
  };
  struct Key {
    std::string user, ip, endpoint, rule;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(const KeyView& k) const;
    size_t operator()(const Key& k) const {
      return (*this)(KeyView{k.user, k.ip, k.endpoint, k.rule});
    }
  };
  struct Equal {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return std::string_view(a.user) == std::string_view(b.user) &&
             std::string_view(a.ip) == std::string_view(b.ip) &&
             std::string_view(a.endpoint) == std::string_view(b.endpoint) &&
             std::string_view(a.rule) == std::string_view(b.rule);
    }
  };
  struct Value {
    std::string tier, caller_ip;
    Sums sums;
  };
  using Table = absl::flat_hash_map<Key, Value, Hash, Equal>;
  // Each thread has a shard, which it rarely shares with another thread.
  // The mutex guards all the rest. Not absl::Mutex, for the reason that LogTable gives.
  struct alignas(64) Shard {
    std::mutex mutex;
    Table table;
    Sums rest;
    bool has_rest = false;
    size_t rows_before = 0;  // the initial size of the next table
  };
  static constexpr size_t kShards = 16;

  static size_t ShardOfThread();
  // Whether a row beyond the capacity may be made for `user`.
  bool IsKnown(std::string_view user) const;

  const int64_t capacity_;
  std::atomic<int64_t> rows_{0};
  std::atomic<int64_t> dropped_{0};
  std::array<Shard, kShards> shards_;
  using Users = absl::flat_hash_set<std::string>;
  mutable std::mutex known_mutex_;
  std::shared_ptr<const Users> known_ = std::make_shared<const Users>();
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_RECORDER_H_
