// A tree of descriptors in force: its limits bound to a store, its counters, and the limits that
// requests send with their descriptors.
#ifndef TIDEGATE_SERVER_ENVOY_BOUND_TREE_H_
#define TIDEGATE_SERVER_ENVOY_BOUND_TREE_H_

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/envoy/descriptor_tree.h"
#include "server/envoy/metrics.h"
#include "tidegate/store.h"

namespace tidegate::server::envoy {

// Thread-safe.
class BoundTree {
 public:
  using Node = DescriptorTree::Node;

  // Returns an error for a limit that the store does not support.
  static absl::StatusOr<std::shared_ptr<const BoundTree>> Create(
      std::shared_ptr<const DescriptorTree> tree, const Store& store, std::string_view scope,
      Metrics* metrics);

  const DescriptorTree& tree() const { return *tree_; }
  const BoundLimit& limit(const Node& node, size_t i) const {
    return limits_[node.first_limit + i];
  }

  // Binds a limit that a request sent. The limit is valid as long as this tree, or as the result.
  absl::StatusOr<std::shared_ptr<const BoundLimit>> Override(const LimitOverride& limit) const;

  // The counters of a request's descriptor that matched `node`.
  std::shared_ptr<Counters> CountersOf(const Node& node, absl::Span<const Entry> entries) const;
  // The counters of a request's descriptor that has its own limit.
  std::shared_ptr<Counters> CountersOf(std::string_view domain,
                                       absl::Span<const Entry> entries) const;

 private:
  // The number of limits of requests that are kept; further limits are bound anew each time.
  static constexpr size_t kMostOverrides = 10'000;

  BoundTree(std::shared_ptr<const DescriptorTree> tree, const Store& store, std::string_view scope,
            Metrics* metrics)
      : tree_(std::move(tree)), store_(store), scope_(scope), metrics_(*metrics) {}

  absl::Status Bind();

  const std::shared_ptr<const DescriptorTree> tree_;
  const Store& store_;
  const std::string scope_;
  Metrics& metrics_;
  std::deque<BoundLimit> limits_;  // by Node::first_limit
  absl::flat_hash_map<const Node*, std::shared_ptr<Counters>> counters_;
  std::shared_ptr<Counters> other_overrides_;
  mutable absl::Mutex mutex_;
  mutable absl::flat_hash_map<uint64_t, std::shared_ptr<const BoundLimit>> overrides_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_BOUND_TREE_H_
