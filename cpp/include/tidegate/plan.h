// What one request must pass where it is charged under several keys: the limits of
// several limiters, each with a key and a cost of its own. All pass or none is charged.
//
//   auto plan = Plan::Create({requests.get(), tokens.get()});
//   if ((*plan)->Hit({user, tenant}, {1, 1500})) ...
//
// In one Redis that is one command; in a cluster, where keys lie in several slots, it is
// one for each limit, and what passed is given back where another did not. Thread-safe.
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

  // At least one limiter, all of one store; the clock is that of the first. They must
  // live as long as this.
  static absl::StatusOr<std::unique_ptr<Plan>> Create(std::vector<Limiter*> limiters);

  size_t size() const { return limiters_.size(); }

  // A key and a cost for each limiter. Where a limit meets one key twice, it is charged
  // both costs. Decision::rule counts through the limits of all limiters. An allowed
  // request counts for each limiter, a refused one for that whose limit refused. Where it is
  // not null, `outcomes` gets the decision of each limit of all limiters.
  Decision Hit(Keys keys, Costs costs, Outcomes* outcomes = nullptr);
  // As Limiter::HitWithoutWaiting() and Limiter::Submit(); `outcomes` must live until `done` was
  // called.
  std::optional<Decision> HitWithoutWaiting(Keys keys, Costs costs, Outcomes* outcomes = nullptr);
  std::optional<Decision> Submit(Keys keys, Costs costs, Outcomes* outcomes, Store::Done done);
  bool blocks() const { return store_.blocks(); }

 private:
  using ChargeNumbers = absl::InlinedVector<uint32_t, 4>;

  // The charges, and for each limit of all limiters the number of its charge.
  struct Charged {
    absl::InlinedVector<Charge, 4> charges;
    ChargeNumbers charge_of;
  };

  explicit Plan(std::vector<Limiter*> limiters);

  Charged For(Keys keys, Costs costs) const;
  // Counts the decision, and numbers limits among those of all limiters in it. `outcomes` are
  // those of the charges, and become those of the limits.
  Decision Finish(Decision decision, const ChargeNumbers& charge_of, Outcomes* outcomes) const;
  // Where limits in shadow are to be counted, `own`, else what the caller gave.
  Outcomes* Wanted(Outcomes* given, Outcomes* own) const {
    return given == nullptr && has_shadow_ ? own : given;
  }

  const std::vector<Limiter*> limiters_;
  const TimedStore store_;
  const bool has_shadow_;
};

}  // namespace tidegate

#endif  // TIDEGATE_PLAN_H_
