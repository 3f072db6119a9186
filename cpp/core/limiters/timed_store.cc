#include "tidegate/timed_store.h"

#include <algorithm>
#include <utility>

namespace tidegate {

TimedStore::TimedStore(std::shared_ptr<Store> store, std::shared_ptr<Clock> clock)
    : store_(std::move(store)),
      clock_(std::move(clock)),
      clock_shift_(store_->clock_shift()),
      blocks_(store_->blocks()),
      sets_back_(!store_->spans_hosts() || (clock_ != nullptr && clock_->is_common())) {}

int64_t TimedStore::OwnNowNs() const { return clock_->NowNs(); }

Moment TimedStore::MomentAfter(const Decision* hit) const {
  return {NowNs(), /*confirmed=*/false, hit != nullptr && hit->late};
}

namespace {

int64_t InstantOf(const Decision* hit) { return hit == nullptr ? Store::kNoInstant : hit->at_ns; }

// Whether a release of a plan of `size` charges gives back those of `limit`.
bool IsReleased(const Limit& limit, size_t size) {
  return limit.algorithm() == Algorithm::kConcurrency || (IsLog(limit.algorithm()) && size == 1);
}

}  // namespace

void TimedStore::Complete(Op op, Decision* decision, Outcomes* outcomes) const {
  if (op == Op::kPeek) decision->SetChargedIn(ChargedIn::kNowhere);
  if (outcomes == nullptr) return;
  for (size_t i = 0; i < outcomes->size(); ++i) {
    (*outcomes)[i].rule = static_cast<uint16_t>(i);
    if (!blocks_) (*outcomes)[i].at_ns = decision->at_ns;
  }
}

Decision TimedStore::Call(Op op, absl::Span<const Charge> plan, const Decision* hit,
                          Outcomes* outcomes) const {
  switch (op) {
    case Op::kHit:
      return HitAll(plan, outcomes);
    case Op::kPeek:
      return PeekAll(plan, outcomes);
    case Op::kCharge:
    case Op::kChargeUpTo:
      return Confirmed(
          [&](const Moment& moment) { return store_->ChargeAllUsed(op, plan, moment); });
    case Op::kReset:
    case Op::kForget: {
      const Moment moment{NowNs()};
      for (const Charge& charge : plan) {
        op == Op::kReset ? store_->Reset(charge, moment) : store_->Forget(charge, moment);
      }
      return Decision();
    }
    default:
      GiveBack(op, plan, hit);
      return Decision();
  }
}

Decision TimedStore::HitAll(absl::Span<const Charge> plan, Outcomes* outcomes) const {
  if (blocks_) {
    if (Decision early; HitWithoutWaiting(plan, &early, outcomes)) return early;
  }
  const auto clock = [this] { return NowNs(); };
  Decision decision = Confirmed(
      [&](const Moment& moment) { return store_->HitAll(plan, moment, clock, outcomes); });
  Complete(Op::kHit, &decision, outcomes);
  return decision;
}

Decision TimedStore::PeekAll(absl::Span<const Charge> plan, Outcomes* outcomes) const {
  const Moment moment{NowNs()};
  Decision decision = store_->PeekAll(plan, moment, outcomes);
  if (!blocks_) decision.at_ns = moment.now_ns;
  Complete(Op::kPeek, &decision, outcomes);
  return decision;
}

TimedStore::Charges TimedStore::ToGiveBack(Op op, absl::Span<const Charge> plan,
                                           const Decision* hit, const Moment& moment) const {
  Charges left;
  for (size_t i = 0; i < plan.size(); ++i) {
    Charge charge = plan[i];
    if (op == Op::kRelease && !IsReleased(charge.limit->limit, plan.size())) continue;
    const ChargedIn where = hit == nullptr ? ChargedIn::kStore : hit->charged_in(i);
    if (where == ChargedIn::kFallback) store_->GiveBackInFallback(charge, hit->at_ns, moment);
    if (where != ChargedIn::kStore) continue;
    if (hit == nullptr) charge.cost -= store_->RefundFallback(charge, moment);
    if (charge.cost > 0) left.push_back(charge);
  }
  return left;
}

void TimedStore::GiveBack(Op op, absl::Span<const Charge> plan, const Decision* hit) const {
  Moment moment = MomentAfter(hit);
  const Charges left = ToGiveBack(op, plan, hit, moment);
  const auto is_behind = [&](const Charge& charge) { return store_->Peek(charge, moment).behind; };
  if (op == Op::kRefund && !blocks_ && std::any_of(left.begin(), left.end(), is_behind)) {
    moment.now_ns = NowNs();
    moment.confirmed = true;
  }
  store_->GiveBack(op, left, InstantOf(hit), moment);
}

std::optional<Decision> TimedStore::SubmitToStore(Op op, absl::Span<const Charge> plan,
                                                  const Decision* hit, Outcomes* outcomes,
                                                  Store::Done done) const {
  const Moment moment = MomentAfter(hit);
  Charges left;
  if (op == Op::kRefund || op == Op::kRelease) {
    left = ToGiveBack(op, plan, hit, moment);
    if (left.empty()) return Decision();
    plan = left;
  }
  Store::Clock to_confirm;
  if (store_->reads_clock() && sets_back_) to_confirm = [this] { return NowNs(); };
  return store_->Submit(op, plan, InstantOf(hit), moment, std::move(to_confirm), outcomes,
                        std::move(done));
}

std::optional<Decision> TimedStore::SubmitReserved(Op op, absl::Span<const Charge> plan,
                                                   std::shared_ptr<Reservation> reservation,
                                                   Store::Done done) const {
  // A reservation of other limits reserved nothing of these.
  if (op != Op::kReserve && reservation->parts.size() != plan.size()) {
    reservation->parts.assign(plan.size(), {Reservation::kNone});
  }
  if (!blocks_) return CallReserved(op, plan, reservation.get());
  const auto clock = [this] { return NowNs(); };
  Store::Clock to_confirm;
  if (store_->reads_clock() && sets_back_) to_confirm = clock;
  return store_->SubmitReserved(op, plan, std::move(reservation), {NowNs()}, std::move(to_confirm),
                                std::move(done));
}

Decision TimedStore::CallReserved(Op op, absl::Span<const Charge> plan,
                                  Reservation* reservation) const {
  const auto clock = [this] { return NowNs(); };
  return Confirmed([&](const Moment& moment) {
    return store_->CallReserved(op, plan, reservation, moment, clock);
  });
}

std::optional<Decision> TimedStore::Extend(absl::Span<const Charge> plan,
                                           const Decision& hit) const {
  const Moment moment = MomentAfter(&hit);
  Charges left;
  int64_t at_ns = hit.at_ns;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (plan[i].limit->limit.algorithm() != Algorithm::kConcurrency) continue;
    const ChargedIn where = hit.charged_in(i);
    if (where == ChargedIn::kStore) left.push_back(plan[i]);
    if (where == ChargedIn::kFallback) {
      at_ns = store_->ExtendInFallback(plan[i], hit.at_ns, moment);
    }
  }
  if (!left.empty()) at_ns = store_->Extend(left, hit.at_ns, moment);
  if (at_ns == Store::kNoInstant) return std::nullopt;
  Decision extended = hit;
  extended.at_ns = at_ns;
  extended.late = true;  // as it may be
  return extended;
}

}  // namespace tidegate
