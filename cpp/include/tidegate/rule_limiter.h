// Decides about requests by one rule set: all rules that apply are one plan, charged all or none.
//
//   auto limiter = RuleLimiter::Create(rules, *MemoryStore::Create());
//   Request request(rules->attributes());
//   request[RuleSet::kEndpoint] = "/api/posts";
//   if ((*limiter)->Hit(request)) ...
//
// A rule set never changes. Another one is another RuleLimiter, made with the one before it:
// usage stays where a rule keeps its id and what it counts by, whatever its numbers.
#ifndef TIDEGATE_RULE_LIMITER_H_
#define TIDEGATE_RULE_LIMITER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tidegate/load_factor.h"
#include "tidegate/rule_set.h"
#include "tidegate/timed_store.h"

namespace tidegate {

// Thread-safe. Decisions point into the limiter that made them. Functions are virtual where another
// extension module with its own copy of this code calls them: they then run the code of the module
// that made the limiter, whose hashes its tables were built with.
class RuleLimiter {
 public:
  virtual ~RuleLimiter();

  // What a rule did, of this rule set and of those before it that had the rule.
  struct RuleStats {
    int64_t allowed = 0;  // requests that it applied to and that passed
    int64_t refused = 0;  // requests that it refused
    int64_t refused_in_shadow = 0;
  };
  struct Stats {
    int64_t allowed = 0;
    int64_t denied = 0;
    int64_t denied_in_shadow = 0;
    StoreStats store;
  };

  // `before` may be null. The error says which limit the store cannot count for.
  static absl::StatusOr<std::shared_ptr<RuleLimiter>> Create(std::shared_ptr<const RuleSet> rules,
                                                             std::shared_ptr<TimedStore> store,
                                                             std::string_view scope = "tg",
                                                             const RuleLimiter* before = nullptr);

  const RuleSet& rules() const { return *rules_; }
  // What requests cost under load; one for all rule sets that follow each other.
  LoadFactor& load() const { return *load_; }
  TimedStore& store() const { return *store_; }

  // `request` has a place for each of rules().attributes(). What the request costs by the rules is
  // multiplied by `cost`, and divided by the factor of load(). `outcomes`, where it is not null,
  // gets the decision of each limit. Where no limit applies the decision allows, and its limit is
  // one that nothing reaches.
  virtual Decision Hit(const Request& request, int64_t cost = 1,
                       Outcomes* outcomes = nullptr) const;
  virtual Decision Peek(const Request& request, int64_t cost = 1,
                        Outcomes* outcomes = nullptr) const;
  // As Store::Submit(): this and `outcomes` must live until `done` was called.
  virtual std::optional<Decision> Submit(Op op, const Request& request, int64_t cost,
                                         const Decision* hit, Outcomes* outcomes,
                                         Store::Done done) const;
  // Hit() where the answer takes no wait.
  virtual std::optional<Decision> HitWithoutWaiting(const Request& request, int64_t cost,
                                                    Outcomes* outcomes) const;
  // Gives back what `hit`, a decision of this limiter for the same request and cost, charged; not
  // what load added to it.
  virtual void Refund(const Request& request, int64_t cost, const Decision* hit) const;
  virtual void Reset(const Request& request) const;

  virtual Stats stats() const;
  // In the order of rules().rules().
  virtual std::vector<RuleStats> rule_stats() const;
  // The limit that a decision of this points to, by its number among rules().limits().
  virtual std::optional<uint32_t> LimitNumber(const Limit* limit) const;

 private:
  struct Counts {
    std::atomic<int64_t> allowed{0};
    std::atomic<int64_t> refused{0};
    std::atomic<int64_t> refused_in_shadow{0};
  };
  // What a request is charged.
  struct Charged {
    RuleSet::Matched matched;
    absl::InlinedVector<Charge, 6> charges;
    absl::InlinedVector<uint32_t, 6> rules;  // of each charge
  };

  RuleLimiter(std::shared_ptr<const RuleSet> rules, std::shared_ptr<TimedStore> store,
              std::vector<BoundLimit> bound, const RuleLimiter* before);

  // What load does to costs: it is drawn, or the most that it may do, or nothing.
  enum class Load : uint8_t { kDrawn, kMost, kNone };
  void Charges(const Request& request, int64_t cost, int64_t now_ns, Load load,
               Charged* charged) const;
  // The most that load may make a request cost by a rule: what each of its limits has room for.
  int64_t MostOf(uint32_t rule, const RuleSet::Matched& matched) const;
  // The charges that `hit` was about, or those of now where it is null; without load.
  void ChargesOf(const Decision* hit, const Request& request, int64_t cost,
                 Charged* charged) const {
    Charges(request, cost, hit == nullptr ? store_->NowNs() : hit->at_ns, Load::kNone, charged);
  }
  void ChargesToAsk(Op op, const Request& request, int64_t cost, Charged* charged) const {
    Charges(request, cost, store_->NowNs(), op == Op::kPeek ? Load::kMost : Load::kDrawn, charged);
  }
  // The answer of a request without charges.
  Decision WithoutCharges(const Charged& charged) const;
  void Count(const Charged& charged, const Decision& decision, const Outcomes* outcomes) const;
  void CountFor(absl::Span<const uint32_t> rules, const Decision& decision,
                const Outcomes* outcomes) const;
  // Of a plan with limits in shadow `own`, so that they are counted; else what the caller gave.
  Outcomes* Wanted(Outcomes* given, Outcomes* own) const {
    return given == nullptr && has_shadow_ ? own : given;
  }
  absl::InlinedVector<Charge, 6> ToGiveBack(const Charged& charged, const Decision* hit,
                                            const Moment& moment) const;

  const std::shared_ptr<const RuleSet> rules_;
  const std::shared_ptr<TimedStore> store_;
  std::vector<BoundLimit> bound_;  // in the order of rules().limits()
  const std::shared_ptr<LoadFactor> load_;
  bool has_shadow_ = false;
  const Limit no_rule_;
  std::vector<Limit> listed_;     // what decisions about entries of lists point to
  std::vector<Limit> unlimited_;  // and about rules without limits
  std::vector<std::pair<std::string, std::shared_ptr<Counts>>> counts_;  // by rule
  std::shared_ptr<Counts> total_;
};

}  // namespace tidegate

#endif  // TIDEGATE_RULE_LIMITER_H_
