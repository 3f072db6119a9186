// The configuration of Envoy's rate limit service: domains of nested descriptors with their limits.
//
//   DescriptorTree tree;
//   auto domain = tree.AddDomain({.name = "messaging"});
//   auto phone = tree.AddDescriptor(*domain, {.key = "to_number", .limits = {"100/day"}});
//   Matched matched = tree.Match(request.domain, request.descriptors[0].entries);
//
// A complete tree does not change, and is thread-safe.
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

// The id of all limits. Usage is identified by domain and descriptor, so the limit needs no id of
// its own, and usage survives every change of a number.
inline constexpr std::string_view kLimitId = "envoy";

struct DomainSpec {
  std::string name;
  // Whether a request is charged for all of its descriptors or for none. Otherwise each descriptor
  // is charged separately, and refused hits use up what is left. By default the service decides.
  std::optional<bool> all_or_none;
};

struct DescriptorSpec {
  std::string key;
  // Each '*' stands for any text, also none. Without a value any value matches.
  std::optional<std::string> value;
  // Limits in tidegate's grammar, such as "100/minute". Without any, no limit applies.
  std::vector<std::string> limits;
  Algorithm algorithm = Algorithm::kFixedWindow;
  bool unlimited = false;
  std::string name;                   // the limit's name, for `replaces` and for responses
  std::vector<std::string> replaces;  // names of limits that this one replaces
  bool shadow = false;                // the limit counts, and refuses nothing
  // The limit refuses only if those of all descriptors in quota mode are exceeded; the response
  // says which are.
  bool quota = false;
  // Whether hits on the limit report what has been used, and are charged in full. By default those
  // of a descriptor with its own hits_addend do.
  std::optional<bool> reports;
  bool share_threshold = false;  // the values of a wildcard share their usage
  bool detailed_metric = false;  // all values of the request are part of the metric's name
  bool value_to_metric = false;  // this descriptor's value is part of the metric's name
  Metadata metadata;             // for the response while the limit is not exceeded

  bool is_wildcard() const { return value.has_value() && value->find('*') != std::string::npos; }
};

// A value with wildcards.
class Pattern {
 public:
  explicit Pattern(std::string_view text);
  bool Matches(std::string_view value) const;

 private:
  // What stands before the first '*', between two, and after the last one.
  std::vector<std::string> parts_;
  size_t least_ = 0;  // the bytes of all parts
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
    // The name of the counters: "domain" and "key_value.key". Values of the request are added if
    // `has_own_metrics`.
    std::string path;
    bool has_own_metrics = false;
    bool all_or_none_given = false, all_or_none = true;  // the setting of a domain
    std::deque<NodeLimit> limits;
    Id first_limit = 0;  // the number of its first limit among the limits of the tree

    bool has_limit() const { return spec.unlimited || !limits.empty(); }
    bool is_wildcard() const { return spec.is_wildcard(); }
    // The part of a metric's name for this node and a request's value.
    void AppendMetric(const Entry& entry, bool all_values, std::string* metric) const;

   private:
    friend class DescriptorTree;
    struct Children {
      absl::flat_hash_map<std::string, const Node*> by_value;
      std::vector<std::pair<Pattern, const Node*>> by_pattern;  // in the order of the file
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

  // Returns an AlreadyExistsError for a domain or descriptor that was added before.
  absl::StatusOr<Id> AddDomain(const DomainSpec& spec);
  // `parent` is a domain or a descriptor. An error says what was given and what is expected.
  absl::StatusOr<Id> AddDescriptor(Id parent, DescriptorSpec spec);

  // Returns the descriptor whose limit applies. An exact value is tried first, then wildcards in
  // the order in which they were added, then a key without a value; there is no backtracking from a
  // value to the key alone. The limit is that of the node at the depth of the last entry.
  Matched Match(std::string_view domain, absl::Span<const Entry> entries) const;

  const std::deque<Node>& nodes() const { return nodes_; }
  size_t limits() const { return limits_; }

 private:
  absl::Status AddLimits(Node* node);

  std::deque<Node> nodes_;
  absl::flat_hash_map<std::string, const Node*> domains_;
  uint32_t limits_ = 0;
};

// The key that a request's descriptor is counted by. Each part is preceded by its length, so that
// no two descriptors have the same key. `node` is the matched node, or null: values of a shared
// wildcard are counted as the wildcard.
std::string CountKey(std::string_view domain, absl::Span<const Entry> entries,
                     const DescriptorTree::Node* node);

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_DESCRIPTOR_TREE_H_
