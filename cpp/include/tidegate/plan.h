// The limits of several limiters that one request must pass, each with a key and a cost of its own.
// Either all are charged, or none is.
//
//   auto plan = Plan::Create({requests.get(), tokens.get()});
//   if ((*plan)->Hit({user, tenant}, {1, 1500})) ...
//
// On one Redis a hit is one command; in a cluster, where keys lie in several slots, it is one for
// each limit, and if one refuses, the others' charges are given back. Thread-safe.
#ifndef TIDEGATE_PLAN_H_
#define TIDEGATE_PLAN_H_

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tidegate/limiter.h"
#include "tidegate/timed_store.h"

namespace tidegate {

class Plan {
 public:
  using Keys = absl::Span<const std::string_view>;
  using Costs = absl::Span<const int64_t>;

  // Takes at least one limiter, all of one store; the clock is that of the first. They must outlive
  // this.
  static absl::StatusOr<std::unique_ptr<Plan>> Create(std::vector<Limiter*> limiters);

  size_t size() const { return limiters_.size(); }

  // Takes a key and a cost for each limiter. A limit that gets one key twice is charged both costs.
  // Decision::rule is an index into the limits of all limiters. An allowed request counts for each
  // limiter, a refused one for the limiter whose limit refused. If `outcomes` is not null, it gets
  // the decision of each limit of all limiters.
  Decision Hit(Keys keys, Costs costs, Outcomes* outcomes = nullptr);
  // What Hit() would decide now; charges and counts nothing.
  Decision Peek(Keys keys, Costs costs, Outcomes* outcomes = nullptr);
  // Charges each limiter all of its cost, and refuses nothing; see Limiter::ChargeInFull().
  Decision ChargeInFull(Keys keys, Costs costs);
  // Like Limiter::Submit(), for kHit, kPeek and kCharge; `outcomes`, which must be null for
  // kCharge, must live until `done` is called.
  std::optional<Decision> Submit(Op op, Keys keys, Costs costs, Outcomes* outcomes,
                                 Store::Done done);
  // Like Limiter::SubmitReserved(). A cost of what was used may be 0.
  std::optional<Decision> SubmitReserved(Op op, Keys keys, Costs costs,
                                         std::shared_ptr<Reservation> reservation,
                                         Store::Done done);
  // The same for a plan that does not block, at once.
  Decision CallReserved(Op op, Keys keys, Costs costs, Reservation* reservation);
  // Like Limiter::RecordReserved().
  void RecordReserved(Keys keys, Reservation* reservation);
  bool blocks() const { return store_.blocks(); }

 private:
  using ChargeNumbers = absl::InlinedVector<uint32_t, 4>;

  // The charges, and for each limit of all limiters the index of its charge.
  struct Charged {
    absl::InlinedVector<Charge, 4> charges;
    ChargeNumbers charge_of;
  };

  explicit Plan(std::vector<Limiter*> limiters);

  Charged For(Keys keys, Costs costs) const;
  // Turns the decision's index of a charge into one of a limit of all limiters. `outcomes` of the
  // charges become those of the limits.
  static void ToLimits(const ChargeNumbers& charge_of, Decision* decision, Outcomes* outcomes);
  // Does what ToLimits() does, and counts the decision.
  Decision Finish(Decision decision, const ChargeNumbers& charge_of, Outcomes* outcomes) const;
  // The same for a charge. What is written off is counted by the first limiter.
  Decision FinishCharge(Decision decision, const Charged& charged) const;
  // The same for a call of a reservation whose least cost is `least`.
  Decision FinishReserved(Op op, const ChargeNumbers& charge_of, int64_t least,
                          const Reservation& reservation, Decision decision) const;
  static int64_t LeastOf(const Charged& charged);
  // Where outcomes go: `given`, or `own` if the caller wants none but limits in shadow need them
  // for their counts.
  Outcomes* Wanted(Outcomes* given, Outcomes* own) const {
    return given == nullptr && has_shadow_ ? own : given;
  }

  const std::vector<Limiter*> limiters_;
  const TimedStore& store_;  // of the first limiter
  const bool has_shadow_;
};

}  // namespace tidegate

#endif  // TIDEGATE_PLAN_H_
