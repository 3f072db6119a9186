// Rules: which limits apply to which requests.
//
//   RuleSetSpec spec;
//   spec.rules.push_back({.id = "api", .by = {"user"}, .endpoints = {"/api/*"},
//                         .limits = {{.limits = {*Limit::Parse("100/minute")}}}});
//   std::vector<RuleProblem> problems;
//   std::shared_ptr<const RuleSet> rules = RuleSet::Compile(std::move(spec), &problems);
//
// A request is a set of attributes: its endpoint, method, tier, ip, and any others that the
// service names. Rules that count the same (costs, or requests) by the same attributes are one
// dimension: of those that apply to a request, the most specific one wins. Rules of different
// dimensions all apply. The time to match does not grow with the number of rules.
#ifndef TIDEGATE_RULE_SET_H_
#define TIDEGATE_RULE_SET_H_

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "tidegate/limit.h"
#include "tidegate/load_factor.h"

namespace tidegate {

// Which requests a rule, a cost or an entry of a list is for. What is empty sets no condition.
struct RuleCondition {
  // A path, whose parts may be `*` or `{name}` (any one part) and at the end `**` (any number of
  // parts, none too); or any other text, which stands for itself.
  std::vector<std::string> endpoints;
  std::vector<std::string> methods;
  std::vector<std::string> tiers;
  std::vector<std::string> networks;                      // CIDRs, of the attribute `ip`
  std::vector<std::pair<std::string, std::string>> when;  // attribute and its value
};

// The limits of one tier; of every tier that has none of its own where `tier` is empty. Without
// limits the tier is unlimited.
struct TierLimits {
  std::string tier;
  std::vector<Limit> limits;
};

struct Rule {
  std::string id;
  // The attributes whose values are the key; none for one count of all requests. Of an endpoint
  // that was matched by a pattern, what `{name}` stands for does not tell keys apart.
  std::vector<std::string> by;
  RuleCondition condition;
  std::vector<TierLimits> limits;
  // Rules that do not apply where this one does, whatever they count by.
  std::vector<std::string> replaces;
  // Whether a request is charged one unit, whatever it costs.
  bool counts_requests = false;
  // What its counts are known by, where it is not the id: rules of one counter that count by the
  // same attributes count together.
  std::string counter;
  // What stays of its counts when the number of a limit changes; nothing where it resets.
  CarryOver carry_over = CarryOver::kUnits;
  bool resets = false;
  // The percentage of its limits that is kept from requests of each priority: of theirs and those
  // of lower priority together, no more than the rest is let through. Nothing is kept from
  // critical ones. Not of limits by an override.
  std::array<int, kPriorities> reserve{};
};

// Other limits for one key of a rule.
struct RuleOverride {
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

  std::string rule;
  std::vector<std::string> key;  // the values of the attributes that the rule counts by
  std::vector<Limit> limits;     // none: unlimited
  int64_t until_ns = kForever;
  std::string reason;
};

// What a request costs, and how much it matters; the most specific one counts.
struct OperationCost {
  RuleCondition condition;
  int64_t cost = 1;
  Priority priority = Priority::kNormal;
};

// Requests that no rule is asked about: they are let through, or refused.
struct ListEntry {
  std::string name;  // what decisions call it
  bool allows = false;
  RuleCondition condition;
};

struct RuleSetSpec {
  // The tiers that there are; those that rules name where it is empty.
  std::vector<std::string> tiers;
  // Of requests without a tier, or with one that there is not.
  std::string default_tier;
  std::vector<Rule> rules;
  // Applies where none of `rules` does. Has no condition.
  std::optional<Rule> otherwise;
  std::vector<RuleOverride> overrides;
  std::vector<OperationCost> costs;
  std::vector<ListEntry> lists;
};

// What is wrong with a specification, and where: "rules[3].endpoints[0]".
struct RuleProblem {
  std::string where;
  std::string message;
};

// The attributes of one request, by their numbers in one rule set; a view without data is an
// attribute that the request does not have.
using Request = absl::InlinedVector<std::string_view, 12>;

// Immutable; thread-safe.
class RuleSet {
 public:
  // These attributes have a meaning of their own, and these numbers in every rule set.
  enum Attribute : uint32_t { kEndpoint, kMethod, kTier, kIp, kPriority };

  // A range of limits().
  struct LimitRange {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  // A rule that applies to a request, with its limits for it.
  struct Applied {
    uint32_t rule = 0;
    LimitRange limits;
    std::string_view key;
  };
  // What applies to a request. Views live as long as this and the request.
  struct Matched {
    const ListEntry* listed = nullptr;  // then no rule was asked
    int64_t cost = 1;
    Priority priority = Priority::kNormal;
    absl::InlinedVector<Applied, 6> rules;

   private:
    friend class RuleSet;
    std::string_view endpoint;  // canonical
    std::string path;           // what it is made in, where it was not
    std::string_view counted_ip;
    std::string network;                  // what that is made in
    absl::InlinedVector<char, 256> made;  // the keys that are made of several values
  };

  // Null where something is wrong: then `problems` says what.
  static std::shared_ptr<const RuleSet> Compile(RuleSetSpec spec,
                                                std::vector<RuleProblem>* problems);
  ~RuleSet();

  // Its number, or -1 of an attribute that no rule looks at.
  int AttributeNumber(std::string_view name) const;
  size_t attributes() const { return attributes_.size(); }
  const std::vector<std::string>& attribute_names() const { return attributes_; }

  // `now_ns` is what overrides expire by.
  void Match(const Request& request, int64_t now_ns, Matched* matched) const;

  // A rule that counts by what is known of a caller, and the key that it counts the caller by.
  struct Known {
    uint32_t rule = 0;
    // The patterns of its endpoints that this key counts; empty if the rule is for every endpoint.
    std::vector<std::string> endpoints;
    std::string key;
    absl::InlinedVector<LimitRange, 2> limits;
  };
  struct KnownRules {
    const ListEntry* listed = nullptr;  // then no rule is asked about the caller's requests
    bool is_cut = false;                // there are more than were asked for
    std::vector<Known> rules;
  };
  // The rules that apply to some request with the attributes in `known`, each at the endpoints,
  // methods, networks and values of its own condition, if they count by what is known. At most
  // `most` of them, in the order of rules().
  KnownRules MatchKnown(const Request& known, int64_t now_ns, size_t most) const;

  // Why each rule applies to the request or does not, in the order of rules(): for people.
  struct Reason {
    uint32_t rule = 0;
    bool applies = false;
    std::string why;
  };
  std::vector<Reason> Explain(const Request& request, int64_t now_ns) const;

  // With `otherwise` as the last, where there is one.
  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<Limit>& limits() const { return limits_; }
  // The rule whose limit this is, by the limit's number.
  uint32_t RuleOf(uint32_t limit) const { return limit_rules_[limit]; }
  const std::vector<ListEntry>& lists() const { return lists_; }
  size_t overrides() const;
  // Of what it holds for overrides.
  size_t override_bytes() const;

 private:
  friend class RuleCompiler;
  class Index;
  class Overrides;
  RuleSet();

  // The tier's number of a request; the default's where it has none that is known.
  size_t TierOf(const Request& request) const;
  // Adds the rule where the request has what it counts by.
  void Apply(uint32_t rule, uint32_t pattern, size_t tier, const Request& request, int64_t now_ns,
             Matched* matched) const;
  static std::string_view ValueOf(uint32_t attribute, const Request& request,
                                  const Matched& matched);
  // Appends the key of a rule that counts by several attributes, or by endpoints with names.
  void MakeKey(uint32_t rule, uint32_t pattern, const Request& request, Matched* matched) const;
  // A request with what is known that meets the rule's own condition at one endpoint.
  Request SampleOf(const Rule& rule, const Request& known, std::string_view endpoint,
                   std::string_view method) const;
  // Whether the key of such a rule is known where its endpoint is this pattern.
  bool KnowsKey(uint32_t rule, const Request& known, std::string_view endpoint) const;
  void AddKnown(uint32_t rule, const Request& known, std::string_view endpoint, int64_t now_ns,
                KnownRules* found) const;
  // What is left for requests of such a priority of the limits of a rule that has a reserve.
  void ApplyReserve(uint32_t rule, size_t tier, std::string_view key, Matched* matched) const;
  // The tiers that a rule is for, by number.
  uint64_t TiersOf(const Rule& rule) const;
  // Which of its conditions the request does not meet; empty where it meets all.
  std::string WhyNot(const Rule& rule, const Request& request, std::string_view endpoint) const;
  // Which rule applies in the place of one whose conditions are met.
  std::string WhoInstead(uint32_t rule, const Matched& matched) const;

  std::vector<std::string> attributes_;
  std::vector<std::string> tiers_;
  std::vector<std::string> methods_;
  size_t default_tier_ = 0;
  std::vector<Rule> rules_;
  bool has_otherwise_ = false;
  std::vector<ListEntry> lists_;
  std::vector<OperationCost> costs_;
  std::vector<Limit> limits_;
  std::vector<uint32_t> limit_rules_;
  std::vector<absl::InlinedVector<uint32_t, 2>> by_;        // of each rule, by number
  std::vector<absl::InlinedVector<uint32_t, 2>> replaces_;  // likewise
  bool any_replaces_ = false;
  // Of each rule: the limits of each tier, in the order of tiers_, and of no tier.
  std::vector<std::vector<LimitRange>> tier_limits_;
  // Of each rule with a reserve, likewise: what it leaves to each priority.
  using LeftToPriority = std::array<LimitRange, kPriorities>;
  absl::flat_hash_map<uint32_t, std::vector<LeftToPriority>> left_by_reserve_;
  std::unique_ptr<Index> index_;
  std::unique_ptr<Index> cost_index_;
  std::unique_ptr<Index> list_index_;
  std::unique_ptr<Overrides> overrides_;
};

}  // namespace tidegate

#endif  // TIDEGATE_RULE_SET_H_
