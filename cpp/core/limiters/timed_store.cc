#include "tidegate/timed_store.h"

#include <utility>

namespace tidegate {

TimedStore::TimedStore(std::shared_ptr<Store> store, std::shared_ptr<Clock> clock)
    : store_(std::move(store)),
      clock_(std::move(clock)),
      clock_shift_(store_->clock_shift()),
      blocks_(store_->blocks()),
      sets_back_(!store_->spans_hosts() || (clock_ != nullptr && clock_->is_common())) {}

int64_t TimedStore::NowNs() const {
  return clock_ == nullptr ? SystemClock::Get().Now() + clock_shift_.ns() : clock_->NowNs();
}

Decision TimedStore::HitAll(absl::Span<const Charge> plan, Outcomes* outcomes) const {
  const auto clock = [this] { return NowNs(); };
  const Moment moment{NowNs()};
  Decision decision = store_->HitAll(plan, moment, clock, outcomes);
  if (decision.behind && sets_back_) [[unlikely]] {
    decision = store_->HitAll(plan, {NowNs(), /*confirmed=*/true}, clock, outcomes);
  }
  if (!blocks_) decision.at_ns = moment.now_ns;
  return decision;
}

Decision TimedStore::PeekAll(absl::Span<const Charge> plan, Outcomes* outcomes) const {
  const Moment moment{NowNs()};
  Decision decision = store_->PeekAll(plan, moment, outcomes);
  if (!blocks_) decision.at_ns = moment.now_ns;
  decision.SetChargedIn(ChargedIn::kNowhere);
  return decision;
}

std::optional<Decision> TimedStore::HitWithoutWaiting(absl::Span<const Charge> plan,
                                                      Outcomes* outcomes) const {
  Decision decision;
  const Moment moment{store_->reads_clock() ? NowNs() : 0};
  if (!store_->HitWithoutWaiting(plan, moment, &decision, outcomes)) return std::nullopt;
  return decision;
}

std::optional<Decision> TimedStore::Submit(Op op, absl::Span<const Charge> plan,
                                           int64_t admitted_ns, Outcomes* outcomes,
                                           Store::Done done) const {
  Store::Clock to_confirm;
  if (store_->reads_clock() && sets_back_) to_confirm = [this] { return NowNs(); };
  return store_->Submit(op, plan, admitted_ns, {NowNs()}, std::move(to_confirm), outcomes,
                        std::move(done));
}

}  // namespace tidegate
