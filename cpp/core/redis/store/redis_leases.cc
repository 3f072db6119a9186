// A RedisStore that decides by leases: calls that need not ask, and the questions for more.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/fingerprint_inl.h"
#include "base/monotonic.h"
#include "leases/table.h"
#include "redis/health/breaker.h"
#include "redis/health/deny_cache.h"
#include "redis/protocol/lease_words.h"
#include "redis/protocol/scripts.h"
#include "redis/store/lease_desk.h"
#include "redis/transport/client.h"
#include "redis/transport/process_local.h"
#include "tidegate/redis_store.h"

namespace tidegate {

// Questions without a call: for more units, or to give some back. They are sent once: what they
// report must not be heard twice. A server that does not have the script has not heard them.
class RedisStore::LeaseQuestion final : public redis::Caller {
 public:
  LeaseQuestion(RedisStore& store, leases::Askings askings, bool by_text)
      : Caller(MonotonicIn(store.options_.timeout)),
        store_(store.weak_from_this()),
        desk_(store.desk_->Share()),
        askings_(std::move(askings)),
        plan_(PlanOf(askings_)),
        by_text_(by_text),
        renewals_(store.renewals_.load(std::memory_order_relaxed)),
        command_(store.scripts_->Command(RequestIn(store), redis::Form::kFull, by_text)) {}

  // Of keys in one hash slot.
  static void Send(RedisStore& store, leases::Askings askings, bool by_text = false) {
    const uint16_t slot = store.SlotOf(PlanOf(askings)[0]);
    store.desk_->Get().Begin();
    store.client_->Send(slot, std::make_unique<LeaseQuestion>(store, std::move(askings), by_text));
  }

  std::string Request() override { return command_; }
  void Done(absl::StatusOr<redis::Reply> reply) override {
    // What it runs may drop the last user of the store. Null while the store ends.
    const std::shared_ptr<RedisStore> used = store_.lock();
    RedisStore* const store = desk_->BeginHearing();
    if (store == nullptr) return;
    Hear(*store, reply);
    desk_->EndHearing();
  }

  static Charge ChargeOf(const leases::Asking& asking) {
    return {asking.key, &asking.leasing->bound, 0};
  }

 private:
  using Charges = absl::InlinedVector<Charge, 2>;

  void Hear(RedisStore& store, const absl::StatusOr<redis::Reply>& reply) {
    const absl::Status failure = FailureIn(reply);
    if (absl::IsNotFound(failure) && !by_text_) {
      Send(store, askings_, /*by_text=*/true);
      store.Flush();
      return;
    }
    const auto answer = failure.ok()
                            ? redis::Scripts::Parse(**reply, RequestIn(store), redis::Form::kFull)
                            : absl::StatusOr<redis::Answer>(failure);
    store.RenewAfter(answer.status(), renewals_);
    store.Record(store.HearLeases(askings_, plan_, answer));
  }

  static Charges PlanOf(const leases::Askings& askings) {
    Charges plan;
    for (const auto& asking : askings) plan.push_back(ChargeOf(*asking));
    return plan;
  }
  redis::Request RequestIn(const RedisStore& store) const {
    return store.RequestFor(Op::kHit, plan_, kNoInstant, Moment{0}, askings_);
  }

  const std::weak_ptr<RedisStore> store_;
  const std::shared_ptr<LeaseDesk> desk_;
  const leases::Askings askings_;
  const Charges plan_;
  const bool by_text_;
  const uint64_t renewals_;
  const std::string command_;
};

absl::Duration RedisStore::LeaseOf(const Limit& limit, std::string* why) const {
  if (leases_ == nullptr) {
    *why = "the storage has no mode=leased";
    return absl::ZeroDuration();
  }
  const auto leasing =
      leases::Leasing::Of({limit, "", {}, nullptr}, absl::ToInt64Nanoseconds(options_.lease), why);
  return leasing == nullptr ? absl::ZeroDuration() : absl::Nanoseconds(leasing->length_ns);
}

bool RedisStore::IsLeased(absl::Span<const Charge> plan) const {
  return leases_ != nullptr && std::all_of(plan.begin(), plan.end(), [](const Charge& charge) {
           return charge.limit->leasing != nullptr;
         });
}

namespace {

using Prints = absl::InlinedVector<Fingerprint, 4>;

}  // namespace

leases::Askings RedisStore::AskForLeases(absl::Span<const Charge> plan) const {
  leases::Table& table = leases_->Get();
  if (plan.size() == 1) {
    leases::Askings askings;
    if (plan[0].limit->leasing == nullptr) return askings;
    if (auto asking = table.Ask(plan[0], KeyOf(plan[0])); asking != nullptr) {
      askings.push_back(std::move(asking));
    }
    return askings;
  }
  Prints prints;
  for (const Charge& charge : plan) prints.push_back(KeyOf(charge));
  return table.AskAll(plan, prints);
}

__attribute__((always_inline)) inline bool RedisStore::HitByLease(const Charge& charge,
                                                                  Decision* decision) {
  if (charge.limit->leasing == nullptr) return false;
  leases::Table& table = leases_->Get();
  std::shared_ptr<const leases::Asking> asking;
  const Fingerprint print = InlineHash::Of(board_->hasher, charge.key, charge.limit->tag);
  const auto answer = table.Hit(charge, print, decision, &asking);
  if (asking != nullptr) [[unlikely]]
    SendQuestions({&asking, 1});
  if (table.has_given_up()) [[unlikely]]
    SendGivenUp(table);
  if (answer != leases::Table::Answer::kDecided) return false;
  if (!decision->allowed) denied_locally_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool RedisStore::HitLeased(const Charge& charge, Decision* decision) {
  // Leases are not used with the clock of the client, so there is no moment.
  return HitByLease(charge, decision) || HitUnleased({&charge, 1}, Moment{0}, decision, nullptr);
}

bool RedisStore::SpendLease(leases::Table& table, const Charge& charge, int64_t now_ns) {
  if (charge.limit->leasing == nullptr) return false;
  std::shared_ptr<const leases::Asking> asking;
  const Fingerprint print = InlineHash::Of(board_->hasher, charge.key, charge.limit->tag);
  if (!table.Spend(charge, print, now_ns, &asking)) return false;
  if (asking != nullptr) [[unlikely]]
    SendQuestions({&asking, 1});
  return true;
}

void RedisStore::SendGivenUp(leases::Table& table) {
  for (const auto& given : table.TakeGivenUp()) SendQuestions({&given, 1});
}

bool RedisStore::DecideByLease(Op op, absl::Span<const Charge> plan, Decision* decision,
                               Outcomes* outcomes) {
  if (leases_ == nullptr) return false;
  if (op == Op::kHit && plan.size() == 1) {
    if (!HitByLease(plan[0], decision)) return false;
    if (outcomes != nullptr) outcomes->assign(1, *decision);
    return true;
  }
  leases::Table& table = leases_->Get();
  if (op == Op::kReset || op == Op::kForget) {
    for (const Charge& charge : plan) table.Reset(KeyOf(charge));
    return false;
  }
  const bool is_ours = op == Op::kHit || op == Op::kPeek || op == Op::kRefund;
  if (!is_ours || !IsLeased(plan)) return false;
  const bool is_single = plan.size() == 1;
  Prints prints;
  for (const Charge& charge : plan) prints.push_back(KeyOf(charge));
  if (op == Op::kRefund) {
    if (!(is_single ? table.PutBack(plan[0], prints[0]) : table.PutBackAll(plan, prints))) {
      return false;
    }
    new (decision) Decision();
    return true;
  }
  if (op == Op::kPeek) {
    if (!is_single) return table.PeekAll(plan, prints, decision, outcomes);
    if (!table.Peek(plan[0], prints[0], decision)) return false;
  } else {
    leases::Askings askings;
    const auto answer = table.HitAll(plan, prints, decision, outcomes, &askings);
    if (!askings.empty()) SendQuestions(askings);
    if (table.has_given_up()) SendGivenUp(table);
    if (answer != leases::Table::Answer::kDecided) return false;
    if (!decision->allowed) denied_locally_.fetch_add(1, std::memory_order_relaxed);
  }
  if (is_single && outcomes != nullptr) outcomes->assign(1, *decision);
  return true;
}

void RedisStore::SendQuestions(absl::Span<const std::shared_ptr<const leases::Asking>> askings) {
  if (!breaker_->IsClosed()) {
    for (const auto& asking : askings) leases_->Get().Lose(*asking);
    return;
  }
  const auto slot = [&](size_t i) { return SlotOf(LeaseQuestion::ChargeOf(*askings[i])); };
  leases::Askings together = {askings[0]};
  for (size_t i = 1; i < askings.size(); ++i) {
    if (slot(i) != slot(0)) {
      LeaseQuestion::Send(*this, {askings[i]});
    } else {
      together.push_back(askings[i]);
    }
  }
  LeaseQuestion::Send(*this, std::move(together));
  client_->Kick();
}

absl::Status RedisStore::HearLeases(absl::Span<const std::shared_ptr<const leases::Asking>> askings,
                                    absl::Span<const Charge> plan,
                                    const absl::StatusOr<redis::Answer>& answer) {
  absl::Status status = answer.status();
  for (size_t i = 0; i < askings.size(); ++i) {
    if (askings[i] == nullptr) continue;
    if (answer.ok()) {
      status.Update(HearLease(*askings[i], plan[i], *answer, i));
    } else {
      leases_->Get().Lose(*askings[i]);
    }
  }
  return status;
}

namespace {

absl::Status GrantedDifferently(const leases::Asking& asking, leases::Table* table) {
  table->Lose(asking);
  return absl::InternalError("the script and the core leased differently");
}

}  // namespace

absl::Status RedisStore::HearLease(const leases::Asking& asking, const Charge& charge,
                                   const redis::Answer& answer, size_t index) {
  leases::Table& table = leases_->Get();
  const leases::Terms& terms = asking.leasing->terms;
  leases::Table::Heard heard;
  // Another limit may have refused the plan.
  heard.allowed = answer.allowed || (answer.states.size() > 1 &&
                                     redis::Scripts::Decide(charge, answer, index, true).allowed);
  heard.cost = charge.cost;
  heard.granted = answer.granted.empty() ? 0 : answer.granted[index];
  heard.now_ns = answer.now_ns;
  if (const Limit& limit = charge.limit->limit; leases::IsWindow(limit.algorithm())) {
    heard.window =
        leases::LeaseWindow(limit, *redis::Scripts::Steppable(charge, answer, index), answer.now_ns,
                            charge.cost, answer.allowed, asking.question.want);
    if (!heard.allowed) heard.wait_ns = heard.window->wait_ns;
    if (heard.window->granted != heard.granted) return GrantedDifferently(asking, &table);
    table.Hear(asking, heard);
    return absl::OkStatus();
  }
  const auto level = redis::LevelOf(charge, answer, index);
  heard.level = level.value_or(leases::Level());
  leases::Settle(terms, answer.now_ns, &heard.level);
  if (!answer.allowed) {
    if (!heard.allowed && charge.cost <= terms.burst) {
      const leases::Parts wait = leases::Wait(terms, answer.now_ns, heard.level, charge.cost);
      heard.wait_ns = static_cast<int64_t>((wait + terms.denominator - 1) / terms.denominator);
    }
    table.Hear(asking, heard);
    return absl::OkStatus();
  }
  leases::ChargeUnits(terms, charge.cost, &heard.level);
  const int64_t granted = leases::Grant(terms, answer.now_ns, asking.question.want,
                                        asking.question.length_ns, &heard.level);
  if (level.has_value() && granted != heard.granted) return GrantedDifferently(asking, &table);
  table.Hear(asking, heard);
  return absl::OkStatus();
}

void RedisStore::GiveLeasesBack() { GiveLeasesBackWithin(absl::Milliseconds(250)); }

void RedisStore::GiveLeasesBackWithin(absl::Duration longest) {
  if (leases_ == nullptr || !breaker_->IsClosed()) return;
  longest = std::min(options_.timeout, longest);
  // What is granted meanwhile comes back, too.
  desk_->Get().Await(longest);
  const auto given = leases_->Get().GiveUpAll();
  if (given.empty()) return;
  for (const auto& asking : given) LeaseQuestion::Send(*this, {asking});
  client_->Kick();
  desk_->Get().Await(longest);
}

}  // namespace tidegate
