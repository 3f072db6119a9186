// A store together with the clock of its callers. Every call of Limiter, Plan, RuleLimiter and the
// server on a store is made here, except the fast paths of Limiter.
#ifndef TIDEGATE_TIMED_STORE_H_
#define TIDEGATE_TIMED_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "tidegate/clock.h"
#include "tidegate/store.h"

namespace tidegate {

// The decisions of one limiter, and the counters of its store.
struct LimiterStats {
  int64_t allowed = 0;
  int64_t denied = 0;
  int64_t denied_in_shadow = 0;  // refusals by limits in shadow, whose calls passed
  StoreStats store;
  int64_t written_off = 0;  // units of charges that would have made a key owe too much
};

// Whether `op` of a reservation of `limit` can be made; the error says why not.
absl::Status Reservable(const Store& store, const Limit& limit, Op op);

// Makes calls at an instant of the clock. If a state lies too far ahead of that instant, the clock
// is read again and the call is made a second time, at a confirmed moment (see Moment).
// Thread-safe.
class TimedStore {
 public:
  // A null `clock` is SystemClock.
  TimedStore(std::shared_ptr<Store> store, std::shared_ptr<Clock> clock);

  Store& store() const { return *store_; }
  const std::shared_ptr<Store>& shared_store() const { return store_; }
  // Whether calls may wait for I/O.
  bool blocks() const { return blocks_; }

  int64_t NowNs() const { return has_own_clock() ? OwnNowNs() : SystemNowNs(); }
  // The two clocks of NowNs(), for callers that know which one it is.
  bool has_own_clock() const { return clock_ != nullptr; }
  int64_t OwnNowNs() const;
  int64_t SystemNowNs() const { return system_.Now() + clock_shift_.ns(); }

  // Makes the call `op`, and waits for its answer.
  // - kHit, kPeek, kCharge and kChargeUpTo decide the plan. `outcomes`, which may be null, gets the
  //   decision of each charge, numbered by Decision::rule; for the last two it must be null.
  // - kRefund and kRelease give the plan back. With `hit`, the decision that charged it, each
  // charge
  //   goes back where that decision says it was charged, and nowhere else. Without it, units that
  //   the fallback of a shared store counts are taken back there, and only the rest in the store.
  //   kRelease needs a `hit`, and gives back leases, and the units of a log that is the whole plan.
  // - kReset and kForget are those of Store, for each charge.
  // What does not decide returns an empty decision.
  Decision Call(Op op, absl::Span<const Charge> plan, const Decision* hit = nullptr,
                Outcomes* outcomes = nullptr) const;
  // Returns decide(moment); if its state lies too far ahead, that of a confirmed moment.
  template <typename Decide>
  Decision Confirmed(Decide decide) const;
  // Call(kHit) for a store that blocks, if it need not wait: true, and `decision`, which may be
  // uninitialised memory, is the answer.
  bool HitWithoutWaiting(absl::Span<const Charge> plan, Decision* decision,
                         Outcomes* outcomes) const;

  // Like Call(), but never waits. If there is no need to wait, returns finish(decision). Else
  // returns nullopt, and later another thread calls done(finish(decision)) once. This, `outcomes`
  // and the limits of `plan` (not its keys) must live until then.
  template <typename Finish, typename Done>
  std::optional<Decision> Submit(Op op, absl::Span<const Charge> plan, const Decision* hit,
                                 Outcomes* outcomes, Finish finish, Done done) const;

  // Makes a call of a reservation; see Store::CallReserved(). Returns the answer if there is no
  // need to wait, and else calls `done` later, after `reservation` was changed.
  std::optional<Decision> SubmitReserved(Op op, absl::Span<const Charge> plan,
                                         std::shared_ptr<Reservation> reservation,
                                         Store::Done done) const;

  // The same for a store that does not block, at once.
  Decision CallReserved(Op op, absl::Span<const Charge> plan, Reservation* reservation) const;

  // Has the leases that `hit` took end a period from now, see Store::Extend(). Returns the decision
  // that identifies them from now on; none if the store did not answer.
  std::optional<Decision> Extend(absl::Span<const Charge> plan, const Decision& hit) const;

 private:
  // The moment of a call that gives back what `hit` took, or extends it; null if it is not known.
  Moment MomentAfter(const Decision* hit) const;
  using Charges = absl::InlinedVector<Charge, 4>;

  Decision HitAll(absl::Span<const Charge> plan, Outcomes* outcomes) const;
  Decision PeekAll(absl::Span<const Charge> plan, Outcomes* outcomes) const;
  // Completes a decision of the store and its outcomes.
  void Complete(Op op, Decision* decision, Outcomes* outcomes) const;
  // Gives back what `hit` or other hits charged in the fallback; returns what is left for the store
  // itself.
  Charges ToGiveBack(Op op, absl::Span<const Charge> plan, const Decision* hit,
                     const Moment& moment) const;
  void GiveBack(Op op, absl::Span<const Charge> plan, const Decision* hit) const;
  // Submit() for a store that blocks.
  std::optional<Decision> SubmitToStore(Op op, absl::Span<const Charge> plan, const Decision* hit,
                                        Outcomes* outcomes, Store::Done done) const;

  const std::shared_ptr<Store> store_;
  const std::shared_ptr<Clock> clock_;
  SystemClock& system_ = SystemClock::Get();
  const ClockShift clock_shift_;
  const bool blocks_;
  // Whether a state that lies too far ahead is moved back (step.h). Not if hosts share it by clocks
  // of their own: a host that is behind would undo the charges of another. Its key expires by the
  // server's clock, within a period.
  const bool sets_back_;
};

template <typename Decide>
Decision TimedStore::Confirmed(Decide decide) const {
  Moment moment{NowNs()};
  Decision decision = decide(moment);
  if (decision.behind && sets_back_) [[unlikely]] {
    moment = {NowNs(), /*confirmed=*/true};
    decision = decide(moment);
  }
  if (!blocks_) [[likely]]
    decision.at_ns = moment.now_ns;
  return decision;
}

inline bool TimedStore::HitWithoutWaiting(absl::Span<const Charge> plan, Decision* decision,
                                          Outcomes* outcomes) const {
  const Moment moment{store_->reads_clock() ? NowNs() : 0};
  if (!store_->HitWithoutWaiting(plan, moment, decision, outcomes)) return false;
  if (outcomes != nullptr) Complete(Op::kHit, decision, outcomes);
  return true;
}

template <typename Finish, typename Done>
std::optional<Decision> TimedStore::Submit(Op op, absl::Span<const Charge> plan,
                                           const Decision* hit, Outcomes* outcomes, Finish finish,
                                           Done done) const {
  if (!blocks_) return finish(Call(op, plan, hit, outcomes));
  const auto answer = [this, op, outcomes, finish = std::move(finish)](Decision decision) {
    Complete(op, &decision, outcomes);
    return finish(decision);
  };
  const std::optional<Decision> early =
      SubmitToStore(op, plan, hit, outcomes,
                    [answer, done = std::move(done)](const Decision& late) { done(answer(late)); });
  if (!early.has_value()) return std::nullopt;
  return answer(*early);
}

}  // namespace tidegate

#endif  // TIDEGATE_TIMED_STORE_H_
