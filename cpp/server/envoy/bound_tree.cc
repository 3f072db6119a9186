#include "server/envoy/bound_tree.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tidegate::server::envoy {

absl::StatusOr<std::shared_ptr<const BoundTree>> BoundTree::Create(
    std::shared_ptr<const DescriptorTree> tree, const Store& store, std::string_view scope,
    Metrics* metrics) {
  std::shared_ptr<BoundTree> bound(new BoundTree(std::move(tree), store, scope, metrics));
  if (absl::Status status = bound->Bind(); !status.ok()) return status;
  return bound;
}

absl::Status BoundTree::Bind() {
  other_overrides_ = metrics_.Of("", "overrides");
  for (const Node& node : tree_->nodes()) {
    for (const NodeLimit& each : node.limits) {
      if (absl::Status status = store_.Accepts(each.limit); !status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(node.domain, ".", node.path, ": ", status.message()));
      }
      limits_.push_back(store_.Bind(each.limit, scope_));
    }
    if (node.has_limit()) counters_.emplace(&node, metrics_.Of(node.domain, node.path));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const BoundLimit>> BoundTree::Override(
    const LimitOverride& limit) const {
  const uint64_t name = uint64_t{limit.requests_per_unit} << 8 | static_cast<uint64_t>(limit.unit);
  {
    absl::MutexLock lock(&mutex_);
    if (const auto known = overrides_.find(name); known != overrides_.end()) return known->second;
  }
  LimitSpec spec;
  spec.count = limit.requests_per_unit;
  spec.period_ns = PeriodNs(limit.unit);
  spec.algorithm = Algorithm::kFixedWindow;
  spec.id = std::string(kLimitId);
  const absl::StatusOr<Limit> made = Limit::Create(std::move(spec));
  if (!made.ok()) return made.status();
  if (absl::Status status = store_.Accepts(*made); !status.ok()) return status;
  auto bound = std::make_shared<const BoundLimit>(store_.Bind(*made, scope_));
  absl::MutexLock lock(&mutex_);
  if (overrides_.size() < kMostOverrides) overrides_.emplace(name, bound);
  return bound;
}

std::shared_ptr<Counters> BoundTree::CountersOf(const Node& node,
                                                absl::Span<const Entry> entries) const {
  const auto& configured = counters_.find(&node)->second;
  if (!node.has_own_metrics) return configured;
  absl::InlinedVector<const Node*, 8> along;
  for (const Node* each = &node; each->parent != nullptr; each = each->parent) {
    along.push_back(each);
  }
  std::string path;
  for (size_t i = 0; i < entries.size(); ++i) {
    along[along.size() - 1 - i]->AppendMetric(entries[i], node.spec.detailed_metric, &path);
  }
  return metrics_.OfRequest(node.domain, path, configured);
}

std::shared_ptr<Counters> BoundTree::CountersOf(std::string_view domain,
                                                absl::Span<const Entry> entries) const {
  std::string path;
  for (const Entry& entry : entries)
    absl::StrAppend(&path, path.empty() ? "" : ".", Absl(entry.key));
  return metrics_.OfRequest(domain, path, other_overrides_);
}

}  // namespace tidegate::server::envoy
