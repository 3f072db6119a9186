// A RedisStore that decides by leases: calls that need not ask, and the questions for more.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/monotonic.h"
#include "leases/table.h"
#include "redis/health/breaker.h"
#include "redis/health/deny_cache.h"
#include "redis/protocol/lease_words.h"
#include "redis/protocol/scripts.h"
#include "redis/transport/client.h"
#include "redis/transport/process_local.h"
#include "tidegate/redis_store.h"

namespace tidegate {

// A question without a call: for more units, or to give some back. It is sent once: what it tells
// must not be heard twice. A server that does not have the script has not heard it.
class RedisStore::LeaseQuestion final : public redis::Caller {
 public:
  struct Last {
    std::atomic<size_t> left;
    absl::Notification over;
  };

  LeaseQuestion(RedisStore& store, std::shared_ptr<const leases::Asking> asking, bool by_text,
                std::shared_ptr<Last> last)
      : Caller(MonotonicIn(store.options_.timeout)),
        store_(store.weak_from_this()),
        asking_(std::move(asking)),
        charge_{asking_->key, &asking_->leasing->bound, 0},
        by_text_(by_text),
        last_(std::move(last)),
        renewals_(store.renewals_.load(std::memory_order_relaxed)),
        command_(store.scripts_->Command(
            store.RequestFor(Op::kHit, {&charge_, 1}, kNoInstant, Moment{0}, asking_.get()),
            redis::Form::kFull, by_text)) {}

  static void Send(RedisStore& store, std::shared_ptr<const leases::Asking> asking,
                   bool by_text = false, std::shared_ptr<Last> last = nullptr) {
    const Charge charge{asking->key, &asking->leasing->bound, 0};
    const uint16_t slot = store.SlotOf(charge);
    store.client_->Send(
        slot, std::make_unique<LeaseQuestion>(store, std::move(asking), by_text, std::move(last)));
  }

  std::string Request() override { return command_; }
  void Done(absl::StatusOr<redis::Reply> reply) override {
    if (last_ != nullptr && last_->left.fetch_sub(1) == 1) last_->over.Notify();
    // No caller waits for it, so the store may be gone.
    const std::shared_ptr<RedisStore> store = store_.lock();
    if (store == nullptr) return;
    const absl::Status failure = FailureIn(reply);
    if (absl::IsNotFound(failure) && !by_text_) {
      Send(*store, asking_, /*by_text=*/true);
      store->Flush();
      return;
    }
    const auto answer =
        failure.ok() ? redis::Scripts::Parse(**reply,
                                             store->RequestFor(Op::kHit, {&charge_, 1}, kNoInstant,
                                                               Moment{0}, asking_.get()),
                                             redis::Form::kFull)
                     : absl::StatusOr<redis::Answer>(failure);
    store->RenewAfter(answer.status(), renewals_);
    store->Record(store->HearLease(*asking_, 0, answer));
  }

 private:
  const std::weak_ptr<RedisStore> store_;
  const std::shared_ptr<const leases::Asking> asking_;
  const Charge charge_;
  const bool by_text_;
  const std::shared_ptr<Last> last_;
  const uint64_t renewals_;
  const std::string command_;
};

bool RedisStore::IsLeased(absl::Span<const Charge> plan) const {
  return leases_ != nullptr && plan.size() == 1 && plan[0].limit->leasing != nullptr;
}

bool RedisStore::DecideByLease(Op op, absl::Span<const Charge> plan, Decision* decision,
                               Outcomes* outcomes) {
  if (leases_ == nullptr) return false;
  leases::Table& table = leases_->Get();
  if (op == Op::kReset || op == Op::kForget) {
    for (const Charge& charge : plan) table.Reset(KeyOf(charge));
    return false;
  }
  if (!IsLeased(plan)) return false;
  const Fingerprint print = KeyOf(plan[0]);
  if (op == Op::kRefund) {
    if (!table.PutBack(plan[0], print)) return false;
    new (decision) Decision();
    return true;
  }
  if (op == Op::kPeek) {
    if (!table.Peek(plan[0], print, decision)) return false;
  } else if (op == Op::kHit) {
    std::shared_ptr<const leases::Asking> asking;
    const bool known =
        table.Hit(plan[0], print, decision, &asking) == leases::Table::Answer::kDecided;
    if (asking != nullptr) SendQuestion(std::move(asking));
    if (table.has_given_up()) {
      for (auto& given : table.TakeGivenUp()) SendQuestion(std::move(given));
    }
    if (!known) return false;
    if (!decision->allowed) denied_locally_.fetch_add(1, std::memory_order_relaxed);
  } else {
    return false;
  }
  if (outcomes != nullptr) outcomes->assign(1, *decision);
  return true;
}

void RedisStore::SendQuestion(std::shared_ptr<const leases::Asking> asking) {
  if (!breaker_->IsClosed()) return leases_->Get().Lose(*asking);
  LeaseQuestion::Send(*this, std::move(asking));
  client_->Kick();
}

absl::Status RedisStore::HearLease(const leases::Asking& asking, int64_t cost,
                                   const absl::StatusOr<redis::Answer>& answer) {
  if (!asking.has_place) return answer.status();
  leases::Table& table = leases_->Get();
  if (!answer.ok()) {
    table.Lose(asking);
    return answer.status();
  }
  const leases::Terms& terms = asking.leasing->terms;
  const Charge charge{asking.key, &asking.leasing->bound, cost};
  leases::Table::Heard heard;
  heard.allowed = answer->allowed;
  heard.cost = cost;
  heard.granted = answer->granted;
  heard.now_ns = answer->now_ns;
  const auto level = redis::LevelOf(charge, *answer, 0);
  heard.level = level.value_or(leases::Level());
  leases::Settle(terms, answer->now_ns, &heard.level);
  if (!answer->allowed) {
    if (cost <= terms.burst) {
      const leases::Parts wait = leases::Wait(terms, answer->now_ns, heard.level, cost);
      heard.wait_ns = static_cast<int64_t>((wait + terms.denominator - 1) / terms.denominator);
    }
    table.Hear(asking, heard);
    return absl::OkStatus();
  }
  leases::ChargeUnits(terms, cost, &heard.level);
  const int64_t granted = leases::Grant(terms, answer->now_ns, asking.question.want,
                                        asking.leasing->length_ns, &heard.level);
  if (level.has_value() && granted != answer->granted) {
    table.Lose(asking);
    return absl::InternalError("the script and the core leased differently");
  }
  table.Hear(asking, heard);
  return absl::OkStatus();
}

void RedisStore::GiveLeasesBack() {
  if (leases_ == nullptr || !breaker_->IsClosed()) return;
  const auto given = leases_->Get().GiveUpAll();
  if (given.empty()) return;
  // The calls of the last moment; without them the units come back when the leases end.
  constexpr absl::Duration kLongest = absl::Milliseconds(50);
  const auto last = std::make_shared<LeaseQuestion::Last>();
  last->left = given.size();
  for (const auto& asking : given) LeaseQuestion::Send(*this, asking, /*by_text=*/false, last);
  client_->Kick();
  last->over.WaitForNotificationWithTimeout(std::min(options_.timeout, kLongest));
}

}  // namespace tidegate
