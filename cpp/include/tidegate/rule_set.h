// Rules: which limits apply to which requests.
//
//   RuleSetSpec spec;
//   spec.rules.push_back({.id = "api", .by = {"user"}, .endpoints = {"/api/*"},
//                         .limits = {{.limits = {*Limit::Parse("100/minute")}}}});
//   std::vector<RuleProblem> problems;
//   std::shared_ptr<const RuleSet> rules = RuleSet::Compile(std::move(spec), &problems);
//
// A request is a set of attributes: its endpoint, method, tier, ip, and any others that the service
// names. Rules that count the same (costs, or requests) by the same attributes are one dimension:
// of those whose conditions a request meets, only the most specific one applies. Rules of different
// dimensions all apply. Rules with a quota and rules in shadow are dimensions apart, and so is each
// rule with `also`. The time to match does not grow with the number of rules.
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

// Which requests a rule, a cost or an entry of a list is for. An empty field sets no condition.
struct RuleCondition {
  // Each is a path, whose parts may be `*` or `{name}` (any one part), and whose last part may be
  // `**` (any number of parts, also none); or any other text, which matches only itself.
  std::vector<std::string> endpoints;
  std::vector<std::string> methods;
  std::vector<std::string> tiers;
  std::vector<std::string> networks;                      // CIDRs that contain the attribute `ip`
  std::vector<std::pair<std::string, std::string>> when;  // attributes and their values
};

// The limits of one tier. If `tier` is empty, they are those of every tier that has no limits of
// its own. If `limits` is empty, the tier is unlimited.
struct TierLimits {
  std::string tier;
  std::vector<Limit> limits;
};

struct Rule {
  std::string id;
  // The attributes whose values are the key; if empty, all requests are counted together. Endpoints
  // that differ only in what the `{name}` of a pattern stands for have the same key.
  std::vector<std::string> by;
  RuleCondition condition;
  std::vector<TierLimits> limits;
  // The ids of rules that do not apply to a request that this one applies to, whatever they count
  // by. It has no effect between a rule in shadow and one that is enforced.
  std::vector<std::string> replaces;
  // Whether it adds to the rules that count by the same attributes: it is a dimension of its own.
  bool also = false;
  // Whether it refuses nothing. Its limits are in shadow too.
  bool shadow = false;
  // Whether each request is charged one unit, whatever it costs.
  bool counts_requests = false;
  // The name that identifies its usage instead of its id: rules with the same counter that count by
  // the same attributes count together.
  std::string counter;
  // What stays of its usage when the number of a limit changes; nothing if `resets`.
  CarryOver carry_over = CarryOver::kUnits;
  bool resets = false;
  // The percentage of its limits that is kept from requests of each priority: requests of that
  // priority and below may use only the rest, all together. Critical requests may use everything.
  // The limits of an override have no reserve.
  std::array<int, kPriorities> reserve{};
};

// The limits that one key of a rule has instead of the rule's.
struct RuleOverride {
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

  std::string rule;
  std::vector<std::string> key;  // the values of the attributes that the rule counts by
  std::vector<Limit> limits;     // if empty, the key is unlimited
  int64_t until_ns = kForever;
  std::string reason;
  // Of two overrides of one key that are in force, the one that ends first applies; if they end at
  // once, the one that began last.
  int64_t from_ns = 0;
};

// What a request costs, and its priority. The most specific one whose condition a request meets
// applies.
struct OperationCost {
  RuleCondition condition;
  int64_t cost = 1;
  Priority priority = Priority::kNormal;
  // Whether `cost` is but the estimate of what is known afterwards, in units.
  bool is_estimate = false;
  // Of an estimate: what a unit of each field of a usage costs, in millionths.
  std::vector<std::pair<std::string, int64_t>> usage;
};

// Requests that skip the rules: each is allowed or refused. Of two entries that are equally
// specific, one that refuses applies, and of these the first.
struct ListEntry {
  std::string name;  // the name of the limit in decisions
  bool allows = false;
  RuleCondition condition;
  int64_t from_ns = 0;
  int64_t until_ns = RuleOverride::kForever;
};

struct RuleSetSpec {
  // All tiers. If empty, they are those that the rules name.
  std::vector<std::string> tiers;
  // The tier of a request that has none, or an unknown one.
  std::string default_tier;
  std::vector<Rule> rules;
  // Applies to requests to which none of `rules` applies. Has no condition.
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
  // Attributes with a meaning of their own. They have the same numbers in every rule set.
  enum Attribute : uint32_t { kEndpoint, kMethod, kTier, kIp, kPriority };

  // A range of limits().
  struct LimitRange {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  // A rule that applies to a request, with the limits and the key that the request has by it.
  struct Applied {
    uint32_t rule = 0;
    LimitRange limits;
    std::string_view key;
  };
  static constexpr int32_t kNoCost = -1;
  // What applies to a request. Views live as long as this and the request.
  struct Matched {
    const ListEntry* listed = nullptr;  // if set, `rules` is empty
    int64_t cost = 1;
    bool is_estimate = false;
    int32_t cost_number = kNoCost;  // among RuleSetSpec::costs
    Priority priority = Priority::kNormal;
    absl::InlinedVector<Applied, 6> rules;

   private:
    friend class RuleSet;
    std::string_view endpoint;  // canonical
    std::string path;           // owns `endpoint` if the request's own is not canonical
    std::string_view counted_ip;
    std::string network;                  // owns `counted_ip` if that is a network
    std::string method;                   // in upper case, if a rule counts by one that is not
    absl::InlinedVector<char, 256> made;  // owns the keys that are made of several values
  };

  // Null if the specification has problems, which `problems` then lists.
  static std::shared_ptr<const RuleSet> Compile(RuleSetSpec spec,
                                                std::vector<RuleProblem>* problems);
  // Like Compile(), with the overrides of `kept` instead of those of `spec`, and with their memory.
  // The time does not grow with their number. A problem at "overrides" says that a rule with some
  // is gone, or counts by something else.
  static std::shared_ptr<const RuleSet> CompileKeepingOverrides(RuleSetSpec spec,
                                                                const RuleSet& kept,
                                                                std::vector<RuleProblem>* problems);
  ~RuleSet();

  // The number of an attribute, or -1 if no rule uses the attribute.
  int AttributeNumber(std::string_view name) const;
  size_t attributes() const { return attributes_.size(); }
  const std::vector<std::string>& attribute_names() const { return attributes_; }

  // An override applies until `now_ns` reaches its end.
  void Match(const Request& request, int64_t now_ns, Matched* matched) const;
  // The entry of a list that the request is on; null without one.
  const ListEntry* ListedBy(const Request& request, int64_t now_ns) const;

  // A rule that counts by what is known of a caller, and the key that it counts the caller by.
  struct Known {
    uint32_t rule = 0;
    // The patterns of its endpoints that this key counts; empty if the rule is for every endpoint.
    std::vector<std::string> endpoints;
    std::string key;
    absl::InlinedVector<LimitRange, 2> limits;
  };
  struct KnownRules {
    const ListEntry* listed = nullptr;  // if set, no rule applies to the caller's requests
    bool is_cut = false;                // there are more than the caller asked for
    std::vector<Known> rules;
  };
  // The rules that apply to some request with the attributes in `known`, each at the endpoints,
  // methods, networks and values of its own condition, if they count by what is known. At most
  // `most` of them, in the order of rules().
  KnownRules MatchKnown(const Request& known, int64_t now_ns, size_t most) const;

  // Why each rule applies to the request or does not, in the order of rules(), for a person to
  // read.
  struct Reason {
    uint32_t rule = 0;
    bool applies = false;
    std::string why;
  };
  std::vector<Reason> Explain(const Request& request, int64_t now_ns) const;

  // All rules; the last is `otherwise`, if there is one.
  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<Limit>& limits() const { return limits_; }
  // The number of the rule that has the limit of this number.
  uint32_t RuleOf(uint32_t limit) const { return limit_rules_[limit]; }
  const std::vector<std::string>& tiers() const { return tiers_; }
  // The limits of a rule for each of tiers(), and last those of requests without a tier.
  const std::vector<LimitRange>& LimitsByTier(uint32_t rule) const { return tier_limits_[rule]; }
  const std::vector<ListEntry>& lists() const { return lists_; }
  // What requests cost, by Matched::cost_number.
  const std::vector<OperationCost>& costs() const { return costs_; }
  size_t overrides() const;
  // Whether it has so many parts that a thread of its own frees it.
  bool takes_long_to_free() const { return rules_.size() + overrides() > 500; }
  // The memory that the overrides take.
  size_t override_bytes() const;

 private:
  friend class RuleCompiler;
  class Index;
  class Overrides;
  RuleSet();
  // The thread that drops the last reference may be about to answer a request: see
  // takes_long_to_free().
  static std::shared_ptr<const RuleSet> Shared(std::unique_ptr<RuleSet> set);

  struct RequestMethod;
  RequestMethod MethodOf(const Request& request) const;
  // The number of a request's tier; that of the default tier if the request has no known one.
  size_t TierOf(const Request& request) const;
  // Adds the rule, if the request has every attribute that the rule counts by.
  void Apply(uint32_t rule, uint32_t pattern, size_t tier, const Request& request, int64_t now_ns,
             Matched* matched) const;
  static std::string_view ValueOf(uint32_t attribute, const Request& request, Matched* matched);
  // Appends the key of a rule that counts by several attributes, or by an endpoint with `{name}`.
  void MakeKey(uint32_t rule, uint32_t pattern, const Request& request, Matched* matched) const;
  // A request with the attributes in `known` that meets the rule's own condition at one endpoint.
  Request SampleOf(const Rule& rule, const Request& known, std::string_view endpoint,
                   std::string_view method) const;
  // Whether `known` suffices to make the rule's key at endpoints that match this pattern.
  bool KnowsKey(uint32_t rule, const Request& known, std::string_view endpoint) const;
  void AddKnown(uint32_t rule, const Request& known, std::string_view endpoint, int64_t now_ns,
                KnownRules* found) const;
  // Adds the limits that the rule's reserve, if it has one, leaves to requests of this priority.
  void ApplyReserve(uint32_t rule, size_t tier, std::string_view key, Matched* matched) const;
  // The numbers of the tiers that a rule is for.
  uint64_t TiersOf(const Rule& rule) const;
  // The condition that the request does not meet; empty if it meets all.
  std::string WhyNot(const Rule& rule, const Request& request, std::string_view endpoint) const;
  // Whether `replacing` is among the rules that may take the other one away.
  bool MayReplace(uint32_t replacing, uint32_t other) const {
    return rules_[replacing].shadow == rules_[other].shadow;
  }
  // Whether the rule leaves `otherwise` in force where it applies.
  static bool LeavesDefault(const Rule& rule) { return rule.shadow || rule.also; }
  // Which rule applies instead of one whose conditions the request meets.
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
  std::vector<absl::InlinedVector<uint32_t, 2>> by_;        // of each rule: attributes
  std::vector<absl::InlinedVector<uint32_t, 2>> replaces_;  // of each rule: other rules
  bool any_replaces_ = false;
  std::vector<uint32_t> dimensions_;  // of each rule but `otherwise`
  // For each rule the limits of each tier, in the order of tiers_, and last those of requests
  // without a tier.
  std::vector<std::vector<LimitRange>> tier_limits_;
  // For each rule with a reserve, by tier in the same order, the limits that are left to each
  // priority.
  using LeftToPriority = std::array<LimitRange, kPriorities>;
  absl::flat_hash_map<uint32_t, std::vector<LeftToPriority>> left_by_reserve_;
  std::unique_ptr<Index> index_;
  std::unique_ptr<Index> cost_index_;
  std::unique_ptr<Index> list_index_;
  std::unique_ptr<Overrides> overrides_;
};

}  // namespace tidegate

#endif  // TIDEGATE_RULE_SET_H_
