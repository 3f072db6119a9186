// The calls of a RedisStore that do not wait.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/synchronization/notification.h"
#include "base/monotonic.h"
#include "leases/clock.h"
#include "leases/table.h"
#include "redis/protocol/scripts.h"
#include "redis/transport/client.h"
#include "redis/transport/process_local.h"
#include "tidegate/redis_store.h"

namespace tidegate {

// Requests under way, with the data to interpret the reply: one of any kind, or short hits that
// share a command.
class RedisStore::Sent final : public redis::Caller {
 public:
  struct Call {
    RedisStore& store;
    Op op;
    absl::InlinedVector<std::string, 1> keys;  // of the plan
    absl::InlinedVector<Charge, 2> plan;
    int64_t admitted_ns;
    Moment moment;
    Clock clock;
    Asked asked;
    Outcomes* outcomes;
    RedisStore::Done done;

    redis::Request Request() const {
      return store.RequestFor(op, plan, admitted_ns, moment, asked.askings);
    }
    void Answer(const absl::StatusOr<redis::Answer>& answer) const {
      const Decision decision = store.Judge(op, plan, moment, asked, answer, outcomes);
      if (!decision.behind || !clock) return done(decision);
      Moment confirmed{0, /*confirmed=*/true};
      try {
        confirmed.now_ns = clock();
      } catch (...) {  // without a second reading, nothing is confirmed
        return done(decision);
      }
      const auto early = store.Submit(op, plan, admitted_ns, confirmed, nullptr, outcomes, done);
      if (early.has_value()) return done(*early);
      store.Flush();
    }
  };

  using Calls = absl::InlinedVector<std::unique_ptr<Call>, 1>;

  Sent(Instant deadline, std::unique_ptr<Call> call)
      : Caller(deadline),
        store_(call->store),
        slot_(store_.SlotOf(call->plan[0])),
        form_(redis::Scripts::FormOf(call->Request())) {
    calls_.push_back(std::move(call));
  }

  // By the text of the script.
  Sent(Instant deadline, Calls calls, redis::Form form)
      : Caller(deadline),
        store_(calls[0]->store),
        slot_(store_.SlotOf(calls[0]->plan[0])),
        form_(form),
        by_text_(true),
        calls_(std::move(calls)),
        kinds_(calls_.size()) {}

  static void Send(std::unique_ptr<Sent> sent) {
    redis::Client& client = *sent->store_.client_;
    const uint16_t slot = sent->slot_;
    client.Send(slot, std::move(sent));
  }

  void Join(std::unique_ptr<redis::Caller>* other) override {
    auto* const sent = dynamic_cast<Sent*>(other->get());
    if (sent == nullptr || slot_ != sent->slot_ || form_ != sent->form_ ||
        by_text_ != sent->by_text_ ||
        calls_.size() + sent->calls_.size() > redis::Scripts::kMostHits ||
        !redis::Scripts::CanShare(form_, calls_[0]->plan[0], sent->calls_[0]->plan[0])) {
      return;
    }
    const Charge& hit = sent->calls_[0]->plan[0];
    const auto last = std::find_if(calls_.rbegin(), calls_.rend(), [&](const auto& call) {
      return redis::Scripts::HaveSameKey(call->plan[0], hit);
    });
    const bool is_new = sent->calls_.size() > 1 || last == calls_.rend() ||
                        !redis::Scripts::AreAlike((*last)->plan[0], hit);
    if (is_new && kinds_ + sent->kinds_ > redis::Scripts::kMostKinds) return;
    if (is_new) kinds_ += sent->kinds_;
    for (auto& call : sent->calls_) calls_.push_back(std::move(call));
    other->reset();
  }

  std::string Request() override {
    if (!redis::IsOfHits(form_)) {
      return store_.scripts_->Command(calls_[0]->Request(), form_, by_text_);
    }
    return store_.scripts_->HitsCommand(form_, Hits(), calls_[0]->Request().margin_ms, by_text_);
  }

  void Done(absl::StatusOr<redis::Reply> reply) override {
    const absl::Status failure = store_.FailureIn(reply);
    if (absl::IsNotFound(failure) && !by_text_) {
      RedisStore& store = store_;
      Send(std::make_unique<Sent>(deadline(), std::move(calls_), form_));
      store.Flush();
      return;
    }
    if (!failure.ok()) {
      for (const auto& call : calls_) call->Answer(failure);
    } else {
      AnswerAll(**reply);
    }
  }

 private:
  absl::InlinedVector<Charge, redis::Scripts::kMostHits> Hits() const {
    absl::InlinedVector<Charge, redis::Scripts::kMostHits> hits;
    for (const auto& call : calls_) hits.push_back(call->plan[0]);
    return hits;
  }
  void AnswerAll(const redisReply& reply) {
    if (!redis::IsOfHits(form_)) {
      calls_[0]->Answer(redis::Scripts::Parse(reply, calls_[0]->Request(), form_));
      return;
    }
    const auto answers = redis::Scripts::ParseHits(reply, form_, Hits());
    for (size_t i = 0; i < calls_.size(); ++i) calls_[i]->Answer(answers[i]);
  }

  RedisStore& store_;
  const uint16_t slot_;
  const redis::Form form_;
  const bool by_text_ = false;
  Calls calls_;
  size_t kinds_ = 1;  // of hits that are not alike, at most
};

void RedisStore::Enqueue(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                         const Moment& moment, Instant deadline, Clock clock, Outcomes* outcomes,
                         Done done) {
  auto call = std::make_unique<Sent::Call>(Sent::Call{*this,
                                                      op,
                                                      {},
                                                      {plan.begin(), plan.end()},
                                                      admitted_ns,
                                                      moment,
                                                      std::move(clock),
                                                      Ask(op, plan, moment),
                                                      outcomes,
                                                      std::move(done)});
  // Usually all charges have one key, which is kept once. All keys are stored before any pointer to
  // them is taken.
  const auto same = [&](const Charge& charge) { return charge.key.data() == plan[0].key.data(); };
  const bool one = std::all_of(plan.begin(), plan.end(), same);
  for (const Charge& charge : one ? plan.first(1) : plan) call->keys.emplace_back(charge.key);
  for (size_t i = 0; i < plan.size(); ++i) call->plan[i].key = call->keys[one ? 0 : i];
  Sent::Send(std::make_unique<Sent>(deadline, std::move(call)));
}

std::optional<Decision> RedisStore::Submit(Op op, absl::Span<const Charge> plan,
                                           int64_t admitted_ns, const Moment& moment, Clock clock,
                                           Outcomes* outcomes, Done done) {
  if (Spans(plan)) {
    return SubmitSpread(op, plan, admitted_ns, moment, std::move(clock), outcomes, std::move(done));
  }
  Decision early;
  if (op == Op::kHit ? HitWithoutWaiting(plan, moment, &early, outcomes)
                     : Before(op, plan, moment, &early, outcomes)) {
    return early;
  }
  Enqueue(op, plan, admitted_ns, moment, MonotonicIn(options_.timeout), std::move(clock), outcomes,
          std::move(done));
  return std::nullopt;
}

void RedisStore::HitMany(absl::Span<const Charge> charges, const Moment& moment,
                         Verdict* verdicts) {
  const auto verdict_of = [&moment](const Decision& d) {
    return d.behind && !moment.confirmed ? Verdict::kUnconfirmed
           : d.allowed                   ? Verdict::kAllowed
                                         : Verdict::kRefused;
  };
  // Calls that Redis decides, and one for those that are still to come.
  std::atomic<size_t> left = 1;
  absl::Notification over;
  bool asks = false;
  leases::Table* const table = leases_ == nullptr ? nullptr : &leases_->Get();
  constexpr size_t kAtOnce = 64;  // that leases decide by one reading of their clock
  int64_t lease_now_ns = 0;
  for (size_t i = 0; i < charges.size(); ++i) {
    const absl::Span<const Charge> plan = charges.subspan(i, 1);
    if (table != nullptr) {
      if (i % kAtOnce == 0) lease_now_ns = leases::LeaseNowNs();
      if (SpendLease(*table, charges[i], lease_now_ns)) {
        verdicts[i] = Verdict::kAllowed;
        continue;
      }
    }
    Decision early;
    if (HitWithoutWaiting(plan, moment, &early, nullptr)) {
      verdicts[i] = verdict_of(early);
      continue;
    }
    asks = true;
    left.fetch_add(1, std::memory_order_relaxed);
    const auto done = [&, verdict = &verdicts[i]](const Decision& d) {
      *verdict = verdict_of(d);
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) over.Notify();
    };
    Enqueue(Op::kHit, plan, kNoInstant, moment, MonotonicIn(options_.timeout), nullptr, nullptr,
            done);
  }
  if (!asks) return;
  Flush();
  if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) over.WaitForNotification();
}

void RedisStore::Flush() { client_->Kick(); }

}  // namespace tidegate
