#include "tidegate/redis_store.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic.h"
#include "leases/table.h"
#include "redis/health/board.h"
#include "redis/health/breaker.h"
#include "redis/health/deny_cache.h"
#include "redis/health/failure_log.h"
#include "redis/protocol/error_reply.h"
#include "redis/protocol/keys.h"
#include "redis/protocol/lease_words.h"
#include "redis/protocol/scripts.h"
#include "redis/store/lease_desk.h"
#include "redis/transport/cluster.h"
#include "redis/transport/process_local.h"
#include "redis/transport/single_server.h"
#include "tidegate/clock.h"
#include "tidegate/memory_store.h"

namespace tidegate {
namespace {

absl::Status Check(const RedisOptions& o) {
  if (o.port < 1 || o.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("the port of Redis is ", o.port, "; expected 1 to 65535"));
  }
  if (o.database < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the database of Redis is ", o.database, "; expected 0 and more"));
  }
  if (!(o.fallback_share > 0 && o.fallback_share <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the fallback_share is ", o.fallback_share, "; expected above 0, up to 1"));
  }
  if (o.timeout <= absl::ZeroDuration() || o.connect_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("a timeout of 0 or less was given; expected more");
  }
  if (o.deny_cache_max < absl::ZeroDuration() || o.deny_cache_max > absl::Hours(1)) {
    return absl::InvalidArgumentError(absl::StrCat("the deny_cache_max is ",
                                                   absl::ToDoubleSeconds(o.deny_cache_max),
                                                   " s; expected 0 to 3600"));
  }
  if (o.breaker_failures < 1 || o.breaker_open <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("breaker_failures is ", o.breaker_failures, " and breaker_open ",
                     absl::ToDoubleSeconds(o.breaker_open),
                     " s; expected 1 failure and more, and more than 0 s"));
  }
  if (o.lease != absl::ZeroDuration() &&
      (o.lease < absl::Milliseconds(1) || o.lease > absl::Seconds(10))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the lease is ", absl::ToDoubleSeconds(o.lease), " s; expected 0.001 to 10"));
  }
  if (o.lease != absl::ZeroDuration() && o.client_clock) {
    return absl::InvalidArgumentError(
        "leases were asked for with the clock of the client; expected that of the server");
  }
  if (o.ttl_margin < absl::ZeroDuration() || o.ttl_margin > absl::Hours(24 * 366)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ttl_margin is ", absl::ToDoubleSeconds(o.ttl_margin), " s; expected 0 to a year"));
  }
  return absl::OkStatus();
}

RedisValue ValueOf(const redisReply& reply) {
  switch (reply.type) {
    case REDIS_REPLY_INTEGER:
      return {int64_t{reply.integer}};
    case REDIS_REPLY_NIL:
      return {};
    case REDIS_REPLY_ARRAY: {
      std::vector<RedisValue> values;
      for (size_t i = 0; i < reply.elements; ++i) values.push_back(ValueOf(*reply.element[i]));
      return {std::move(values)};
    }
    default:
      return {std::string(reply.str, reply.len)};
  }
}

bool KeepsCount(absl::Span<const Charge> plan) {
  return std::any_of(plan.begin(), plan.end(),
                     [](const Charge& charge) { return charge.limit->limit.keeps_count(); });
}

// The part of a limit that the fallback grants.
absl::StatusOr<Limit> ShareOf(const Limit& whole, double share) {
  const auto part = [&](int64_t n) {
    return std::max<int64_t>(std::min<int64_t>(n, 1),
                             static_cast<int64_t>(share * static_cast<double>(n)));
  };
  LimitSpec spec;
  spec.count = part(whole.count());
  spec.period_ns = whole.period_ns();
  if (IsBucket(whole.algorithm())) spec.burst = part(whole.burst());
  spec.algorithm = whole.algorithm();
  spec.calendar = whole.calendar();
  spec.calendar_units = whole.calendar_units();
  spec.name = whole.name();
  spec.rule = whole.rule();
  spec.shadow = whole.shadow();
  spec.id = whole.id();
  spec.carry_over = whole.spec().carry_over;
  spec.quota = whole.spec().quota;
  if (spec.quota != nullptr && !spec.quota->spec().former.empty()) {
    QuotaSpec terms = spec.quota->spec();
    for (FormerCount& former : terms.former) former.count = part(former.count);
    spec.quota = *QuotaTerms::Create(std::move(terms));
  }
  return Limit::Create(std::move(spec));
}

}  // namespace

absl::StatusOr<std::shared_ptr<RedisStore>> RedisStore::Create(RedisOptions options) {
  if (absl::Status s = Check(options); !s.ok()) return s;
  if (options.fallback == nullptr) {
    auto memory = MemoryStore::Create({});
    if (!memory.ok()) return memory.status();
    options.fallback = *std::move(memory);
  }
  const auto log = std::make_shared<redis::FailureLog>(std::move(options.on_failure));
  options.on_failure = [log](const std::string& why) { log->Add(why); };
  return std::shared_ptr<RedisStore>(new RedisStore(std::move(options)));
}

RedisStore::RedisStore(RedisOptions options)
    : options_(std::move(options)),
      fallback_(options_.fallback),
      clock_shift_(fallback_->clock_shift()),
      board_(std::make_unique<redis::BoardView>(options_)),
      scripts_(std::make_unique<redis::Scripts>()),
      denied_(std::make_unique<redis::DenyCache>(
          *board_->board, absl::ToInt64Nanoseconds(options_.deny_cache_max))),
      breaker_(std::make_unique<redis::Breaker>(*board_->breaker, options_.breaker_failures,
                                                options_.breaker_open, options_.timeout)),
      client_(options_.topology == Topology::kCluster
                  ? std::shared_ptr<redis::Client>(std::make_shared<redis::Cluster>(options_))
                  : std::make_shared<redis::SingleServer>(options_)),
      leases_(options_.lease == absl::ZeroDuration()
                  ? nullptr
                  : std::make_unique<redis::ProcessLocal<leases::Table>>(
                        [] { return std::make_shared<leases::Table>(); })),
      desk_(leases_ == nullptr ? nullptr : std::make_unique<redis::ProcessLocal<LeaseDesk>>([this] {
        return std::make_shared<LeaseDesk>(this);
      })) {}

RedisStore::~RedisStore() {
  if (leases_ == nullptr) return;
  const auto wait = [this] {
    // Shorter than when a limiter is closed, which is done on purpose.
    GiveLeasesBackWithin(absl::Milliseconds(50));
    desk_->Get().Close();
  };
  if (options_.while_ending) {
    options_.while_ending(wait);
  } else {
    wait();
  }
}

absl::Status RedisStore::Accepts(const Limit& limit) const { return fallback_->Accepts(limit); }

BoundLimit RedisStore::Bind(const Limit& limit, std::string_view scope) const {
  const std::string prefix = redis::KeyPrefix(limit, scope);
  BoundLimit bound = fallback_->Bind(limit, prefix);
  if (options_.fallback_share < 1) {
    if (absl::StatusOr<Limit> share = ShareOf(limit, options_.fallback_share); share.ok()) {
      bound.share = std::make_shared<BoundLimit>(
          BoundLimit{*std::move(share), prefix, bound.tag, nullptr, bound.events});
    }
  }
  if (leases_ != nullptr) {
    std::string why;
    bound.leasing = leases::Leasing::Of(bound, absl::ToInt64Nanoseconds(options_.lease), &why);
    if (bound.leasing == nullptr && options_.on_strict) options_.on_strict(limit.ToString(), why);
  }
  return bound;
}

uint16_t RedisStore::SlotOf(const Charge& charge) const {
  if (options_.topology != Topology::kCluster) return 0;
  return redis::Cluster::SlotOf(redis::RedisKey(*charge.limit, charge.key));
}

Fingerprint RedisStore::KeyOf(const Charge& charge) const {
  return board_->hasher.Hash(charge.key, charge.limit->tag);
}

redis::Request RedisStore::RequestFor(
    Op op, absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment,
    absl::Span<const std::shared_ptr<const leases::Asking>> askings) const {
  // Both operations that charge what has been used are one of the scripts, with other bounds.
  static constexpr std::string_view kNames[] = {"hit",    "peek",    "refund", "release",
                                                "reset",  "charge",  "extend", "forget",
                                                "charge", "reserve", "settle", "raise"};
  redis::Request request;
  request.op = kNames[static_cast<size_t>(op)];
  request.plan = plan;
  request.owes = op == Op::kCharge;
  request.askings = askings;
  request.keeps_leases = leases_ != nullptr;
  request.server_time = !options_.client_clock;
  request.now_ns = moment.now_ns;
  request.confirmed = !options_.client_clock || moment.confirmed;
  request.margin_ms = absl::ToInt64Milliseconds(options_.ttl_margin) +
                      (options_.client_clock ? kClockToleranceNs / 1'000'000 : 0);
  request.admitted_ns = std::max<int64_t>(admitted_ns, 0);
  request.late = moment.late;
  const auto is_quota = [](const Charge& charge) { return charge.limit->limit.quota() != nullptr; };
  if (std::any_of(plan.begin(), plan.end(), is_quota)) request.host_ns = WallNowNs();
  return request;
}

RedisStore::Asked RedisStore::Ask(Op op, absl::Span<const Charge> plan,
                                  const Moment& moment) const {
  Asked asked;
  if (op == Op::kHit && leases_ != nullptr) asked.askings = AskForLeases(plan);
  asked.at_ns = options_.client_clock ? moment.now_ns : HostNowNs();
  asked.renewals = renewals_.load(std::memory_order_relaxed);
  asked.foreign_replies = foreign_replies_.load(std::memory_order_relaxed);
  if (!denied_->on()) return asked;
  const size_t n = std::min(plan.size(), kMostDenied);
  for (size_t i = 0; i < n; ++i) asked.versions[i] = denied_->Version(KeyOf(plan[i]));
  return asked;
}

void RedisStore::Remember(absl::Span<const Charge> plan, const Asked& asked,
                          const redis::Answer& answer, int64_t retry_after_ns) {
  if (plan.size() > kMostDenied) return;
  CellState states[kMostDenied];
  for (size_t i = 0; i < plan.size(); ++i) {
    const auto state = redis::Scripts::Steppable(plan[i], answer, i);
    if (!state.has_value()) return;
    states[i] = *state;
    retry_after_ns = std::min(retry_after_ns, redis::SlotLeft(plan[i], answer, i));
  }
  const int64_t heard_ns = options_.client_clock ? asked.at_ns : HostNowNs();
  for (size_t i = 0; i < plan.size(); ++i) {
    denied_->Put(KeyOf(plan[i]), asked.versions[i], states[i], retry_after_ns,
                 {asked.at_ns, heard_ns, answer.now_ns});
  }
}

__attribute__((always_inline)) inline bool RedisStore::Recall(const Charge& charge, int64_t now_ns,
                                                              Decide* decide,
                                                              Decision* decision) const {
  const auto known = denied_->Find(KeyOf(charge), now_ns);
  if (!known.has_value()) return false;
  new (decision) Decision(decide(charge, known->state, known->now_ns));
  decision->at_ns = known->now_ns;
  return !decision->behind;
}

// Separate, so that a hit while the breaker is open saves no registers for it.
__attribute__((noinline)) bool RedisStore::Denied(absl::Span<const Charge> plan, int64_t now_ns,
                                                  Decision* decision, Outcomes* outcomes) {
  if (outcomes != nullptr) outcomes->clear();
  if (plan.size() == 1) {
    if (!Recall(plan[0], now_ns, redis::Scripts::StepLater, decision)) return false;
    if (plan[0].limit->limit.shadow()) return false;
    if (outcomes != nullptr) outcomes->push_back(*decision);
  } else {
    PlanVerdict verdict;
    for (size_t i = 0; i < plan.size(); ++i) {
      if (!Recall(plan[i], now_ns, redis::Scripts::StepLater, decision)) return false;
      verdict.Add(*decision, static_cast<uint32_t>(i));
      if (outcomes != nullptr) outcomes->push_back(*decision);
    }
    *decision = verdict.get();
    for (size_t i = 0; outcomes != nullptr && !decision->allowed && i < plan.size(); ++i) {
      Decision& outcome = (*outcomes)[i];  // of a limit that would pass: it is not charged
      if (outcome.allowed) Recall(plan[i], now_ns, redis::Scripts::PeekLater, &outcome);
    }
  }
  if (decision->allowed) return false;
  denied_locally_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool RedisStore::HitWithoutWaiting(absl::Span<const Charge> plan, const Moment& moment,
                                   Decision* decision, Outcomes* outcomes) {
  return (leases_ != nullptr && DecideByLease(Op::kHit, plan, decision, outcomes)) ||
         HitUnleased(plan, moment, decision, outcomes);
}

bool RedisStore::HitUnleased(absl::Span<const Charge> plan, const Moment& moment,
                             Decision* decision, Outcomes* outcomes) {
  if (!breaker_->IsQuiet()) [[unlikely]]
    return DecideByBreaker(Op::kHit, plan, moment, decision, outcomes);
  if (!denied_->on()) return false;
  return Denied(plan, options_.client_clock ? moment.now_ns : HostNowNs(), decision, outcomes);
}

// Finds out whether Redis works again, without a caller's request.
class RedisStore::Probe final : public redis::Caller {
 public:
  Probe(Instant deadline, const std::shared_ptr<RedisStore>& store, const Charge& charge)
      : Caller(deadline),
        store_(store),
        renewals_(store->renewals_.load(std::memory_order_relaxed)),
        number_(store->probes_.fetch_add(1, std::memory_order_relaxed) + 1),
        command_(redis::Scripts::ProbeCommand(charge, number_)) {}
  std::string Request() override { return command_; }
  void Done(absl::StatusOr<redis::Reply> reply) override {
    // No caller waits for a probe, so the store may be gone.
    const std::shared_ptr<RedisStore> store = store_.lock();
    if (store == nullptr) return;
    absl::Status status = FailureIn(reply);
    if (status.ok()) status = redis::Scripts::ParseProbe(**reply, number_);
    // The error of a probe is not caused by a caller's key or script.
    if (absl::IsInternal(status)) status = absl::UnknownError(status.message());
    if (absl::IsDeadlineExceeded(status)) {
      // If one reply was lost, each request waits for the reply to the next: the server works, but
      // only a new connection shows it.
      store->Renew(renewals_, "a probe had no answer in time");
    } else {
      store->RenewAfter(status, renewals_);
    }
    store->Record(status);
  }

 private:
  const std::weak_ptr<RedisStore> store_;
  const uint64_t renewals_;
  const int64_t number_;
  const std::string command_;
};

bool RedisStore::Before(Op op, absl::Span<const Charge> plan, const Moment& moment,
                        Decision* decision, Outcomes* outcomes) {
  if (op != Op::kHit && DecideByLease(op, plan, decision, outcomes)) return true;
  if (!IsDecision(op)) {
    for (const Charge& charge : plan) denied_->Forget(KeyOf(charge));
    const bool is_reset = op == Op::kReset || op == Op::kForget;
    if (is_reset && options_.on_error == OnError::kFallback) {
      const Moment local = FallbackMoment(moment, HostNowNs());
      for (const Charge& charge : plan) {
        op == Op::kReset ? fallback_->Reset(InFallback(charge), local)
                         : fallback_->Forget(InFallback(charge), local);
      }
    }
  }
  return !breaker_->IsQuiet() && DecideByBreaker(op, plan, moment, decision, outcomes);
}

bool RedisStore::DecideByBreaker(Op op, absl::Span<const Charge> plan, const Moment& moment,
                                 Decision* decision, Outcomes* outcomes) {
  if (breaker_->HasChanged()) ReportChange("another caller noticed it");
  const int64_t now_ns = HostNowNs();
  if (breaker_->ProbeIsDue(now_ns) || ProbeIsEarly(now_ns)) {
    client_->Send(SlotOf(plan[0]), std::make_unique<Probe>(MonotonicIn(options_.timeout),
                                                           shared_from_this(), plan[0]));
    client_->Kick();
  }
  if (breaker_->IsClosed()) return false;
  new (decision)
      Decision(IsDecision(op) ? Degraded(op, plan, moment, now_ns, outcomes) : Decision());
  return true;
}

absl::Status RedisStore::FailureIn(const absl::StatusOr<redis::Reply>& reply) {
  if (!reply.ok()) return reply.status();
  if ((*reply)->type != REDIS_REPLY_ERROR) return absl::OkStatus();
  return redis::ErrorStatus({(*reply)->str, (*reply)->len});
}

void RedisStore::RenewAfter(const absl::Status& failure, uint64_t renewals) {
  if (!redis::NeedsNewConnection(failure)) return;
  if (absl::IsDataLoss(failure)) foreign_replies_.fetch_add(1, std::memory_order_release);
  Renew(renewals, std::string(failure.message()));
}

void RedisStore::Renew(uint64_t renewals, const std::string& why) {
  if (renewals_.compare_exchange_strong(renewals, renewals + 1)) client_->Renew(why);
}

Decision RedisStore::Judge(Op op, absl::Span<const Charge> plan, const Moment& moment,
                           const Asked& asked, const absl::StatusOr<redis::Answer>& answer,
                           Outcomes* outcomes) {
  absl::Status failure = answer.status();
  RenewAfter(failure, asked.renewals);
  if (!IsDecision(op)) {
    // Refusals of calls that were under way with this one are out of date now.
    for (const Charge& charge : plan) denied_->Forget(KeyOf(charge));
    Record(failure);
    Decision done;
    done.at_ns = failure.ok() ? answer->now_ns : kNoInstant;
    return done;
  }
  if (failure.ok() && asked.foreign_replies != foreign_replies_.load(std::memory_order_acquire))
      [[unlikely]] {
    failure = absl::AbortedError("the reply followed one that belongs to another command");
  }
  if (!asked.askings.empty()) {
    const absl::Status heard = HearLeases(
        asked.askings, plan, failure.ok() ? answer : absl::StatusOr<redis::Answer>(failure));
    if (failure.ok()) failure = heard;
  }
  if (failure.ok()) {
    PlanVerdict verdict;
    if (outcomes != nullptr) outcomes->clear();
    for (size_t i = 0; i < plan.size(); ++i) {
      Decision each = IsOfUsed(op) ? redis::Scripts::DecideUsed(op, plan[i], *answer, i)
                                   : redis::Scripts::Decide(plan[i], *answer, i, op == Op::kPeek);
      if (!asked.askings.empty() && asked.askings[i] != nullptr && !each.allowed) {
        // Until then calls are refused here.
        const int64_t held_ns = leases_->Get().HeldFor(plan[i], KeyOf(plan[i]));
        each.retry_after_ns = std::max(each.retry_after_ns, held_ns);
      }
      verdict.Add(each, static_cast<uint32_t>(i));
      if (outcomes == nullptr) continue;
      // Limits that would have let the call pass were not charged if another refused.
      const bool uncharged = each.allowed && !answer->allowed;
      if (uncharged) each = redis::Scripts::Decide(plan[i], *answer, i, /*peek=*/true);
      each.at_ns = answer->now_ns;
      outcomes->push_back(each);
    }
    Decision d = verdict.get();
    // The states in the reply are from before the charge.
    const bool changed = d.allowed || d.behind;
    // A second reading is of use only with the caller's clock.
    d.behind = d.behind && options_.client_clock && !moment.confirmed;
    d.at_ns = answer->now_ns;
    // The script has refused, although a window that is moved back may have room.
    if (d.behind && d.allowed && op == Op::kHit) Refuse(&d, std::max<int64_t>(d.reset_after_ns, 1));
    const bool differs = !d.behind && d.allowed != answer->allowed;
    if (differs && KeepsCount(plan)) {
      // The script converted another number's state in doubles and rounded it up: its charge
      // stands.
      d.allowed = answer->allowed;
      d.retry_after_ns = d.allowed ? 0 : std::max<int64_t>(d.retry_after_ns, 1);
    }
    if (d.behind || d.allowed == answer->allowed) {
      if (op != Op::kPeek && changed && denied_->on()) {
        for (const Charge& charge : plan) denied_->Outdate(KeyOf(charge));
      } else if (op == Op::kHit && denied_->on()) {
        Remember(plan, asked, *answer, d.retry_after_ns);
      }
      Record(absl::OkStatus());
      return d;
    }
    failure = absl::InternalError("the script and the step decided differently");
  }
  Record(failure);
  return Degraded(op, plan, moment, HostNowNs(), outcomes);
}

Decision RedisStore::Run(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                         const Moment& moment, Outcomes* outcomes) {
  if (Decision early; Before(op, plan, moment, &early, outcomes)) return early;
  const Asked asked = Ask(op, plan, moment);
  const Instant deadline = MonotonicIn(options_.timeout);
  const redis::Request request = RequestFor(op, plan, admitted_ns, moment, asked.askings);
  const uint16_t slot = SlotOf(plan[0]);
  const redis::Form form = redis::Scripts::FormOf(request);
  const auto call = [&](bool by_text) {
    return client_->Call(slot, scripts_->Command(request, form, by_text), deadline);
  };
  auto reply = call(/*by_text=*/false);
  absl::Status failure = FailureIn(reply);
  if (absl::IsNotFound(failure)) {
    reply = call(/*by_text=*/true);
    failure = FailureIn(reply);
  }
  if (!failure.ok()) return Judge(op, plan, moment, asked, failure, outcomes);
  const auto answer = redis::Scripts::Parse(**reply, request, form);
  return Judge(op, plan, moment, asked, answer, outcomes);
}

Decision RedisStore::Hit(const Charge& charge, const Moment& moment) {
  return Run(Op::kHit, {&charge, 1}, kNoInstant, moment, nullptr);
}
Decision RedisStore::Peek(const Charge& charge, const Moment& moment) {
  return Run(Op::kPeek, {&charge, 1}, kNoInstant, moment, nullptr);
}
Decision RedisStore::HitAll(absl::Span<const Charge> plan, const Moment& moment,
                            absl::FunctionRef<int64_t()>, Outcomes* outcomes) {
  return RunAll(Op::kHit, plan, kNoInstant, moment, outcomes);
}
Decision RedisStore::RunAll(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                            const Moment& moment, Outcomes* outcomes) {
  return Spans(plan) ? RunSpread(op, plan, admitted_ns, moment, outcomes)
                     : Run(op, plan, admitted_ns, moment, outcomes);
}
Decision RedisStore::ChargeUsed(Op op, const Charge& charge, const Moment& moment) {
  return ChargeAllUsed(op, {&charge, 1}, moment);
}
Decision RedisStore::ChargeAllUsed(Op op, absl::Span<const Charge> plan, const Moment& moment) {
  return RunAll(op, plan, kNoInstant, moment, nullptr);
}
Decision RedisStore::PeekAll(absl::Span<const Charge> plan, const Moment& moment,
                             Outcomes* outcomes) {
  return RunAll(Op::kPeek, plan, kNoInstant, moment, outcomes);
}
int64_t RedisStore::Refund(const Charge& charge, const Moment& moment) {
  Charge rest = charge;
  rest.cost -= RefundFallback(charge, moment);
  if (rest.cost > 0) GiveBack(Op::kRefund, {&rest, 1}, kNoInstant, moment);
  return charge.cost;
}
void RedisStore::Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) {
  GiveBack(Op::kRelease, {&charge, 1}, admitted_ns, moment);
}
void RedisStore::GiveBack(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                          const Moment& moment) {
  if (!plan.empty()) (void)RunAll(op, plan, admitted_ns, moment, nullptr);
}
int64_t RedisStore::Extend(absl::Span<const Charge> plan, int64_t admitted_ns,
                           const Moment& moment) {
  const Decision done = RunAll(Op::kExtend, plan, admitted_ns, moment, nullptr);
  return done.at_ns > 0 ? done.at_ns : kNoInstant;
}
void RedisStore::Reset(const Charge& charge, const Moment& moment) {
  (void)Run(Op::kReset, {&charge, 1}, kNoInstant, moment, nullptr);
}
void RedisStore::Forget(const Charge& charge, const Moment& moment) {
  (void)Run(Op::kForget, {&charge, 1}, kNoInstant, moment, nullptr);
}

absl::Status RedisStore::Ping() {
  const auto reply =
      client_->Call(0, redis::Format({"PING"}),
                    MonotonicIn(std::max(options_.timeout, options_.connect_timeout)));
  if (!reply.ok()) return reply.status();
  if ((*reply)->type == REDIS_REPLY_ERROR) return absl::UnavailableError((*reply)->str);
  return absl::OkStatus();
}

absl::StatusOr<RedisValue> RedisStore::Command(const std::vector<std::string>& words,
                                               absl::Duration timeout) {
  const auto reply = client_->Call(0, redis::Format(words), MonotonicIn(timeout));
  if (!reply.ok()) return reply.status();
  if ((*reply)->type == REDIS_REPLY_ERROR) {
    return absl::UnavailableError(absl::string_view((*reply)->str, (*reply)->len));
  }
  return ValueOf(**reply);
}

std::string RedisStore::name() const {
  const auto address = [](const std::string& host, int port) {
    const bool is_ipv6 = host.find(':') != std::string::npos;
    return absl::StrCat(is_ipv6 ? "[" : "", host, is_ipv6 ? "]:" : ":", port);
  };
  std::string uri = options_.tls.has_value() ? "rediss" : "redis";
  if (!options_.unix_path.empty()) {
    absl::StrAppend(&uri, "+unix://", options_.unix_path, "?db=", options_.database);
    return uri;
  }
  if (options_.topology == Topology::kStandalone) {
    return absl::StrCat(uri, "://", address(options_.host, options_.port), "/", options_.database);
  }
  const bool is_cluster = options_.topology == Topology::kCluster;
  absl::StrAppend(&uri, is_cluster ? "+cluster://" : "+sentinel://");
  for (size_t i = 0; i < options_.nodes.size(); ++i) {
    absl::StrAppend(&uri, i == 0 ? "" : ",",
                    address(options_.nodes[i].host, options_.nodes[i].port));
  }
  return is_cluster ? uri : absl::StrCat(uri, "/", options_.service, "/", options_.database);
}

void RedisStore::ForgetRefusals() { denied_->ForgetAll(); }

void RedisStore::Clear() {
  ForgetRefusals();
  fallback_->Clear();
}

StoreStats RedisStore::stats() const {
  StoreStats stats = fallback_->stats();
  stats.degraded = degraded_.load(std::memory_order_relaxed);
  stats.errors = errors_.load(std::memory_order_relaxed);
  stats.script_errors = script_errors_.load(std::memory_order_relaxed);
  stats.denied_locally = denied_locally_.load(std::memory_order_relaxed);
  if (leases_ != nullptr) leases_->Get().AddTo(&stats);
  stats.breaker_opened = breaker_->opened();
  stats.breaker_open = !breaker_->IsClosed();
  return stats;
}

}  // namespace tidegate
