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
#include "tidegate/clock.h"
#include "tidegate/decision.h"
#include "tidegate/fingerprint.h"
#include "tidegate/limit.h"
#include "tidegate/quota.h"
#include "tidegate/reservation.h"

namespace tidegate {

namespace leases {
struct Leasing;
}  // namespace leases

// A limit bound to a store: `tag` keeps its keys separate from those of other limits and scopes.
struct BoundLimit {
  Limit limit;
  std::string scope;
  Fingerprint tag;
  // The part of it that a shared store's fallback grants, if it is not the whole.
  std::shared_ptr<const BoundLimit> share;
  // The soft events of a quota's keys; else null.
  std::shared_ptr<QuotaEvents> events = nullptr;
  // How a shared store leases units of it to this process; else null.
  std::shared_ptr<const leases::Leasing> leasing = nullptr;
};

struct Charge {
  std::string_view key;
  const BoundLimit* limit;
  int64_t cost;  // >= 1
};

// The name of a limit's counts: different for any two limits or scopes that count apart. It begins
// with the length of the scope, so that no ':' in an id or a scope makes two names equal.
std::string CountName(const Limit& limit, std::string_view scope);
// How stores bind a limit: the tag is a fingerprint of the name of its counts.
BoundLimit BindWith(const Hasher& hasher, const Limit& limit, std::string_view scope);

// The instant of a call. A state that lies too far ahead of `now_ns` is moved back (step.h) only if
// the reading is confirmed: taken again after a first one had found it so. So a reading that was
// merely delayed cannot grant extra units.
struct Moment {
  int64_t now_ns;
  bool confirmed = false;
  bool late = false;  // of Release() and Extend(): that of the hit's Decision
};

// The answer to one charge of many. kUnconfirmed: nothing was charged, and the call must be made
// again at a confirmed moment.
enum class Verdict : uint8_t { kRefused, kAllowed, kUnconfirmed };

// The decision of each limit of a plan, in its order. A limit that would have let the call pass has
// an allowed one, even if the plan was refused and nothing was charged.
using Outcomes = absl::InlinedVector<Decision, 4>;

enum class Op : uint8_t {
  kHit,
  kPeek,
  kRefund,
  kRelease,
  kReset,
  kChargeUpTo,
  kExtend,
  kForget,
  kCharge,
  // Of reservations: Store::CallReserved().
  kReserve,
  kSettle,
  kRaise,
};
// Whether it charges what has been used, and refuses nothing.
inline bool IsOfUsed(Op op) { return op == Op::kCharge || op == Op::kChargeUpTo; }
inline bool IsOfReservation(Op op) {
  return op == Op::kReserve || op == Op::kSettle || op == Op::kRaise;
}
inline bool IsDecision(Op op) {
  return op == Op::kHit || op == Op::kPeek || IsOfUsed(op) || IsOfReservation(op);
}
// The most units that may be owed after such an operation.
inline int64_t MostDebt(Op op, const Limit& limit) {
  return op == Op::kCharge ? limit.max_debt() : 0;
}

struct StoreStats {
  int64_t degraded = 0;         // decisions made without the shared store
  int64_t errors = 0;           // calls that a shared store did not answer
  int64_t script_errors = 0;    // errors in our scripts, or caused by keys of other programs
  int64_t denied_locally = 0;   // refusals that took no round trip to the shared store
  int64_t leased = 0;           // decisions by what a shared store had leased to this process
  int64_t lease_questions = 0;  // that asked it for units
  int64_t held_units = 0;       // that may still be spent
  int64_t wasted_units = 0;     // that were neither spent nor given back before their leases ended
  int64_t held_keys = 0;        // of which units may still be spent
  int64_t dry_keys = 0;         // of which none may, and of which calls are refused without asking
  int64_t breaker_opened = 0;   // how often the breaker opened
  bool breaker_open = false;
  int64_t keys = 0;          // cells in use, idle ones included until reclaimed
  int64_t evictions = 0;     // idle keys reclaimed: nothing was lost
  int64_t evicted_live = 0;  // live keys evicted because no room was left
};

// The whole interface between a store and Limiter or Plan: a new store needs only a class of its
// own. Thread-safe. No call blocks for longer than a store's own deadline.
class Store {
 public:
  static constexpr int64_t kNoInstant = -1;

  // Returns a new reading of the clock.
  using Clock = std::function<int64_t()>;
  using Done = std::function<void(const Decision&)>;

  virtual ~Store() = default;

  // The name of this kind of store in metrics: "memory".
  virtual std::string_view kind() const = 0;
  // The name of this store in logs and metrics; without secrets.
  virtual std::string name() const { return std::string(kind()); }

  // Whether the store supports `limit`; the error says what it supports. The default refuses
  // quotas.
  virtual absl::Status Accepts(const Limit& limit) const;
  virtual BoundLimit Bind(const Limit& limit, std::string_view scope) const = 0;

  // One limit. Hit charges; Peek returns what Hit would, and changes nothing.
  virtual Decision Hit(const Charge& charge, const Moment& moment) = 0;
  virtual Decision Peek(const Charge& charge, const Moment& moment) = 0;
  // Returns how many units the store took back, as far as it knows: fewer than the cost if fewer
  // were charged. A part of a unit in a bucket counts as one.
  virtual int64_t Refund(const Charge& charge, const Moment& moment) = 0;
  // Forgets the usage. What a key has of a quota beyond that stays: carried and topped-up units.
  virtual void Reset(const Charge& charge, const Moment& moment) = 0;
  // Forgets all that the store has of the key, also what was bought. The default is for stores
  // without quotas.
  virtual void Forget(const Charge& charge, const Moment& moment) { Reset(charge, moment); }
  // Ends the lease that a Hit at `admitted_ns` took; for concurrency limits.
  virtual void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) = 0;

  // Has the leases that a Hit at `admitted_ns` took, in concurrency limits, end a period after
  // `moment`. Those that have ended are taken again if there is room. Returns the instant that
  // identifies the leases from now on, as `admitted_ns` did; kNoInstant if the store did not
  // answer. The default extends nothing.
  virtual int64_t Extend(absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment);

  // StatusOf() returns what a key has of a quota; TopUp() gives it extra units; BringForward()
  // records what it has at this instant, which a change of the count then leaves as it is. By
  // default all are errors, since Accepts() refuses quotas. The cost of the charge has no meaning.
  virtual absl::StatusOr<QuotaStatus> StatusOf(const Charge& charge, const Moment& moment);
  virtual absl::Status TopUp(const Charge& charge, const QuotaTopUp& top_up, const Moment& moment);
  virtual absl::Status BringForward(const Charge& charge, const Moment& moment);

  // Charges the cost and refuses nothing: with kCharge what finds no room is owed, as far as
  // Limit::max_debt() allows; with kChargeUpTo only as much is charged as there is room for.
  // Decision::charged is the amount. The default charges no more than the room: it peeks at it,
  // charges that much, and repeats this if another caller was faster. A state that lies too far
  // ahead is charged only after that is confirmed.
  virtual Decision ChargeUsed(Op op, const Charge& charge, const Moment& moment);
  // The same for several limits, each for itself. Decision::charged is the smallest charge of an
  // enforced limit.
  virtual Decision ChargeAllUsed(Op op, absl::Span<const Charge> plan, const Moment& moment);

  // Charges several limits, all or none. The binding limit is the one that refused with the longest
  // wait, else the one with the least room left. A limit in shadow (Limit::shadow()) never refuses
  // the plan, and is charged if it has room itself. The default peeks at each limit first and
  // charges them only if all agree; if another caller intervenes and one refuses after all, those
  // before it are refunded before the call returns. The instant of that refund is read from
  // `clock`. `outcomes` is filled if it is not null.
  virtual Decision HitAll(absl::Span<const Charge> plan, const Moment& moment,
                          absl::FunctionRef<int64_t()> clock, Outcomes* outcomes);
  virtual Decision PeekAll(absl::Span<const Charge> plan, const Moment& moment, Outcomes* outcomes);
  // Refunds or releases all charges of a plan. With the instant of their hit a refund takes back
  // exactly its units of a log; kNoInstant if it is not known.
  virtual void GiveBack(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                        const Moment& moment);

  // Whether the store keeps records of reservations of `limit`. The error says what it supports;
  // the default is one.
  virtual absl::Status KeepsReservations(const Limit& limit) const;
  // A call of a reservation, which must know its id, and its parts except for kReserve.
  // - kReserve charges the plan as HitAll() does, and keeps a record of each charge.
  // - kSettle makes the costs of `plan`, which may be 0, what the reservation has charged: takes
  //   each record, and charges the difference in full or gives back what still counts of it.
  //   Decision::charged is the least that an enforced limit has charged for the reservation then.
  // - kRaise charges the costs of `plan` as HitAll() does, and adds them to the records; refused if
  //   one of them is not open.
  // Changes the parts, and for kReserve the instant. Not for a store that blocks.
  Decision CallReserved(Op op, absl::Span<const Charge> plan, Reservation* reservation,
                        const Moment& moment, absl::FunctionRef<int64_t()> clock);
  // The same begun without waiting, like Submit(). `reservation` is changed before `done` is
  // called.
  virtual std::optional<Decision> SubmitReserved(Op op, absl::Span<const Charge> plan,
                                                 std::shared_ptr<Reservation> reservation,
                                                 const Moment& moment, Clock clock, Done done);

  // Hits several independent charges in order.
  virtual void HitMany(absl::Span<const Charge> charges, const Moment& moment, Verdict* verdicts);

  // What to add to SystemClock so that all users of the store, in this process and others, read the
  // same time. What it points to lives as long as the store.
  virtual ClockShift clock_shift() const { return SystemClock::Get().shift(); }

  virtual StoreStats stats() const = 0;

  // Gives back the units that this process was granted and has not spent, if the store has leases.
  // Waits a moment at most. Later calls may be granted others.
  virtual void GiveLeasesBack() {}

  // Forgets the usage of all keys that only this process holds; for tests. Usage that other
  // processes or hosts share stays.
  virtual void Clear() {}

  // Whether calls wait for something outside the process. Such a store sets Decision::at_ns, by
  // the clock that it decided by, and overrides the functions of this group.
  virtual bool blocks() const { return false; }
  // HitAll() of a store that blocks, if it need not wait: true, and `decision` is the answer.
  virtual bool HitWithoutWaiting(absl::Span<const Charge>, const Moment&, Decision*,
                                 Outcomes* /*outcomes*/) {
    return false;
  }
  // The same for one charge of a limit that is leased (BoundLimit::leasing).
  virtual bool HitLeased(const Charge&, Decision*) { return false; }
  // Begins a call without waiting. Returns the answer if there is no need to wait; else another
  // thread calls `done` once, later. The limits of `plan` (not its keys), `outcomes` and the store
  // must live until then. The answer to refunds, releases and resets is an empty decision. A store
  // that uses the caller's clock confirms a reading by `clock`, if it is not null. The default
  // decides at once.
  virtual std::optional<Decision> Submit(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                         const Moment& moment, Clock clock, Outcomes* outcomes,
                                         Done done);
  // In a store that does not block: makes the records of a reservation that has none, open or
  // settled as that is. The costs of `plan` have no meaning.
  void KeepRecords(absl::Span<const Charge> plan, const Reservation& reservation, int64_t now_ns);
  // Sends the submitted calls. Call it once for many, so that they are sent together.
  virtual void Flush() {}
  // One round trip to the server of a store that blocks; the error says what is wrong.
  virtual absl::Status Ping() { return absl::OkStatus(); }

  // Whether calls are decided at the instants that callers pass. Otherwise the store uses a clock
  // of its own.
  virtual bool reads_clock() const { return true; }
  // Whether hosts that each use their own clock share it: a state that lies ahead of one host's
  // clock may then be right by another's.
  virtual bool spans_hosts() const { return false; }
  // Whether several processes share it, as after fork(): a child has the same counts, and not a
  // copy.
  virtual bool spans_processes() const { return blocks() || spans_hosts(); }

  // A store that fails may have a fallback decide for it. These are calls on the fallback.
  // PeekFallback uses the fallback's part of the limit.
  virtual Decision PeekFallback(const Charge& charge, const Moment& moment) {
    return Peek(charge, moment);
  }
  // Gives back units that the fallback charged at `admitted_ns`.
  virtual void GiveBackInFallback(const Charge& /*charge*/, int64_t /*admitted_ns*/,
                                  const Moment& /*moment*/) {}
  // Extends leases that the fallback granted at `admitted_ns`.
  virtual int64_t ExtendInFallback(const Charge& /*charge*/, int64_t /*admitted_ns*/,
                                   const Moment& /*moment*/) {
    return kNoInstant;
  }
  // Gives back the units that the fallback counts for the key, at most the cost; returns how many.
  virtual int64_t RefundFallback(const Charge& /*charge*/, const Moment& /*moment*/) { return 0; }

 protected:
  // A record in a store that does not block: open with the units, or settled at them.
  struct Record {
    bool is_settled = false;
    int64_t units = 0;
  };
  // Makes the record of `charge`, whose cost is reserved.
  virtual void OpenRecord(const Charge& /*charge*/, const Reservation& /*reservation*/,
                          const Moment& /*moment*/) {}
  // Changes the record of a charge in one step, if there is one that lives; returns it as it was.
  // `change` returns false to leave it.
  virtual std::optional<Record> ChangeRecord(const Charge& /*charge*/,
                                             const Reservation& /*reservation*/,
                                             const Moment& /*moment*/,
                                             absl::FunctionRef<bool(Record*)> /*change*/) {
    return std::nullopt;
  }
  // Gives back units of a reservation that was charged at `admitted_ns`: as many as still count,
  // if the key would count nothing from `until_ns` on.
  virtual void GiveBackUntil(const Charge& charge, int64_t admitted_ns, int64_t until_ns,
                             const Moment& moment);

  // The operation that takes back at `now_ns` the units that `decision` charged. Nothing if they
  // have expired since: they are no longer part of the state, and refunding them would grant extra
  // units.
  static std::optional<Op> Undoing(const Charge& charge, const Decision& decision, int64_t now_ns);

 private:
  Decision Reserve(absl::Span<const Charge> plan, Reservation* reservation, const Moment& moment,
                   absl::FunctionRef<int64_t()> clock);
  Decision Settle(absl::Span<const Charge> plan, Reservation* reservation, const Moment& moment);
  // What stands in place of the record of a reservation that has none, while it lives or is known
  // to be settled.
  static std::optional<Record> Unrecorded(const Reservation& reservation,
                                          const Reservation::Part& part, const Moment& moment);
  Decision Raise(absl::Span<const Charge> plan, Reservation* reservation, const Moment& moment,
                 absl::FunctionRef<int64_t()> clock);
};

// Combines the decisions of one plan into the reported one. Limits in shadow bind only if there is
// no other limit, and then allow.
class PlanVerdict {
 public:
  void Add(const Decision& decision, uint32_t index);
  const Decision& get() const { return decision_; }

 private:
  void AddElsewhere(ChargedIn where, uint32_t index);

  Decision decision_;
  bool any_ = false;
  bool any_enforced_ = false;
  // How many decisions were added, and which of them were not charged in the store.
  uint32_t added_ = 0;
  uint32_t added_elsewhere_ = 0;
  uint16_t limits_elsewhere_ = 0;
  ChargedIn elsewhere_ = ChargedIn::kStore;
};

}  // namespace tidegate

#endif  // TIDEGATE_STORE_H_
