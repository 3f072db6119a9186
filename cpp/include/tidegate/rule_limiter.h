// Decides requests by one rule set: the limits of all rules that apply to a request are one
// plan, and either all are charged or none is.
//
//   auto limiter = RuleLimiter::Create(rules, *MemoryStore::Create());
//   Request request(rules->attributes());
//   request[RuleSet::kEndpoint] = "/api/posts";
//   if ((*limiter)->Hit(request)) ...
//
// A rule set never changes. For another rule set, create another RuleLimiter with the one before
// it: the usage of a rule stays if its id and its attributes stay, whatever its numbers.
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
  // The decisions of a rule in this rule set and in those before it.
  struct RuleStats {
    int64_t allowed = 0;  // requests that it applied to and that were allowed
    int64_t refused = 0;  // requests that it refused
    int64_t refused_in_shadow = 0;
  };

  // What is left to a caller by one rule.
  struct RuleState {
    uint32_t rule = 0;
    // The patterns of the endpoints that it is for; empty if it is for every endpoint.
    std::vector<std::string> endpoints;
    // Its limits in Status::outcomes; none if it does not limit the caller.
    uint32_t first = 0;
    uint32_t count = 0;
  };
  struct Status {
    static constexpr size_t kMostRules = 256;

    const ListEntry* listed = nullptr;  // if set, no rule applies to the caller's requests
    bool is_cut = false;                // more rules than kMostRules count the caller
    std::vector<RuleState> rules;
    Outcomes outcomes;
  };

  // `before` may be null. Fails if the store does not support a limit; the error names its rule.
  static absl::StatusOr<std::shared_ptr<RuleLimiter>> Create(std::shared_ptr<const RuleSet> rules,
                                                             std::shared_ptr<TimedStore> store,
                                                             std::string_view scope = "tg",
                                                             const RuleLimiter* before = nullptr);
  virtual ~RuleLimiter();

  const RuleSet& rules() const { return *rules_; }
  // What requests cost under load. The limiters of successive rule sets share one.
  LoadFactor& load() const { return *load_; }
  TimedStore& store() const { return *store_; }

  // `request` has a place for each of rules().attributes(). The request is charged `cost` times
  // what it costs by the rules, divided by the factor of load(). `outcomes`, if it is not null,
  // gets the decision of each limit. If no limit applies, the request is allowed, and the decision
  // points to an unlimited limit. `factor` multiplies the cost as load does: never beyond what the
  // limits let through at once, and not for a refund.
  virtual Decision Hit(const Request& request, int64_t cost = 1, Outcomes* outcomes = nullptr,
                       int64_t factor = 1) const;
  virtual Decision Peek(const Request& request, int64_t cost = 1, Outcomes* outcomes = nullptr,
                        int64_t factor = 1) const;
  // Like Store::Submit(): this and `outcomes` must live until `done` is called.
  virtual std::optional<Decision> Submit(Op op, const Request& request, int64_t cost,
                                         const Decision* hit, Outcomes* outcomes, Store::Done done,
                                         int64_t factor = 1) const;
  // Hit() if it can be answered without waiting, else nullopt.
  virtual std::optional<Decision> HitWithoutWaiting(const Request& request, int64_t cost,
                                                    Outcomes* outcomes, int64_t factor = 1) const;
  // Charges the limits of the rules that count costs `cost` times what the request costs, and
  // refuses nothing; see Limiter::ChargeInFull(). Rules that count requests have counted it
  // already.
  virtual Decision ChargeInFull(const Request& request, int64_t cost) const;
  // Gives back what `hit`, a decision of this limiter for the same request and cost, charged,
  // without what load added to the cost.
  virtual void Refund(const Request& request, int64_t cost, const Decision* hit) const;
  // Gives back a part of the cost of a request that remains: rules that count requests keep it.
  virtual void RefundCost(const Request& request, int64_t cost) const;
  // Gives back the places that `hit` took of concurrency limits, and nothing else of it.
  virtual void Release(const Request& request, int64_t cost, const Decision& hit) const;
  // Has the leases of these places end a period from now; see Limiter::Extend().
  virtual std::optional<Decision> Extend(const Request& request, int64_t cost,
                                         const Decision& hit) const;
  // What the check of `hit`, which passed and had these outcomes, has charged to such a request, as
  // a reservation without a record that its caller settles once. The places of concurrency limits
  // are no part of it, nor what load added to the cost.
  Reservation ReservationOf(const Request& request, int64_t cost, const Decision& hit,
                            absl::Span<const Decision> outcomes) const;
  // Like Limiter::SubmitReserved(), by the rules that apply to `request` when it is reserved. Rules
  // that count requests reserve one; settling leaves that, and raising adds none. Without a cost,
  // kSettle gives all back. An error if a limit that applies cannot be reserved. With
  // Reservation::makes_records, kSettle gives back what a hit of `cost` at `admitted_ns` charged.
  // `factor` multiplies the cost as for Hit(); the calls of one reservation have the same.
  virtual absl::StatusOr<std::optional<Decision>> SubmitReserved(
      Op op, const Request& request, std::optional<int64_t> cost,
      std::shared_ptr<Reservation> reservation, Store::Done done, int64_t factor = 1) const;
  // What a request is charged, without load, kept for the calls of its reservation, which then
  // match no rules again. A null `hit` stands for a request at this instant; see ReservationOf().
  // It keeps no reference to this.
  class Held;
  std::unique_ptr<Held> Hold(const Request& request, const Decision* hit = nullptr) const;
  // What a usage, the units of each of its fields, costs such a request at `at_ns`, rounded up; 0
  // if it is on a list. An error where the rules do not say.
  using Usage = absl::Span<const std::pair<std::string_view, int64_t>>;
  virtual absl::StatusOr<int64_t> UnitsOfUsage(const Request& request, int64_t at_ns,
                                               Usage usage) const;
  // The names of the counts that a request at `at_ns` charges, in the order of the parts of its
  // reservation: equal for rules that count the same, whatever their other rules are.
  virtual std::vector<std::string> CountsOf(const Request& request, int64_t at_ns) const;
  // Forgets the usage; carried and topped-up units of quotas stay. Forget() forgets these too. Of
  // the rules that apply, those with the ids `only`; where it is null, those whose counts the
  // request's caller shares with no others: see SaysOfCaller().
  using Ids = std::vector<std::string>;
  virtual void Reset(const Request& request, const Ids* only = nullptr) const;
  // The same, like Submit(); `only` need not live longer than the call.
  std::optional<Decision> SubmitReset(const Request& request, const Ids* only,
                                      Store::Done done) const;
  virtual void Forget(const Request& request, const Ids* only = nullptr) const;
  // StatusOf() returns what a request's keys have of the quotas that apply to it. TopUp() gives
  // extra units of one of these quotas, by its name; an empty name stands for the only quota.
  virtual absl::StatusOr<std::vector<std::pair<const Limit*, QuotaStatus>>> StatusOf(
      const Request& request) const;
  virtual absl::Status TopUp(const Request& request, std::string_view quota,
                             const QuotaTopUp& top_up) const;
  // Records what the request's keys have of its quotas at this instant, for a caller that is about
  // to change its tier, or has just done so.
  virtual absl::Status BringForward(const Request& request) const;

  // Whether a list of the rules lets the request pass, whatever they say.
  virtual bool IsOnAllowList(const Request& request) const;

  // The soft events of the quotas since the last call, each with its limit. If the next rule set
  // has a quota too, its events must be taken from the limiter of that rule set.
  std::vector<std::pair<const Limit*, QuotaEvents::Event>> TakeEvents() const;

  // What is left to requests with these attributes by every rule that counts by known attributes,
  // in one call of the store, which charges nothing; see RuleSet::MatchKnown(). As for Submit(),
  // this and `status` must live until `done` is called. Of the decision only `degraded` has a
  // meaning.
  virtual std::optional<Decision> SubmitStatus(const Request& known, Status* status,
                                               Store::Done done) const;

  virtual LimiterStats stats() const;
  // The counters of each rule, in the order of rules().rules().
  virtual std::vector<RuleStats> rule_stats() const;
  // The number, among rules().limits(), of the limit that a decision of this limiter points to.
  virtual std::optional<uint32_t> LimitNumber(const Limit* limit) const;

 private:
  struct Counts {
    std::atomic<int64_t> allowed{0};
    std::atomic<int64_t> refused{0};
    std::atomic<int64_t> refused_in_shadow{0};
    std::atomic<int64_t> written_off{0};  // only in total_
  };
  // What a request is charged.
  struct Charged {
    RuleSet::Matched matched;
    absl::InlinedVector<Charge, 6> charges;
    absl::InlinedVector<uint32_t, 6> rules;  // of each charge
  };

  // SubmitReserved() for what a request is charged.
  absl::StatusOr<std::optional<Decision>> SubmitReserved(Op op, bool gives_all_back,
                                                         Charged* charged,
                                                         std::shared_ptr<Reservation> reservation,
                                                         Store::Done done) const;
  // The parts of a reservation of what `hit` has charged.
  static Reservation ReservationOf(const Charged& charged, const Decision& hit,
                                   absl::Span<const Decision> outcomes);

  RuleLimiter(std::shared_ptr<const RuleSet> rules, std::shared_ptr<TimedStore> store,
              std::vector<BoundLimit> bound, const RuleLimiter* before);

  // The limits of `rules`. A quota whose count differs from that in the rules before records that
  // count, which ends now, unless the rules say when it ended.
  static std::vector<Limit> LimitsAfter(const RuleLimiter* before, const RuleSet& rules,
                                        const TimedStore& store);

  // What load adds to costs: a random rounding, as for a hit; the most it can; or nothing.
  enum class Load : uint8_t { kDrawn, kMost, kNone };
  // What a cost multiplies: what the request costs; or, of what is known afterwards, one unit where
  // the rules have but an estimate of it.
  enum class Of : uint8_t { kRequest, kUsed };
  // What rules that count costs charge for `cost`.
  static int64_t UnitsOf(const RuleSet::Matched& matched, int64_t cost, Of of);
  void Charges(const Request& request, int64_t cost, int64_t factor, int64_t now_ns, Load load,
               Charged* charged, Of of = Of::kRequest) const;
  // The cost under a rule that load never exceeds: the least capacity of the rule's limits.
  int64_t MostOf(uint32_t rule, const RuleSet::Matched& matched) const;
  // The charges of `hit`, or those of a request at this instant if it is null; without load.
  void ChargesOf(const Decision* hit, const Request& request, int64_t cost,
                 Charged* charged) const {
    Charges(request, cost, 1, hit == nullptr ? store_->NowNs() : hit->at_ns, Load::kNone, charged);
  }
  void ChargesToAsk(Op op, const Request& request, int64_t cost, int64_t factor,
                    Charged* charged) const {
    Charges(request, cost, factor, store_->NowNs(), op == Op::kPeek ? Load::kMost : Load::kDrawn,
            charged);
  }
  // The charges of ChargeInFull().
  void ChargesOfUsed(const Request& request, int64_t cost, Charged* charged) const;
  // The charges of Reset().
  void ChargesToForget(const Request& request, const Ids* only, Charged* charged) const;
  // How much the attributes that a rule counts by say about the caller: 3 for a user, an API key
  // and others of the service's own, 2 for the address, 1 for the endpoint and others of the
  // request, 0 for none. A count is shared where the request has an attribute that says more, and
  // by which any rule counts.
  static int SaysOfCaller(std::string_view attribute);
  static int SaysOfCaller(const Rule& rule);
  int SaysOfCaller(const Request& request) const;
  // Keeps the charges of the rules for which `is_wanted` is true.
  template <typename Predicate>
  void Keep(Predicate is_wanted, Charged* charged) const;
  void CountWrittenOff(absl::Span<const Charge> charges, const Decision& decision) const;
  // The decision on a request to which no limit applies.
  Decision WithoutCharges(const Charged& charged) const;
  void Count(const Charged& charged, const Decision& decision, const Outcomes* outcomes) const;
  void CountFor(absl::Span<const uint32_t> rules, const Decision& decision,
                const Outcomes* outcomes) const;
  // Where outcomes go: `given`, or `own` if the caller wants none but limits in shadow need them
  // for their counts.
  Outcomes* Wanted(Outcomes* given, Outcomes* own) const {
    return given == nullptr && has_shadow_ ? own : given;
  }

  const std::shared_ptr<const RuleSet> rules_;
  const std::shared_ptr<TimedStore> store_;
  std::vector<BoundLimit> bound_;  // in the order of rules().limits()
  const std::shared_ptr<LoadFactor> load_;
  bool has_shadow_ = false;
  const Limit no_rule_;
  std::vector<Limit> listed_;     // by entry of a list: the limit of its decisions
  std::vector<Limit> unlimited_;  // by rule: the limit of its decisions if a request has none
  std::vector<std::pair<std::string, std::shared_ptr<Counts>>> counts_;  // by rule
  std::shared_ptr<Counts> total_;
};

// Not thread-safe. Must not outlive its limiter.
class RuleLimiter::Held {
 public:
  Held(const RuleLimiter& limiter, const Request& request, int64_t at_ns);

  const RuleSet::Matched& matched() const { return charged_.matched; }
  // What a hit of this request and `cost` has charged; see RuleLimiter::ReservationOf().
  Reservation ReservationOf(int64_t cost, const Decision& hit, absl::Span<const Decision> outcomes);
  // RuleLimiter::SubmitReserved() for a store that does not block, at once.
  absl::StatusOr<Decision> Call(Op op, std::optional<int64_t> cost, Reservation* reservation);
  // Like Limiter::RecordReserved().
  void Record(Reservation* reservation) const;

 private:
  // Sets the costs of the charges, as Charges() does.
  void SetCosts(int64_t cost, Of of);

  const RuleLimiter& limiter_;
  Charged charged_;
  std::string keys_;  // of the charges
};

}  // namespace tidegate

#endif  // TIDEGATE_RULE_LIMITER_H_
