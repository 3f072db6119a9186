// Reservations in a RedisStore. Their calls never wait here; callers that must wait do so above.
#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "algorithms/outstanding.h"
#include "base/monotonic.h"
#include "redis/health/breaker.h"
#include "redis/health/deny_cache.h"
#include "redis/protocol/error_reply.h"
#include "redis/protocol/scripts.h"
#include "redis/transport/client.h"
#include "tidegate/redis_store.h"

namespace tidegate {

absl::Status RedisStore::KeepsReservations(const Limit&) const { return absl::OkStatus(); }

Decision RedisStore::DegradedReserved(Op op, absl::Span<const Charge> plan, const Moment& moment,
                                      Reservation* reservation) {
  for (Reservation::Part& part : reservation->parts) part.found = Found::kNoAnswer;
  if (op == Op::kReserve) {
    // The fallback decides as for a hit. It keeps no record: only the caller knows what was
    // charged.
    reservation->parts.assign(plan.size(), {Reservation::kNone});
    return Degraded(Op::kHit, plan, moment, HostNowNs(), nullptr);
  }
  absl::InlinedVector<Charge, 4> ones(plan.begin(), plan.end());
  for (Charge& one : ones) one.cost = std::max<int64_t>(op == Op::kSettle ? 1 : one.cost, 1);
  Decision decision = Degraded(Op::kPeek, ones, moment, HostNowNs(), nullptr);
  if (op == Op::kSettle) decision.SetCharged(0);
  return decision;
}

Decision RedisStore::JudgeReserved(Op op, absl::Span<const Charge> plan, const Moment& moment,
                                   const Asked& asked, const absl::StatusOr<redis::Answer>& answer,
                                   Reservation* reservation) {
  absl::Status failure = answer.status();
  RenewAfter(failure, asked.renewals);
  if (failure.ok() && asked.foreign_replies != foreign_replies_.load(std::memory_order_acquire))
      [[unlikely]] {
    failure = absl::AbortedError("the reply followed one that belongs to another command");
  }
  if (denied_->on()) {
    for (const Charge& charge : plan) denied_->Forget(KeyOf(charge));
  }
  Record(failure);
  if (!failure.ok()) return DegradedReserved(op, plan, moment, reservation);
  if (op == Op::kReserve) {
    reservation->admitted_ns = answer->now_ns;
    reservation->parts.assign(plan.size(), {Reservation::kNone});
  }
  PlanVerdict verdict;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < plan.size(); ++i) {
    const redis::Answer::Record& record = answer->records[i];
    Reservation::Part& part = reservation->parts[i];
    Charge charge = plan[i];
    if (op == Op::kSettle) charge.cost = 1;
    const Decision each = redis::Scripts::Decide(charge, *answer, i, /*peek=*/op == Op::kSettle);
    verdict.Add(each, static_cast<uint32_t>(i));
    part.found = record.found;
    part.found_units = record.units;
    if (record.found == Found::kOther) {
      part.until_ns = LaterBy(charge.limit->limit, part.until_ns, record.units - part.units);
    }
    if (op == Op::kSettle) {
      part.charged = record.charged;
      if (!charge.limit->limit.shadow() || plan.size() == 1)
        least = std::min(least, record.charged);
    } else if (answer->allowed && record.found == Found::kOpen) {
      part.units = record.units;
      part.until_ns = std::max(part.until_ns, answer->now_ns + each.reset_after_ns);
    }
  }
  Decision decision = verdict.get();
  decision.behind =
      !answer->allowed && decision.behind && options_.client_clock && !moment.confirmed;
  decision.at_ns = answer->now_ns;
  if (op == Op::kSettle) {
    decision.SetCharged(least == std::numeric_limits<int64_t>::max() ? 0 : least);
    return decision;
  }
  // The script decides, also where it rounds the state of another number of an id up.
  decision.allowed = answer->allowed;
  decision.retry_after_ns = decision.allowed ? 0 : std::max<int64_t>(decision.retry_after_ns, 1);
  return decision;
}

// One request of a reservation, for keys of one slot.
class RedisStore::SentReserved final : public redis::Caller {
 public:
  struct Call {
    RedisStore& store;
    Op op;
    std::vector<std::string> keys;  // of the plan
    absl::InlinedVector<Charge, 2> plan;
    std::shared_ptr<Reservation> reservation;
    Moment moment;
    Clock clock;
    Asked asked;
    RedisStore::Done done;
    int tries = 1;  // left, of a call that may be made twice
  };

  SentReserved(Instant deadline, std::unique_ptr<Call> call, bool by_text = false)
      : Caller(deadline), call_(std::move(call)), by_text_(by_text) {}

  static void Send(Instant deadline, std::unique_ptr<Call> call, bool by_text = false) {
    redis::Client& client = *call->store.client_;
    const uint16_t slot = call->store.SlotOf(call->plan[0]);
    client.Send(slot, std::make_unique<SentReserved>(deadline, std::move(call), by_text));
  }

  std::string Request() override {
    return call_->store.scripts_->Command(TheRequest(), redis::Form::kFull, by_text_);
  }

  void Done(absl::StatusOr<redis::Reply> reply) override {
    RedisStore& store = call_->store;
    absl::Status failure = FailureIn(reply);
    if (absl::IsNotFound(failure) && !by_text_) return Again(/*by_text=*/true);
    const absl::StatusOr<redis::Answer> answer =
        failure.ok() ? redis::Scripts::Parse(**reply, TheRequest(), redis::Form::kFull)
                     : absl::StatusOr<redis::Answer>(failure);
    // To settle twice is to settle once, so a lost reply is no reason to leave it unknown.
    if (absl::IsAborted(answer.status()) && call_->op == Op::kSettle && call_->tries > 0 &&
        MonotonicNow() < deadline()) {
      --call_->tries;
      return Again(by_text_);
    }
    Decision decision = store.JudgeReserved(call_->op, call_->plan, call_->moment, call_->asked,
                                            answer, call_->reservation.get());
    if (decision.behind && call_->clock) {
      try {
        call_->moment = {call_->clock(), /*confirmed=*/true};
      } catch (...) {  // without a second reading, nothing is confirmed
        return call_->done(decision);
      }
      call_->clock = nullptr;
      return Again(by_text_);
    }
    call_->done(decision);
  }

 private:
  redis::Request TheRequest() const {
    redis::Request request =
        call_->store.RequestFor(call_->op, call_->plan, kNoInstant, call_->moment);
    request.reservation = call_->reservation.get();
    return request;
  }

  void Again(bool by_text) {
    RedisStore& store = call_->store;
    Send(deadline(), std::move(call_), by_text);
    store.Flush();
  }

  std::unique_ptr<Call> call_;
  const bool by_text_;
};

// The same for keys of several slots of a cluster: each charge is a reservation of its own under
// the one id. If one refuses, the others are given back before the answer is returned.
class RedisStore::SpreadReserved final : public std::enable_shared_from_this<SpreadReserved> {
 public:
  SpreadReserved(RedisStore& store, Op op, absl::Span<const Charge> plan,
                 std::shared_ptr<Reservation> reservation, Clock clock, Done done)
      : store_(store),
        op_(op),
        plan_(plan.begin(), plan.end()),
        whole_(std::move(reservation)),
        clock_(std::move(clock)),
        done_(std::move(done)) {
    keys_.reserve(plan.size());
    for (Charge& charge : plan_) charge.key = keys_.emplace_back(charge.key);
    for (size_t i = 0; i < plan_.size(); ++i) {
      auto& part = parts_.emplace_back(std::make_shared<Reservation>(*whole_));
      part->parts.clear();
      if (op_ != Op::kReserve) part->parts.push_back(whole_->parts[i]);
    }
    decisions_.resize(plan_.size());
  }

  void Begin(const Moment& moment) {
    moment_ = moment;
    Submit(
        op_, [](size_t) { return true; }, &SpreadReserved::Conclude);
  }

 private:
  template <typename Wanted>
  void Submit(Op op, Wanted wanted, void (SpreadReserved::*then)()) {
    left_ = 1;  // until all are submitted
    for (size_t i = 0; i < plan_.size(); ++i) {
      if (!wanted(i)) continue;
      ++left_;
      const auto hear = [self = shared_from_this(), i, op, then](const Decision& decision) {
        if (op == self->op_) self->decisions_[i] = decision;
        if (--self->left_ == 0) ((*self).*then)();
      };
      const auto early =
          store_.SubmitReserved(op, {&plan_[i], 1}, parts_[i], moment_, clock_, hear);
      if (early.has_value()) hear(*early);
    }
    store_.Flush();
    if (--left_ == 0) (this->*then)();
  }

  void Conclude() {
    PlanVerdict verdict;
    bool degraded = false;
    for (size_t i = 0; i < plan_.size(); ++i) {
      verdict.Add(decisions_[i], static_cast<uint32_t>(i));
      degraded |= decisions_[i].degraded;
    }
    decision_ = verdict.get();
    decision_.degraded = degraded;
    whole_->parts.clear();
    for (size_t i = 0; i < plan_.size(); ++i) {
      const int64_t admitted_ns = parts_[i]->admitted_ns;
      if (i == 0 || admitted_ns < whole_->admitted_ns) whole_->admitted_ns = admitted_ns;
      whole_->parts.push_back(parts_[i]->parts[0]);
    }
    // A raise that one limit refuses stays in the records of the others until they are settled.
    if (op_ != Op::kReserve || decision_.allowed) return done_(decision_);
    for (size_t i = 0; i < plan_.size(); ++i) {
      if (decisions_[i].allowed && decisions_[i].degraded) {
        store_.GiveBackInFallback(plan_[i], decisions_[i].at_ns, moment_);
      }
      whole_->parts[i] = {Reservation::kNone};
    }
    for (Charge& charge : plan_) charge.cost = 0;
    const auto taken = [&](size_t i) {
      return decisions_[i].allowed && parts_[i]->parts[0].units != Reservation::kNone;
    };
    Submit(Op::kSettle, taken, &SpreadReserved::Tell);
  }

  void Tell() { done_(decision_); }

  RedisStore& store_;
  const Op op_;
  std::vector<std::string> keys_;
  std::vector<Charge> plan_;
  const std::shared_ptr<Reservation> whole_;
  std::vector<std::shared_ptr<Reservation>> parts_;  // one for each charge
  std::vector<Decision> decisions_;
  const Clock clock_;
  const RedisStore::Done done_;
  Moment moment_{};
  std::atomic<size_t> left_{0};
  Decision decision_;
};

std::optional<Decision> RedisStore::SubmitReserved(Op op, absl::Span<const Charge> plan,
                                                   std::shared_ptr<Reservation> reservation,
                                                   const Moment& moment, Clock clock, Done done) {
  if (Spans(plan)) {
    std::make_shared<SpreadReserved>(*this, op, plan, std::move(reservation), std::move(clock),
                                     std::move(done))
        ->Begin(moment);
    return std::nullopt;
  }
  // Limits in shadow that reserved nothing have nothing to settle.
  std::vector<size_t> held;
  for (size_t i = 0; op != Op::kReserve && i < plan.size(); ++i) {
    if (reservation->parts[i].units != Reservation::kNone) held.push_back(i);
  }
  if (op != Op::kReserve && held.size() < plan.size()) {
    return SubmitHeld(op, plan, std::move(reservation), held, moment, std::move(clock),
                      std::move(done));
  }
  // As an operation that decides nothing: what decides in its place depends on the call.
  if (Decision early;
      !breaker_->IsQuiet() && DecideByBreaker(Op::kRefund, plan, moment, &early, nullptr)) {
    return DegradedReserved(op, plan, moment, reservation.get());
  }
  if (denied_->on()) {
    for (const Charge& charge : plan) denied_->Forget(KeyOf(charge));
  }
  auto call = std::make_unique<SentReserved::Call>(SentReserved::Call{*this,
                                                                      op,
                                                                      {},
                                                                      {plan.begin(), plan.end()},
                                                                      std::move(reservation),
                                                                      moment,
                                                                      std::move(clock),
                                                                      Ask(op, plan, moment),
                                                                      std::move(done)});
  for (const Charge& charge : plan) call->keys.emplace_back(charge.key);
  for (size_t i = 0; i < plan.size(); ++i) call->plan[i].key = call->keys[i];
  SentReserved::Send(MonotonicIn(options_.timeout), std::move(call));
  return std::nullopt;
}

std::optional<Decision> RedisStore::SubmitHeld(Op op, absl::Span<const Charge> plan,
                                               std::shared_ptr<Reservation> reservation,
                                               const std::vector<size_t>& held,
                                               const Moment& moment, Clock clock, Done done) {
  for (Reservation::Part& part : reservation->parts) part.found = Found::kNothing;
  if (held.empty()) {
    Decision decision;
    decision.limit = &plan[0].limit->limit;
    decision.at_ns = moment.now_ns;
    decision.allowed = true;
    if (op == Op::kSettle) decision.SetCharged(0);
    return decision;
  }
  absl::InlinedVector<Charge, 4> charges;
  auto some = std::make_shared<Reservation>(*reservation);
  some->parts.clear();
  for (const size_t i : held) {
    charges.push_back(plan[i]);
    some->parts.push_back(reservation->parts[i]);
  }
  const auto merge = [reservation = std::move(reservation), some, held](Decision decision) {
    for (size_t i = 0; i < held.size(); ++i) reservation->parts[held[i]] = some->parts[i];
    decision.rule = static_cast<uint16_t>(held[decision.rule]);
    return decision;
  };
  const std::optional<Decision> early =
      SubmitReserved(op, charges, some, moment, std::move(clock),
                     [merge, done = std::move(done)](const Decision& late) { done(merge(late)); });
  if (!early.has_value()) return std::nullopt;
  return merge(*early);
}

}  // namespace tidegate
