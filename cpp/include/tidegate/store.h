// A store applies a plan: all of it or none of it.
#ifndef TIDEGATE_STORE_H_
#define TIDEGATE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tidegate/decision.h"
#include "tidegate/fingerprint.h"
#include "tidegate/limit.h"

namespace tidegate {

// A limit as one store knows it: `tag` sets its keys apart from those of other
// limits and scopes.
struct BoundLimit {
  Limit limit;
  std::string scope;
  Fingerprint tag;
  // The part of it that a shared store's fallback counts for, where it is not the whole.
  std::shared_ptr<const BoundLimit> share;
};

struct Charge {
  std::string_view key;
  const BoundLimit* limit;
  int64_t cost;  // >= 1
};

// What stores do to bind: the tag is a fingerprint of the limit and the scope.
BoundLimit BindWith(const Hasher& hasher, const Limit& limit, std::string_view scope);

// When a call is made. A state that lies too far ahead of `now_ns` is moved back
// (step.h) only where the reading is confirmed: taken again after a first one
// had found it so. A reading that was merely held up cannot mint then.
struct Moment {
  int64_t now_ns;
  bool confirmed = false;
};

// The answer to one charge of many. kUnconfirmed asks for the call to be made
// again at a confirmed moment; nothing was charged.
enum class Verdict : uint8_t { kRefused, kAllowed, kUnconfirmed };

// The decision of each limit of a plan, in its order. One that would have passed says so, even
// where the plan was refused and nothing was charged.
using Outcomes = absl::InlinedVector<Decision, 4>;

enum class Op : uint8_t { kHit, kPeek, kRefund, kRelease, kReset, kChargeUpTo };
inline bool IsDecision(Op op) { return op == Op::kHit || op == Op::kPeek || op == Op::kChargeUpTo; }

struct StoreStats {
  int64_t degraded = 0;        // decisions made without the shared store
  int64_t errors = 0;          // calls that a shared store did not answer
  int64_t script_errors = 0;   // keys with a foreign value, and mistakes in our own scripts
  int64_t denied_locally = 0;  // refusals that took no round trip to the shared store
  int64_t breaker_opened = 0;  // how often the breaker did
  bool breaker_open = false;
  int64_t keys = 0;          // cells in use, idle ones included until reclaimed
  int64_t evictions = 0;     // idle keys reclaimed: nothing was lost
  int64_t evicted_live = 0;  // live keys given up because no room was left
};

// All that a Limiter and a Plan know of a store. A new store is a class of its own and nothing
// else. Thread-safe. No call blocks for longer than a store's own deadline.
class Store {
 public:
  static constexpr int64_t kNoInstant = -1;

  // Returns the instant anew.
  using Clock = std::function<int64_t()>;
  using Done = std::function<void(const Decision&)>;

  virtual ~Store() = default;

  // What metrics call a store of this kind: "memory".
  virtual std::string_view kind() const = 0;
  // What logs and metrics call this store; without secrets.
  virtual std::string name() const { return std::string(kind()); }

  // Whether the store can count for `limit`; the error says what it can.
  virtual absl::Status Accepts(const Limit& limit) const;
  virtual BoundLimit Bind(const Limit& limit, std::string_view scope) const = 0;

  // One limit. Hit charges; Peek tells what Hit would and changes nothing.
  virtual Decision Hit(const Charge& charge, const Moment& moment) = 0;
  virtual Decision Peek(const Charge& charge, const Moment& moment) = 0;
  // Returns how many units the store took back, as far as it knows: fewer than the cost where
  // fewer were charged. Of a bucket that holds a part of a unit this counts as one.
  virtual int64_t Refund(const Charge& charge, const Moment& moment) = 0;
  virtual void Reset(const Charge& charge, const Moment& moment) = 0;
  // Ends the lease that a Hit at `admitted_ns` took; for concurrency limits.
  virtual void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) = 0;

  // Charges as much of the cost as there is room for and refuses nothing; Decision::charged tells
  // how much. The default asks what room there is and charges that, once more where another
  // caller was faster. A state that lies too far ahead is not charged before that is confirmed.
  virtual Decision ChargeUpTo(const Charge& charge, const Moment& moment);
  // The same of several limits, each as far as it has room itself. Decision::charged is the least
  // that an enforced one was charged.
  virtual Decision ChargeAllUpTo(absl::Span<const Charge> plan, const Moment& moment);

  // Several limits, all or none. The binding limit is the refusing one with the
  // longest wait, else the one with the least room left. A limit in shadow (Limit::shadow())
  // never refuses the plan, and is charged where it has room itself. The default asks each
  // limit first and charges them only if all agree; where another caller comes
  // in between and one of them refuses after all, the ones before it are
  // refunded before the call returns.
  // `clock` tells the time again, for that. `outcomes` is filled where it is not null.
  virtual Decision HitAll(absl::Span<const Charge> plan, const Moment& moment,
                          absl::FunctionRef<int64_t()> clock, Outcomes* outcomes);
  virtual Decision PeekAll(absl::Span<const Charge> plan, const Moment& moment, Outcomes* outcomes);
  // Refunds or releases all charges of a plan. With the instant of their hit a refund takes back
  // the very units of a log; kNoInstant where it is not known.
  virtual void GiveBack(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                        const Moment& moment);

  // Independent charges, in order.
  virtual void HitMany(absl::Span<const Charge> charges, const Moment& moment, Verdict* verdicts);

  // What is to be added to SystemClock so that all who share the store, in this
  // process and others, read the same time.
  virtual int64_t clock_shift_ns() const { return 0; }

  virtual StoreStats stats() const = 0;

  // Forgets what all keys have used, as far as this process alone holds it; for tests. What other
  // processes or hosts hold too stays.
  virtual void Clear() {}

  // Whether calls wait for something outside the process. Such a store sets Decision::at_ns, by
  // the clock that it decided by, and overrides the functions of this group.
  virtual bool blocks() const { return false; }
  // HitAll() of a store that blocks, where its answer takes no wait: true, and `decision` is the
  // answer.
  virtual bool HitWithoutWaiting(absl::Span<const Charge>, const Moment&, Decision*,
                                 Outcomes* /*outcomes*/) {
    return false;
  }
  // Asks without waiting. Returns the answer where it takes no wait; else calls `done` later,
  // once, from another thread. The limits of `plan` (not its keys), `outcomes` and the store
  // must live until then. Refunds, releases and resets are answered with an empty decision. A
  // store that goes by the caller's clock takes `clock` to confirm a reading with, where it is
  // not null. The default decides at once.
  virtual std::optional<Decision> Submit(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                         const Moment& moment, Clock clock, Outcomes* outcomes,
                                         Done done);
  // Sends what was submitted: once for many, so that they go out together.
  virtual void Flush() {}
  // One round trip to whatever a store that blocks waits for; the error says what is wrong.
  virtual absl::Status Ping() { return absl::OkStatus(); }

  // Whether the instants of calls decide. Else the store has a clock of its own.
  virtual bool reads_clock() const { return true; }
  // Whether hosts count in it together by clocks of their own: then a state that lies ahead of
  // one host's clock may be right by another's.
  virtual bool spans_hosts() const { return false; }

  // A store that fails may have another decide for it, its fallback. These are of what that
  // counts. PeekFallback: by its own part of the limit.
  virtual Decision PeekFallback(const Charge& charge, const Moment& moment) {
    return Peek(charge, moment);
  }
  // Gives back what the fallback charged at `admitted_ns`.
  virtual void GiveBackInFallback(const Charge& /*charge*/, int64_t /*admitted_ns*/,
                                  const Moment& /*moment*/) {}
  // Gives back what the fallback counts for the key, at most the cost; returns how many units.
  virtual int64_t RefundFallback(const Charge& /*charge*/, const Moment& /*moment*/) { return 0; }

 protected:
  // What takes back at `now_ns` what `decision` charged; nothing where it has run out
  // since: then it is no longer part of the state, and to give it back would be to mint.
  static std::optional<Op> Undoing(const Charge& charge, const Decision& decision, int64_t now_ns);
};

// Folds decisions of one plan into the one that is reported. Limits in shadow bind only where
// there is no other, and then allow.
class PlanVerdict {
 public:
  void Add(const Decision& decision, uint32_t index);
  const Decision& get() const { return decision_; }

 private:
  void AddElsewhere(ChargedIn where, uint32_t index);

  Decision decision_;
  bool any_ = false;
  bool any_enforced_ = false;
  // How many were added, and which of them were charged elsewhere than in the store.
  uint32_t added_ = 0;
  uint32_t added_elsewhere_ = 0;
  uint16_t limits_elsewhere_ = 0;
  ChargedIn elsewhere_ = ChargedIn::kStore;
};

}  // namespace tidegate

#endif  // TIDEGATE_STORE_H_
