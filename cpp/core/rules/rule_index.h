// Finds which of many conditions a request meets, in a time that hardly grows with their number.
//
// Each condition is at the place of its endpoint: a map holds the endpoints without a wildcard, and
// a tree of path parts holds the patterns. The conditions of one place are grouped by the
// attributes that they name and by the length of their network's prefix. A group is a map from the
// values of these attributes, and from the network, to conditions.
#ifndef TIDEGATE_RULES_RULE_INDEX_H_
#define TIDEGATE_RULES_RULE_INDEX_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "rules/endpoint.h"
#include "rules/network.h"
#include "tidegate/fingerprint.h"
#include "tidegate/rule_set.h"

namespace tidegate {

// A set of at most 64 numbers.
using NumberSet = uint64_t;
inline constexpr NumberSet kAllNumbers = ~NumberSet{0};
inline constexpr int kMostNumbers = 63;
// The number of an unknown tier or method. Only the set of all numbers has it.
inline constexpr int kOtherNumber = 63;

// The numbers of a request's method. HEAD is answered as GET is, so it meets what names GET; what
// names HEAD is more specific.
struct RuleSet::RequestMethod {
  int number = kOtherNumber;
  int as_get = kOtherNumber;  // of GET if the method is HEAD, else the same as `number`
};

class RuleSet::Index {
 public:
  static constexpr uint32_t kNoPattern = UINT32_MAX;

  // A condition. A request that meets all of it finds its target.
  struct Entry {
    uint32_t target = 0;                        // the number of its rule, cost or list entry
    uint32_t dimension = 0;                     // a search finds one target of each dimension
    const EndpointPattern* endpoint = nullptr;  // null for any endpoint
    // Attributes, in ascending order of their numbers, and their values.
    absl::InlinedVector<std::pair<uint32_t, std::string_view>, 2> when;
    const Network* network = nullptr;
    NumberSet tiers = kAllNumbers;
    NumberSet methods = kAllNumbers;
  };

  struct Found {
    uint32_t target;
    uint32_t dimension;
    uint32_t pattern;  // kNoPattern if the condition's endpoint has no `{name}`
    uint32_t rank;
  };
  using AllFound = absl::InlinedVector<Found, 6>;

  Index();
  // Targets that are equally specific do not collide: a search finds the lowest of them.
  void KeepEqual() { keeps_equal_ = true; }
  // The target is found only from `from_ns` on and before `until_ns`.
  void SetTimes(uint32_t target, int64_t from_ns, int64_t until_ns);
  // False if a request may meet the conditions of this entry and of another target of the same
  // dimension, and neither is more specific. Then `collides_with` is that target.
  bool Add(const Entry& entry, uint32_t* collides_with);
  // Frees what only Add() needs. Call it after the last Add().
  void Finish();

  // Finds the most specific target of each dimension. `endpoint` is canonical; `tier` is a number.
  void Find(const Request& request, std::string_view endpoint, int tier, RequestMethod method,
            int64_t now_ns, AllFound* found) const;

  const EndpointPattern& pattern(uint32_t number) const { return patterns_[number]; }

 private:
  struct Leaf {
    uint32_t target;
    uint32_t pattern;
    NumberSet tiers;
    NumberSet methods;

    bool Overlaps(const Leaf& other) const {
      return (tiers & other.tiers) != 0 && (methods & other.methods) != 0;
    }
    // How specific it is among the leaves of its group; more is more specific.
    uint32_t rank() const {
      return (tiers != kAllNumbers ? 4U : 0U) + (methods != kAllNumbers ? 2U : 0U);
    }
  };
  using Leaves = absl::InlinedVector<Leaf, 1>;
  struct Group {
    uint32_t dimension = 0;
    std::vector<uint32_t> attributes;
    int prefix = -1;  // -1 without a network
    uint32_t rank = 0;
    Leaves leaves;  // for a group without attributes and without a network
    absl::flat_hash_map<Fingerprint, Leaves> by_value;
    // The values of by_value as texts. Add() finds collisions with other groups by them.
    std::vector<std::pair<std::vector<std::string>, Leaf>> listed;
  };
  struct Place {
    std::vector<Group> groups;
  };
  struct Node {
    uint32_t any_part = 0;
    int here = -1;   // the place of the pattern that ends here
    int below = -1;  // the place of the pattern that ends here with `**`
  };
  struct Child {
    uint32_t node;
    std::string part;
  };
  struct ChildView {
    uint32_t node;
    std::string_view part;
  };
  struct ChildHash {
    using is_transparent = void;
    size_t operator()(const ChildView& c) const;
    size_t operator()(const Child& c) const { return (*this)(ChildView{c.node, c.part}); }
  };
  struct ChildEqual {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return a.node == b.node && std::string_view(a.part) == std::string_view(b.part);
    }
  };
  // The arguments and the results of one search.
  struct Search;

  int PlaceFor(const EndpointPattern* endpoint);
  Group& GroupFor(Place& place, const Entry& entry);
  static bool Collides(const Place& place, const Group& group, const Entry& entry, const Leaf& leaf,
                       uint32_t* with);
  Fingerprint ValueOf(const Group& group, const Entry& entry) const;
  void Walk(const PathParts& parts, size_t part, uint32_t node, Search& search) const;
  void Visit(int place, Search& search) const;
  bool IsInForce(uint32_t target, int64_t now_ns) const;

  const Hasher hasher_;
  std::vector<EndpointPattern> patterns_;  // those with `{name}`
  std::vector<Place> places_;
  absl::flat_hash_map<std::string, int> exact_;
  std::vector<Node> nodes_{1};
  absl::flat_hash_map<Child, uint32_t, ChildHash, ChildEqual> children_;
  int anywhere_ = -1;
  bool has_networks_ = false;
  bool keeps_equal_ = false;
  absl::flat_hash_map<uint32_t, std::pair<int64_t, int64_t>> times_;
};

}  // namespace tidegate

#endif  // TIDEGATE_RULES_RULE_INDEX_H_
