// The configuration of Envoy's rate limit service: domains of nested descriptors with their limits.
//
//   DescriptorTree tree;
//   auto domain = tree.AddDomain({.name = "messaging"});
//   auto phone = tree.AddDescriptor(*domain, {.key = "to_number", .limits = {"100/day"}});
//   Matched matched = tree.Match(request.domain, request.descriptors[0].entries);
//
// Once it is complete it does not change, and is then thread-safe.
#ifndef TIDEGATE_SERVER_ENVOY_DESCRIPTOR_TREE_H_
#define TIDEGATE_SERVER_ENVOY_DESCRIPTOR_TREE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/envoy/rate_limit_message.h"
#include "tidegate/limit.h"

namespace tidegate::server::envoy {

// The id of all limits. A count is known by its domain and descriptor, so the limit needs no name
// of its own, and usage survives every change of a number.
inline constexpr std::string_view kLimitId = "envoy";

struct DomainSpec {
  std::string name;
  // Whether a request is charged for all of its descriptors or for none. Else each is charged on
  // its own, and hits that are refused use up what is left. Not given: as the service is set.
  std::optional<bool> all_or_none;
};

struct DescriptorSpec {
  std::string key;
  std::optional<std::string> value;  // ends in '*': every value that begins so; none: any value
  // In tidegate's grammar: "100/minute". A descriptor without any, and not unlimited, has no limit.
  std::vector<std::string> limits;
  Algorithm algorithm = Algorithm::kFixedWindow;
  bool unlimited = false;
  std::string name;                   // of its limit: for `replaces` of others, and for callers
  std::vector<std::string> replaces;  // names of limits that do not apply beside this one
  bool shadow = false;                // counts, and refuses nothing
  bool quota = false;                 // the same, and the response says that it was exceeded
  bool share_threshold = false;       // the values of a wildcard have one count
  bool detailed_metric = false;       // all values of the request are part of the metrics' name
  bool value_to_metric = false;       // this one's value is
};

// One limit of a descriptor, as callers see it.
struct NodeLimit {
  Limit limit;
  CurrentLimit shown;
};

class DescriptorTree {
 public:
  using Id = uint32_t;

  struct Node {
    DescriptorSpec spec;
    const Node* parent = nullptr;  // null: the root of a domain
    uint32_t depth = 0;
    std::string domain;
    // Of the counters: "domain" and "key_value.key". Values of the request are added where
    // `has_own_metrics`.
    std::string path;
    bool has_own_metrics = false;
    bool all_or_none_given = false, all_or_none = true;  // of a domain
    std::deque<NodeLimit> limits;
    Id first_limit = 0;  // the number of its first limit among those of the tree

    bool has_limit() const { return spec.unlimited || !limits.empty(); }
    bool is_wildcard() const { return spec.value.has_value() && spec.value->ends_with('*'); }
    // Its part of a name of metrics, for a request with this value.
    void AppendMetric(const Entry& entry, bool all_values, std::string* metric) const;

   private:
    friend class DescriptorTree;
    struct Children {
      absl::flat_hash_map<std::string, const Node*> by_value;
      std::vector<std::pair<std::string, const Node*>> by_prefix;  // in the order of the file
      const Node* any = nullptr;
    };
    const Node* Find(const Entry& entry) const;
    absl::flat_hash_map<std::string, Children> children_;
  };

  struct Matched {
    const Node* domain = nullptr;  // null: no such domain
    const Node* node = nullptr;    // null: no limit applies
  };

  DescriptorTree() = default;
  DescriptorTree(const DescriptorTree&) = delete;
  DescriptorTree& operator=(const DescriptorTree&) = delete;

  // An AlreadyExistsError for a domain, or a descriptor, that was added before.
  absl::StatusOr<Id> AddDomain(const DomainSpec& spec);
  // `parent` is a domain or a descriptor. An error says what was given and what is expected.
  absl::StatusOr<Id> AddDescriptor(Id parent, DescriptorSpec spec);

  // The descriptor whose limit applies. An exact value comes before wildcards, in the order in
  // which they were added, and these before a key alone; there is no way back from a value to the
  // key alone. The limit is that of the node at the depth of the last entry.
  Matched Match(std::string_view domain, absl::Span<const Entry> entries) const;

  const std::deque<Node>& nodes() const { return nodes_; }
  size_t limits() const { return limits_; }

 private:
  absl::Status AddLimits(Node* node);

  std::deque<Node> nodes_;
  absl::flat_hash_map<std::string, const Node*> domains_;
  uint32_t limits_ = 0;
};

// The key that a descriptor of a request is counted by. Each part has its length before it, so that
// no two descriptors have the same. `node` is the matched one, or null: values of a shared wildcard
// are counted as the wildcard.
std::string CountKey(std::string_view domain, absl::Span<const Entry> entries,
                     const DescriptorTree::Node* node);

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_DESCRIPTOR_TREE_H_
