#include "tidegate/redis_store.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "redis/connection.h"
#include "redis/scripts.h"
#include "tidegate/clock.h"
#include "tidegate/memory_store.h"

namespace tidegate {
namespace {

constexpr int64_t kBreakerWindowNs = 10'000'000'000;

absl::Status Check(const RedisOptions& o) {
  if (o.port < 1 || o.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("the port of Redis is ", o.port, "; accepted is 1 to 65535"));
  }
  if (o.database < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the database of Redis is ", o.database, "; accepted is 0 and more"));
  }
  if (!(o.fallback_share > 0 && o.fallback_share <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the fallback_share is ", o.fallback_share, "; accepted is above 0, up to 1"));
  }
  if (o.timeout <= absl::ZeroDuration() || o.connect_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("a timeout of 0 or less was given; accepted is more");
  }
  if (o.ttl_margin < absl::ZeroDuration() || o.ttl_margin > absl::Hours(24 * 366)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ttl_margin is ", absl::ToDoubleSeconds(o.ttl_margin), " s; accepted is 0 to a year"));
  }
  return absl::OkStatus();
}

// An error that our own script raised, or one that tells that it is not ours.
bool IsScriptError(const std::string& message) {
  return absl::StrContains(message, "TIDEGATE") || absl::StrContains(message, "user_script") ||
         absl::StartsWith(message, "ERR Error running script") ||
         absl::StartsWith(message, "ERR Error compiling script");
}

}  // namespace

absl::StatusOr<std::shared_ptr<RedisStore>> RedisStore::Create(RedisOptions options) {
  if (absl::Status s = Check(options); !s.ok()) return s;
  auto memory = MemoryStore::Create({.capacity = options.fallback_capacity});
  if (!memory.ok()) return memory.status();
  std::shared_ptr<RedisStore> store(new RedisStore(std::move(options)));
  store->fallback_ = *std::move(memory);
  return store;
}

RedisStore::RedisStore(RedisOptions options)
    : options_(std::move(options)),
      scripts_(std::make_unique<redis::Scripts>()),
      connection_(std::make_unique<redis::Connection>(options_)) {}

RedisStore::~RedisStore() = default;

BoundLimit RedisStore::Bind(const Limit& limit, std::string_view scope) const {
  const std::string prefix = redis::KeyPrefix(limit, scope);
  // The limit of the fallback is this one or, at a share, one bound for each call.
  return {limit, prefix, fallback_->Bind(limit, prefix).tag};
}

BoundLimit RedisStore::Local(const BoundLimit& limit) const {
  if (options_.fallback_share >= 1) return limit;
  const Limit& whole = limit.limit;
  const auto share = [&](int64_t n) {
    return std::max<int64_t>(
        1, static_cast<int64_t>(options_.fallback_share * static_cast<double>(n)));
  };
  LimitSpec spec;
  spec.count = share(whole.count());
  spec.period_ns = whole.period_ns();
  if (IsBucket(whole.algorithm())) spec.burst = share(whole.burst());
  spec.algorithm = whole.algorithm();
  spec.calendar = whole.calendar();
  spec.calendar_units = whole.calendar_units();
  spec.name = whole.rule();
  absl::StatusOr<Limit> part = Limit::Create(std::move(spec));
  return {part.ok() ? *std::move(part) : whole, limit.scope, limit.tag};
}

bool RedisStore::Admit() {
  int64_t until = open_until_ns_.load(std::memory_order_acquire);
  if (until == 0) return true;
  const int64_t now = SystemClock::Get().Now();
  if (now < until) return false;
  // One caller probes; the others go on without Redis until it has an answer.
  return open_until_ns_.compare_exchange_strong(
      until, now + absl::ToInt64Nanoseconds(2 * options_.timeout), std::memory_order_acq_rel);
}

void RedisStore::Record(const absl::Status& status) {
  if (status.ok()) {
    if (failures_.load(std::memory_order_relaxed) != 0) {
      failures_.store(0, std::memory_order_relaxed);
      if (open_until_ns_.exchange(0, std::memory_order_acq_rel) != 0) {
        std::fprintf(stderr, "tidegate: Redis answers again\n");
      }
    }
    return;
  }
  if (absl::IsInternal(status)) {
    // Told at the first, and ever more rarely after that.
    const int64_t n = script_errors_.fetch_add(1, std::memory_order_relaxed) + 1;
    if ((n & (n - 1)) == 0) {
      std::fprintf(stderr, "tidegate: a script failed, which is a mistake in tidegate: %s\n",
                   std::string(status.message()).c_str());
    }
  } else {
    errors_.fetch_add(1, std::memory_order_relaxed);
  }
  const int64_t now = SystemClock::Get().Now();
  const int failures = failures_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (failures == 1) first_failure_ns_.store(now, std::memory_order_relaxed);
  if (failures < options_.breaker_failures) return;
  if (failures == options_.breaker_failures &&
      now - first_failure_ns_.load(std::memory_order_relaxed) > kBreakerWindowNs) {
    failures_.store(1, std::memory_order_relaxed);
    first_failure_ns_.store(now, std::memory_order_relaxed);
    return;
  }
  std::minstd_rand random(static_cast<uint32_t>(now));
  const absl::Duration pause =
      options_.breaker_open * std::uniform_real_distribution<double>(0.9, 1.1)(random);
  if (open_until_ns_.exchange(now + absl::ToInt64Nanoseconds(pause), std::memory_order_acq_rel) ==
      0) {
    std::fprintf(stderr, "tidegate: Redis fails (%s); deciding without it for %.0f s\n",
                 std::string(status.message()).c_str(), absl::ToDoubleSeconds(pause));
  }
}

absl::StatusOr<redis::Answer> RedisStore::Run(Op op, absl::Span<const Charge> plan,
                                              int64_t admitted_ns, const Moment& moment) {
  static constexpr std::string_view kNames[] = {"hit", "peek", "refund", "release"};
  redis::Request request;
  request.op = kNames[static_cast<size_t>(op)];
  request.plan = plan;
  request.server_time = !options_.client_clock;
  request.now_ns = moment.now_ns;
  request.confirmed = !options_.client_clock || moment.confirmed;
  request.margin_ms = absl::ToInt64Milliseconds(options_.ttl_margin) +
                      (options_.client_clock ? kClockToleranceNs / 1'000'000 : 0);
  request.admitted_ns = admitted_ns;
  const absl::Time deadline = absl::Now() + options_.timeout;
  absl::StatusOr<redis::Reply> reply = connection_->Call(scripts_->EvalSha(request), deadline);
  if (reply.ok() && (*reply)->type == REDIS_REPLY_ERROR &&
      absl::StartsWith((*reply)->str, "NOSCRIPT")) {
    reply = connection_->Call(scripts_->Eval(request), deadline);
  }
  if (!reply.ok()) return reply.status();
  if ((*reply)->type == REDIS_REPLY_ERROR) {
    const std::string message((*reply)->str, (*reply)->len);
    // A replica: after a failover the name may lead to another server.
    if (absl::StartsWith(message, "READONLY")) connection_->Renew(message);
    if (IsScriptError(message)) return absl::InternalError(message);
    return absl::UnavailableError(message);
  }
  return redis::Scripts::Parse(**reply, plan);
}

Decision RedisStore::Decide(Op op, absl::Span<const Charge> plan, const Moment& moment) {
  if (!Admit()) return Degraded(op, plan);
  absl::StatusOr<redis::Answer> answer = Run(op, plan, 0, moment);
  if (answer.ok()) {
    PlanVerdict verdict;
    for (size_t i = 0; i < plan.size(); ++i) {
      verdict.Add(redis::Scripts::Decide(plan[i], *answer, i, op == Op::kPeek),
                  static_cast<uint32_t>(i));
    }
    Decision d = verdict.get();
    // Only with the caller's clock is a second reading of use.
    d.behind = d.behind && options_.client_clock && !moment.confirmed;
    d.at_ns = answer->now_ns;
    if (d.behind || d.allowed == answer->allowed) {
      Record(absl::OkStatus());
      return d;
    }
    answer = absl::InternalError("the script decided otherwise than the step");
  }
  Record(answer.status());
  return Degraded(op, plan);
}

Decision RedisStore::Fallback(Op op, absl::Span<const Charge> plan, const Moment& moment) {
  if (options_.fallback_share >= 1) return AskFallback(op, plan, moment);
  std::vector<BoundLimit> limits;
  limits.reserve(plan.size());
  for (const Charge& charge : plan) limits.push_back(Local(*charge.limit));
  std::vector<Charge> local(plan.begin(), plan.end());
  for (size_t i = 0; i < local.size(); ++i) local[i].limit = &limits[i];
  Decision d = AskFallback(op, local, moment);
  // The limits at their share end with this call, so the decision is told as one
  // on the caller's limit, with the room that the share leaves.
  const Limit& whole = plan[d.rule].limit->limit;
  const int64_t remaining = d.remaining();
  d.limit = &whole;
  if (IsBucket(whole.algorithm())) {
    const Interval used = CostInterval(whole, whole.burst() - remaining);
    d.used_ns = used.ns;
    d.used_fraction = used.fraction;
  } else {
    d.used_units = whole.count() - remaining;
  }
  return d;
}

Decision RedisStore::AskFallback(Op op, absl::Span<const Charge> plan, const Moment& moment) {
  if (op == Op::kPeek) return fallback_->PeekAll(plan, moment);
  return plan.size() == 1
             ? fallback_->Hit(plan[0], moment)
             : fallback_->HitAll(plan, moment, [] { return SystemClock::Get().Now(); });
}

Decision RedisStore::Degraded(Op op, absl::Span<const Charge> plan) {
  degraded_.fetch_add(1, std::memory_order_relaxed);
  const Moment moment{SystemClock::Get().Now(), /*confirmed=*/true};
  Decision d;
  if (options_.on_error == OnError::kFallback) {
    d = Fallback(op, plan, moment);
  } else {
    d.limit = &plan[0].limit->limit;
    d.allowed = options_.on_error == OnError::kOpen;
    if (!d.allowed) {
      // When Redis may be asked again.
      const int64_t until = open_until_ns_.load(std::memory_order_acquire);
      d.retry_after_ns =
          std::max(until - moment.now_ns, absl::ToInt64Nanoseconds(options_.timeout));
      d.used_ns = d.limit->depth_ns();
      d.used_fraction = d.limit->depth_fraction();
      d.used_units = d.limit->count();
    }
  }
  d.behind = false;
  d.degraded = true;
  d.at_ns = moment.now_ns;
  return d;
}

void RedisStore::Amend(Op op, const Charge& charge, int64_t admitted_ns, const Moment& moment) {
  if (options_.on_error == OnError::kFallback) {
    const Moment now{SystemClock::Get().Now()};
    const BoundLimit limit = Local(*charge.limit);
    const Charge local{charge.key, &limit, charge.cost};
    if (degraded_.load(std::memory_order_relaxed) != 0) {
      if (op == Op::kRefund) fallback_->Refund(local, now);
      if (op == Op::kRelease) fallback_->Release(local, admitted_ns, now);
    }
  }
  if (!Admit()) return;
  const auto answer = Run(op, {&charge, 1}, admitted_ns, moment);
  Record(answer.status());
}

Decision RedisStore::Hit(const Charge& charge, const Moment& moment) {
  return Decide(Op::kHit, {&charge, 1}, moment);
}
Decision RedisStore::Peek(const Charge& charge, const Moment& moment) {
  return Decide(Op::kPeek, {&charge, 1}, moment);
}
Decision RedisStore::HitAll(absl::Span<const Charge> plan, const Moment& moment,
                            absl::FunctionRef<int64_t()>) {
  return Decide(Op::kHit, plan, moment);
}
Decision RedisStore::PeekAll(absl::Span<const Charge> plan, const Moment& moment) {
  return Decide(Op::kPeek, plan, moment);
}
void RedisStore::Refund(const Charge& charge, const Moment& moment) {
  Amend(Op::kRefund, charge, 0, moment);
}
void RedisStore::Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) {
  Amend(Op::kRelease, charge, admitted_ns, moment);
}

void RedisStore::Reset(const Charge& charge, const Moment&) {
  if (degraded_.load(std::memory_order_relaxed) != 0) {
    const BoundLimit limit = Local(*charge.limit);
    fallback_->Reset({charge.key, &limit, charge.cost}, {SystemClock::Get().Now()});
  }
  if (!Admit()) return;
  const auto reply =
      connection_->Call(redis::Format({"DEL", redis::RedisKey(*charge.limit, charge.key)}),
                        absl::Now() + options_.timeout);
  if (reply.ok() && (*reply)->type == REDIS_REPLY_ERROR) {
    Record(absl::UnavailableError((*reply)->str));
  } else {
    Record(reply.status());
  }
}

absl::Status RedisStore::Ping() {
  const auto reply = connection_->Call(
      redis::Format({"PING"}), absl::Now() + std::max(options_.timeout, options_.connect_timeout));
  if (!reply.ok()) return reply.status();
  if ((*reply)->type == REDIS_REPLY_ERROR) return absl::UnavailableError((*reply)->str);
  return absl::OkStatus();
}

StoreStats RedisStore::stats() const {
  StoreStats stats;
  stats.degraded = degraded_.load(std::memory_order_relaxed);
  stats.errors = errors_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace tidegate
