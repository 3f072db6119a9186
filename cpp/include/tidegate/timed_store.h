// A store together with the clock of its callers: applies a plan at an instant of that clock.
#ifndef TIDEGATE_TIMED_STORE_H_
#define TIDEGATE_TIMED_STORE_H_

#include <memory>
#include <optional>

#include "absl/types/span.h"
#include "tidegate/clock.h"
#include "tidegate/store.h"

namespace tidegate {

// Thread-safe.
class TimedStore {
 public:
  // A null `clock` is SystemClock.
  TimedStore(std::shared_ptr<Store> store, std::shared_ptr<Clock> clock);

  Store& store() const { return *store_; }
  const std::shared_ptr<Store>& shared_store() const { return store_; }
  bool blocks() const { return blocks_; }
  int64_t NowNs() const;

  // Like the functions of Store, at the clock's instant, which is read a second time if the first
  // reading lies too far behind the state.
  Decision HitAll(absl::Span<const Charge> plan, Outcomes* outcomes) const;
  Decision PeekAll(absl::Span<const Charge> plan, Outcomes* outcomes) const;
  std::optional<Decision> HitWithoutWaiting(absl::Span<const Charge> plan,
                                            Outcomes* outcomes) const;
  std::optional<Decision> Submit(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                 Outcomes* outcomes, Store::Done done) const;

 private:
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<Clock> clock_;
  const ClockShift clock_shift_;
  const bool blocks_;
  // Whether a state that lies too far ahead is moved back, see Limiter.
  const bool sets_back_;
};

}  // namespace tidegate

#endif  // TIDEGATE_TIMED_STORE_H_
