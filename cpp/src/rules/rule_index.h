// Finds which of many conditions a request meets, in a time that hardly grows with their number.
//
// Conditions lie where their endpoint does: a map holds the endpoints without a wildcard, a tree
// of path parts the patterns. At each place they are grouped by the attributes that they name and
// by the length of their network's prefix; a group is a map from the values of these.
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
// The number of what is none of those known; in no set but that of all.
inline constexpr int kOtherNumber = 63;

class RuleSet::Index {
 public:
  static constexpr uint32_t kNoPattern = UINT32_MAX;

  // Of a condition: its target is found where all of this is met.
  struct Entry {
    uint32_t target = 0;                        // the number of what the condition is of
    uint32_t dimension = 0;                     // of each dimension one target is found
    const EndpointPattern* endpoint = nullptr;  // any where it is null
    absl::InlinedVector<std::pair<uint32_t, std::string_view>, 2> when;  // by number, ascending
    const Network* network = nullptr;
    NumberSet tiers = kAllNumbers;
    NumberSet methods = kAllNumbers;
    bool wins_ties = false;
  };

  struct Found {
    uint32_t target;
    uint32_t dimension;
    uint32_t pattern;  // kNoPattern where the endpoint was none with names
    uint32_t rank;
  };
  using AllFound = absl::InlinedVector<Found, 6>;

  Index();
  // False, with the target that it collides with: one of the same dimension which is as specific
  // and whose condition a request may meet at once.
  bool Add(const Entry& entry, uint32_t* collides_with);
  // Nothing is added any more.
  void Finish();

  // The most specific target of each dimension. `endpoint` is canonical, `tier` and `method` are
  // numbers.
  void Find(const Request& request, std::string_view endpoint, int tier, int method,
            AllFound* found) const;

  const EndpointPattern& pattern(uint32_t number) const { return patterns_[number]; }

 private:
  struct Leaf {
    uint32_t target;
    uint32_t pattern;
    NumberSet tiers;
    NumberSet methods;
    bool wins_ties;

    bool Overlaps(const Leaf& other) const {
      return (tiers & other.tiers) != 0 && (methods & other.methods) != 0;
    }
    // How specific it is among those of its group.
    uint32_t rank() const {
      return (tiers != kAllNumbers ? 4U : 0U) + (methods != kAllNumbers ? 2U : 0U) +
             (wins_ties ? 1U : 0U);
    }
  };
  using Leaves = absl::InlinedVector<Leaf, 1>;
  struct Group {
    uint32_t dimension = 0;
    std::vector<uint32_t> attributes;
    int prefix = -1;  // no network
    uint32_t rank = 0;
    Leaves leaves;  // where there are neither attributes nor a network
    absl::flat_hash_map<Fingerprint, Leaves> by_value;
    // The values of by_value, from which collisions with other groups are found.
    std::vector<std::pair<std::vector<std::string>, Leaf>> listed;
  };
  struct Place {
    std::vector<Group> groups;
  };
  struct Node {
    uint32_t any_part = 0;
    int here = -1;   // the place of a pattern that ends here
    int below = -1;  // of one that goes on with `**`
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
  // What a search has at hand.
  struct Search;

  int PlaceFor(const EndpointPattern* endpoint);
  Group& GroupFor(Place& place, const Entry& entry);
  static bool Collides(const Place& place, const Group& group, const Entry& entry, const Leaf& leaf,
                       uint32_t* with);
  Fingerprint ValueOf(const Group& group, const Entry& entry) const;
  void Walk(const PathParts& parts, size_t part, uint32_t node, Search& search) const;
  void Visit(int place, Search& search) const;

  const Hasher hasher_;
  std::vector<EndpointPattern> patterns_;  // those with names
  std::vector<Place> places_;
  absl::flat_hash_map<std::string, int> exact_;
  std::vector<Node> nodes_{1};
  absl::flat_hash_map<Child, uint32_t, ChildHash, ChildEqual> children_;
  int anywhere_ = -1;
  bool has_networks_ = false;
};

}  // namespace tidegate

#endif  // TIDEGATE_RULES_RULE_INDEX_H_
