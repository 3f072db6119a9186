// A store applies a plan: all of it or none of it.
#ifndef TIDEGATE_STORE_H_
#define TIDEGATE_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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

// What can be asked of a store without waiting for it.
enum class Op : uint8_t { kHit, kPeek, kRefund, kRelease, kReset };
inline bool IsDecision(Op op) { return op == Op::kHit || op == Op::kPeek; }

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

// Thread-safe. No call blocks for longer than a store's own deadline.
class Store {
 public:
  virtual ~Store() = default;

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

  // Several limits, all or none. The binding limit is the refusing one with the
  // longest wait, else the one with the least room left. The default asks each
  // limit first and charges them only if all agree; where another caller comes
  // in between and one of them refuses after all, the ones before it are
  // refunded before the call returns.
  // `clock` tells the time again, for that.
  virtual Decision HitAll(absl::Span<const Charge> plan, const Moment& moment,
                          absl::FunctionRef<int64_t()> clock);
  virtual Decision PeekAll(absl::Span<const Charge> plan, const Moment& moment);

  // Independent charges, in order.
  virtual void HitMany(absl::Span<const Charge> charges, const Moment& moment, Verdict* verdicts);

  // What is to be added to SystemClock so that all who share the store, in this
  // process and others, read the same time.
  virtual int64_t clock_shift_ns() const { return 0; }

  virtual StoreStats stats() const = 0;

  // HitAll() of a store whose calls may wait, where its answer takes no wait: true, and
  // `decision` is the answer.
  virtual bool HitWithoutWaiting(absl::Span<const Charge>, const Moment&, Decision*) {
    return false;
  }
  // Whether calls wait for something outside the process. Such a store also sets
  // Decision::at_ns, by the clock that it decided by.
  virtual bool blocks() const { return false; }

 protected:
  // What takes back at `now_ns` what `decision` charged; nothing where it has run out
  // since: then it is no longer part of the state, and to give it back would be to mint.
  static std::optional<Op> Undoing(const Charge& charge, const Decision& decision, int64_t now_ns);
};

// Folds decisions of one plan into the one that is reported.
class PlanVerdict {
 public:
  void Add(const Decision& decision, uint32_t index);
  const Decision& get() const { return decision_; }

 private:
  Decision decision_;
  bool any_ = false;
  // How many were added, and which of them were charged elsewhere than in the store.
  uint32_t added_ = 0;
  uint32_t added_elsewhere_ = 0;
  uint16_t limits_elsewhere_ = 0;
  ChargedIn elsewhere_ = ChargedIn::kStore;
};

}  // namespace tidegate

#endif  // TIDEGATE_STORE_H_
