// A plan whose keys lie in several hash slots of a cluster.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/monotonic.h"
#include "redis/health/deny_cache.h"
#include "redis/protocol/scripts.h"
#include "redis/transport/client.h"
#include "tidegate/clock.h"
#include "tidegate/redis_store.h"

namespace tidegate {

// A request whose answer nobody waits for.
class RedisStore::Parting final : public redis::Caller {
 public:
  Parting(Instant deadline, std::string request) : Caller(deadline), request_(std::move(request)) {}
  std::string Request() override { return request_; }
  void Done(absl::StatusOr<redis::Reply>) override {}

 private:
  const std::string request_;
};

// No command has keys of several slots. Each charge of the plan is a command of its own, all sent
// at once. If one refuses a hit, the others are given back before the answer is returned, or after
// it if the deadline has passed by then.
class RedisStore::Spread final : public std::enable_shared_from_this<Spread> {
 public:
  Spread(RedisStore& store, Op op, absl::Span<const Charge> plan, int64_t admitted_ns, Clock clock,
         Outcomes* outcomes, Done done)
      : store_(store),
        op_(op),
        plan_(plan.begin(), plan.end()),
        admitted_ns_(admitted_ns),
        clock_(std::move(clock)),
        wanted_(outcomes),
        done_(std::move(done)),
        outcomes_(plan.size()),
        begun_ns_(SystemClock::Get().Now()),
        deadline_(MonotonicIn(store.options_.timeout)) {
    keys_.reserve(plan.size());
    for (Charge& charge : plan_) charge.key = keys_.emplace_back(charge.key);
  }

  void Begin(const Moment& moment) {
    moment_ = moment;
    left_ = plan_.size();
    for (size_t i = 0; i < plan_.size(); ++i) {
      const auto hear = [self = shared_from_this(), i](const Decision& decision) {
        if (!self->HasOutcomes()) self->outcomes_[i] = {decision};
        if (--self->left_ == 0) self->Conclude();
      };
      Outcomes* const outcomes = HasOutcomes() ? &outcomes_[i] : nullptr;
      const auto early =
          store_.Submit(op_, {&plan_[i], 1}, admitted_ns_, moment, clock_, outcomes, hear);
      if (early.has_value()) hear(*early);
    }
  }

 private:
  bool HasOutcomes() const { return op_ == Op::kHit || op_ == Op::kPeek; }

  void Conclude() {
    if (!IsDecision(op_)) {
      // Has an instant if any server has answered: that of the clock that is ahead.
      decision_.at_ns = kNoInstant;
      for (const Outcomes& outcome : outcomes_)
        decision_.at_ns = std::max(decision_.at_ns, outcome[0].at_ns);
      return done_(decision_);
    }
    bool degraded = false;
    for (size_t i = 0; i < plan_.size(); ++i) {
      verdict_.Add(outcomes_[i][0], static_cast<uint32_t>(i));
      degraded |= outcomes_[i][0].degraded;
    }
    decision_ = verdict_.get();
    decision_.degraded = degraded;
    decision_.late = true;  // the instant is that of one server
    if (wanted_ != nullptr) {
      wanted_->clear();
      for (const Outcomes& outcome : outcomes_) wanted_->push_back(outcome[0]);
    }
    // What has been used is refused nowhere.
    if ((decision_.allowed && !decision_.behind) || op_ != Op::kHit) return done_(decision_);
    left_ = 1;  // keeps this alive until all charges are sent
    const int64_t passed_ns = SystemClock::Get().Now() - begun_ns_;
    Decision undone;
    for (size_t i = 0; i < plan_.size(); ++i) {
      const Decision& d = outcomes_[i][0];
      if (!d.allowed || d.behind) continue;
      moment_.late = d.late;
      const auto op = Undoing(plan_[i], d, d.at_ns + passed_ns);
      if (!op.has_value()) continue;
      if (d.degraded) {
        UndoFallback(*op, plan_[i], d);
        continue;
      }
      if (d.leased && store_.DecideByLease(*op, {&plan_[i], 1}, &undone, nullptr)) continue;
      if (MonotonicNow() >= deadline_) {
        // Sent in the full form, since no caller is left to send it again.
        const redis::Request request = store_.RequestFor(*op, {&plan_[i], 1}, d.at_ns, moment_);
        store_.client_->Send(
            store_.SlotOf(plan_[i]),
            std::make_unique<Parting>(
                MonotonicIn(store_.options_.timeout),
                store_.scripts_->Command(request, redis::Form::kFull, /*by_text=*/true)));
        store_.denied_->Forget(store_.KeyOf(plan_[i]));
        continue;
      }
      ++left_;
      store_.Enqueue(*op, {&plan_[i], 1}, d.at_ns, moment_, deadline_, nullptr, nullptr,
                     [self = shared_from_this()](const Decision&) { self->Tell(); });
    }
    store_.Flush();
    Tell();
  }

  void Tell() {
    if (--left_ == 0) done_(decision_);
  }

  void UndoFallback(Op op, Charge charge, const Decision& decision) {
    if (store_.options_.on_error != OnError::kFallback) return;
    if (charge.limit->share != nullptr) charge.limit = charge.limit->share.get();
    const Moment local = store_.FallbackMoment(moment_, store_.HostNowNs());
    if (op == Op::kRelease) store_.fallback_->Release(charge, decision.at_ns, local);
    if (op == Op::kRefund) store_.fallback_->Refund(charge, local);
  }

  RedisStore& store_;
  const Op op_;
  std::vector<std::string> keys_;
  std::vector<Charge> plan_;
  const int64_t admitted_ns_;
  const Clock clock_;
  Outcomes* const wanted_;
  const RedisStore::Done done_;
  std::vector<Outcomes> outcomes_;  // one for each charge
  const int64_t begun_ns_;
  const Instant deadline_;
  Moment moment_{};
  std::atomic<size_t> left_{0};
  PlanVerdict verdict_;
  Decision decision_;
};

bool RedisStore::Spans(absl::Span<const Charge> plan) const {
  if (options_.topology != Topology::kCluster) return false;
  return std::any_of(plan.begin() + 1, plan.end(), [&](const Charge& charge) {
    return charge.key != plan[0].key && SlotOf(charge) != SlotOf(plan[0]);
  });
}

std::optional<Decision> RedisStore::SubmitSpread(Op op, absl::Span<const Charge> plan,
                                                 int64_t admitted_ns, const Moment& moment,
                                                 Clock clock, Outcomes* outcomes, Done done) {
  if (op != Op::kHit) {
    std::make_shared<Spread>(*this, op, plan, admitted_ns, std::move(clock), outcomes,
                             std::move(done))
        ->Begin(moment);
    return std::nullopt;
  }
  if (Decision early; HitWithoutWaiting(plan, moment, &early, outcomes)) return early;
  // If the deny cache refuses a charge, none is sent: a flood must not occupy units of the other
  // limits that are given back a moment later.
  PlanVerdict known;
  // The outcomes of the other limits stay unknown then, so a caller that wants all outcomes cannot
  // use this.
  for (size_t i = 0; outcomes == nullptr && denied_->on() && i < plan.size(); ++i) {
    const int64_t now_ns = options_.client_clock ? moment.now_ns : HostNowNs();
    if (Decision refusal; Denied(plan.subspan(i, 1), now_ns, &refusal, nullptr)) {
      known.Add(refusal, static_cast<uint32_t>(i));
    }
  }
  if (known.get().limit != nullptr) return known.get();
  std::make_shared<Spread>(*this, op, plan, admitted_ns, std::move(clock), outcomes,
                           std::move(done))
      ->Begin(moment);
  return std::nullopt;
}

Decision RedisStore::RunSpread(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                               const Moment& moment, Outcomes* outcomes) {
  absl::Notification over;
  Decision decision;
  const auto hear = [&](const Decision& d) {
    decision = d;
    over.Notify();
  };
  const auto early = SubmitSpread(op, plan, admitted_ns, moment, nullptr, outcomes, hear);
  if (early.has_value()) return *early;
  Flush();
  over.WaitForNotification();
  return decision;
}

}  // namespace tidegate
