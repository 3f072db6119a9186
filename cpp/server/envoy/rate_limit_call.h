// One request of Envoy's rate limit service, from its descriptors to its response.
#ifndef TIDEGATE_SERVER_ENVOY_RATE_LIMIT_CALL_H_
#define TIDEGATE_SERVER_ENVOY_RATE_LIMIT_CALL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/checks/caller.h"
#include "server/checks/penalties.h"
#include "server/checks/recorder.h"
#include "server/envoy/bound_tree.h"
#include "server/envoy/rate_limit_message.h"
#include "tidegate/timed_store.h"

namespace tidegate::server::envoy {

// Options of the answers.
struct ServiceOptions {
  bool all_or_none = true;        // for domains without their own setting
  bool shadow_mode = false;       // the answer is always OK, whatever the limits say
  bool response_headers = false;  // adds X-RateLimit-* to the response of the proxy
  bool request_metadata = false;  // the response's metadata say what the request asked
  double near_ratio = 0.8;        // usage beyond this share of a limit counts as near it
  std::string user_key = "user";  // the key of the entry that names the user; empty for none
};

// The counters of the whole service.
struct ServiceCounters {
  std::atomic<int64_t> requests{0};
  std::atomic<int64_t> over_limit{0};
  std::atomic<int64_t> invalid{0};
  std::atomic<int64_t> unknown_domain{0};
  std::atomic<int64_t> no_limit{0};  // descriptors that no limit applies to
  std::atomic<int64_t> degraded{0};  // requests that were decided without the shared store
  std::atomic<int64_t> shadow_mode{0};
  std::atomic<int64_t> blocked{0};    // requests of callers who are blocked
  std::atomic<int64_t> throttled{0};  // requests of callers whose hits count more than once
  // Units of reports that were not charged, since the key owed as much as its limit allows.
  std::atomic<int64_t> written_off{0};
};

// The state that the calls of a service share. A call that waits for its store keeps it alive.
struct ServiceState {
  TimedStore store;
  ServiceOptions options;
  ServiceCounters counters;
  Metrics metrics;
  std::shared_ptr<Recorder> recorder;  // may be null
};

// Call Prepare(), then Begin(), then Finish().
class RateLimitCall : public std::enable_shared_from_this<RateLimitCall> {
 public:
  RateLimitCall(std::shared_ptr<ServiceState> state, std::shared_ptr<const BoundTree> tree)
      : state_(std::move(state)), tree_(std::move(tree)) {}

  // Finds the limits that the request must pass, and whether its caller is among `penalties`, which
  // may be null. The bytes that `request` was parsed from must live until Begin() has returned, and
  // until Finish() has returned if everything was decided at once.
  absl::Status Prepare(const RateLimitRequest& request, const Penalties* penalties);

  using Decided = std::function<void(RateLimitCall&)>;

  // Asks the store. Returns true if everything was decided at once. Otherwise calls `later` before
  // returning, and its result on any thread once everything is decided.
  bool Begin(absl::FunctionRef<Decided()> later);

  // Call once: counts and records the request, and composes its response.
  RateLimitResponse Finish();

 private:
  using Node = DescriptorTree::Node;

  // A report says what has been used: it is charged in full, whatever becomes of the others.
  enum class Kind : uint8_t { kHit, kReport, kPeek, kRefund };

  // A descriptor of the request.
  struct Asked {
    const Node* node = nullptr;  // null: without a limit, or with its own limit
    bool has_own = false;
    std::shared_ptr<const BoundLimit> own;
    CurrentLimit own_shown;
    std::shared_ptr<Counters> counters;
    std::string key;
    int64_t hits = 0;
    int64_t returned = 0;  // of what its limits counted, also for equal descriptors
    int64_t beyond = 0;    // hits of a report that its limits had no room for
    int64_t later = 0;     // hits of later reports of the request that the binding limit allows
    Kind kind = Kind::kHit;
    bool is_of_caller = false;                  // belongs to a caller with a penalty
    absl::InlinedVector<Decision, 1> outcomes;  // the outcomes of its limits
  };

  // Charges of one kind, and the descriptors that they are for. Small: see Prepare().
  struct Charges {
    absl::InlinedVector<Charge, 2> plan;
    struct For {
      uint32_t descriptor;
      uint32_t charge;
    };
    absl::InlinedVector<For, 2> of;
  };

  struct Reports {
    Charges charges;
    std::vector<Decision> decisions;  // for each of these charges
    std::atomic<size_t> undecided{0};
  };

  // The charges that are made together or not at all: of the whole request, or of one descriptor.
  struct Group {
    Charges hits, peeks, refunds;
    Charges returned;       // hits that the quotas refused after they were charged
    bool is_apart = false;  // one descriptor, whose refused hits use up what is left
    bool refused = false;
    bool degraded = false;
    Outcomes outcomes;
  };

  // What few requests need is cold, so that its code stands apart from that of all requests, which
  // fills the first cache.

  // Finds the limits of the descriptors, and returns their domain; null: no such domain.
  const DescriptorTree::Node* Match(const RateLimitRequest& request);
  __attribute__((cold)) void DropReplaced();
  absl::Status Choose(const RateLimitRequest& request, size_t i);
  __attribute__((cold)) void Punish(const RateLimitRequest& request, const Penalties& penalties);
  bool is_blocked() const { return penalty_.has_value() && penalty_->blocks; }
  int64_t CostOf(const Asked& asked, const BoundLimit& limit) const;
  // The charges that those of a descriptor belong to; null for those of a group if there are none.
  Charges* ChargesFor(const Asked& asked, Group* group);
  void AddCharges(uint32_t descriptor, Charges* charges) const;

  // Charges the reports, and then begins all groups, which so see what is owed. Each report is a
  // call of its own, since a call of several does not say what each has charged; all are sent
  // together. Returns true if the groups have begun. Reported() is called once for each report and
  // once by Report().
  bool Report();
  bool Reported();
  __attribute__((cold)) void TakeReports();
  void BeginGroups();

  // The calls of a group on the store, in this order. Each goes on with the next one until the
  // store makes it wait; returns true if the group is decided.
  bool Peek(Group* group);
  bool Hit(Group* group);
  bool UseUp(Group* group);
  bool Refund(Group* group);
  bool PeekRefunded(Group* group);
  bool IsDecided(Group*) { return true; }
  // Whether the limits of all descriptors in quota mode are exceeded, and there is one.
  bool IsOutOfQuota() const;

  using Next = bool (RateLimitCall::*)(Group*);
  // Makes one of these calls, unless there are no charges, and goes on with `next`.
  bool Call(Op op, const Charges& charges, Group* group, Next next);
  // Takes the answer to a call.
  void Take(Op op, const Charges& charges, const Decision& decision, Group* group);
  void Leave();

  // The number of the outcome that its status tells.
  static size_t BindingOf(const Asked& asked);
  DescriptorStatus StatusOf(const Asked& asked, uint32_t descriptor, RateLimitResponse* response);
  // Whether anything was decided without the shared store.
  bool IsDegraded() const;
  // Whether the limit refused nothing, though it was exceeded.
  bool IsInShadow(const Asked& asked, const Decision& outcome) const;
  void Count(const Asked& asked, const Decision& binding) const;
  __attribute__((cold)) void CountReport(const Asked& asked, const Decision& binding) const;
  __attribute__((cold)) RateLimitResponse FinishBlocked();
  void Record(bool refused, bool degraded) const;
  std::string_view RuleOf(const Asked& asked) const;
  static void AddHeaders(RateLimitResponse* response);

  const TimedStore& store() const { return state_->store; }
  const ServiceOptions& options() const { return state_->options; }
  ServiceCounters& counters() const { return state_->counters; }

  const std::shared_ptr<ServiceState> state_;
  const std::shared_ptr<const BoundTree> tree_;  // bound to the store of the state
  Caller caller_;     // its views are of the request, of `name_`, or of `kept_`
  std::string name_;  // of a caller whom no entry names, or not by this name
  KeptCaller kept_;   // for answers that come after the request is gone
  std::unique_ptr<const Metadata> request_;  // for the response, if the options ask for it
  std::optional<Penalty> penalty_;
  absl::InlinedVector<Asked, 2> asked_;
  std::unique_ptr<Reports> reports_;  // null without any
  std::vector<Group> groups_;
  bool has_quota_ = false;  // whether a descriptor is in quota mode
  bool out_of_quota_ = false;
  std::atomic<size_t> undecided_{0};
  Decided answer_;
};

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_RATE_LIMIT_CALL_H_
