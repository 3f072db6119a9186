// What a RedisStore does when Redis fails: it counts the failure, and decides without Redis.
#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "redis/health/board.h"
#include "redis/health/breaker.h"
#include "redis/transport/client.h"
#include "tidegate/clock.h"
#include "tidegate/redis_store.h"

namespace tidegate {
namespace {

// How long a connection may take to come back once its server has (connection.cc).
constexpr int64_t kReconnectNs = 2'000'000'000;
// How often the connections are looked at for signs of life while the breaker is open.
constexpr int64_t kLookNs = 100'000'000;
// The longest pause after a probe that a sign of life brought forward, and that failed: so a server
// that is well again is asked within this time, however long it was not.
constexpr int64_t kLongestLookNs = 1'000'000'000;

}  // namespace

int64_t RedisStore::HostNowNs() const { return SystemClock::Get().Now() + clock_shift_.base_ns; }

int64_t RedisStore::WallNowNs() const { return SystemClock::Get().Now() + clock_shift_.ns(); }

void RedisStore::ReportChange(absl::string_view failure) {
  if (const std::optional<bool> open = breaker_->Notice()) [[unlikely]]
    Report(*open, failure);
}

void RedisStore::Report(bool open, absl::string_view failure) {
  if (open) {
    (void)client_->ShowsLife();  // earlier signs mean nothing now
    look_pause_ns_.store(kLookNs, std::memory_order_relaxed);
  } else {
    closed_ns_.store(HostNowNs(), std::memory_order_relaxed);
  }
  if (!options_.on_breaker) return;
  const std::string why =
      open ? absl::StrCat("Redis fails (", failure, "); deciding without it for ",
                          absl::ToDoubleSeconds(options_.breaker_open), " s")
           : "Redis answers again";
  options_.on_breaker(open, why);
}

bool RedisStore::ProbeIsEarly(int64_t now_ns) {
  if (breaker_->IsClosed()) return false;
  int64_t next = next_look_ns_.load(std::memory_order_relaxed);
  const int64_t most = std::min(breaker_->open_ns(), kLongestLookNs);
  // An instant further ahead is from before a step of the clock.
  if (now_ns < next && next - now_ns <= most) return false;
  if (!next_look_ns_.compare_exchange_strong(next, now_ns + std::min(kLookNs, most))) return false;
  if (!client_->ShowsLife() || !breaker_->ProbeEarly(now_ns)) return false;
  // A server that connects and then fails is not asked ever more often.
  const int64_t pause = look_pause_ns_.load(std::memory_order_relaxed);
  look_pause_ns_.store(std::min(2 * pause, most), std::memory_order_relaxed);
  next_look_ns_.store(now_ns + std::min(pause, most), std::memory_order_relaxed);
  return true;
}

void RedisStore::Record(const absl::Status& status) {
  // A call that was never sent says nothing about the server.
  if (absl::IsCancelled(status)) return;
  if (absl::IsResourceExhausted(status)) {
    options_.on_failure(std::string(status.message()));
    return;
  }
  const int64_t now = HostNowNs();
  if (status.ok()) {
    breaker_->Succeeded(now);
    ReportChange("");
    return;
  }
  if (absl::IsInternal(status)) {
    // Not a failure of the server: one key with a foreign value must not open the breaker for all.
    const int64_t n = script_errors_.fetch_add(1, std::memory_order_relaxed) + 1;
    if ((n & (n - 1)) == 0 && options_.on_script_error) {
      options_.on_script_error(absl::StrCat("a rate limit script failed on Redis (script error ", n,
                                            "): ", status.message()));
    }
    return;
  }
  errors_.fetch_add(1, std::memory_order_relaxed);
  options_.on_failure(std::string(status.message()));
  // Another process of the host may have closed the breaker while this one has yet to connect. Its
  // failures until then say nothing about the server, and must not open the breaker again for all.
  const bool waits_for_connection = board_->own == nullptr && absl::IsUnavailable(status) &&
                                    now - closed_ns_.load(std::memory_order_relaxed) < kReconnectNs;
  if (!waits_for_connection) breaker_->Failed(now);
  ReportChange(status.message());
}

Moment RedisStore::FallbackMoment(const Moment& moment, int64_t host_ns) const {
  const int64_t correction_ns = clock_shift_.correction_ns->load(std::memory_order_relaxed);
  return {options_.client_clock ? moment.now_ns : host_ns + correction_ns, /*confirmed=*/true,
          moment.late};
}

void RedisStore::Refuse(Decision* d, int64_t retry_after_ns) {
  d->allowed = false;
  d->retry_after_ns = retry_after_ns;
  d->delay_ns = 0;
  d->used_ns = d->limit->depth_ns();
  d->used_fraction = d->limit->depth_fraction();
  d->used_units = d->limit->count();
}

Charge RedisStore::InFallback(Charge charge) {
  if (charge.limit->share != nullptr) charge.limit = charge.limit->share.get();
  return charge;
}

int64_t RedisStore::RefundFallback(const Charge& charge, const Moment& moment) {
  if (options_.on_error != OnError::kFallback) return 0;
  return fallback_->Refund(InFallback(charge), FallbackMoment(moment, HostNowNs()));
}

void RedisStore::GiveBackInFallback(const Charge& whole, int64_t admitted_ns,
                                    const Moment& moment) {
  if (options_.on_error != OnError::kFallback) return;
  const Charge charge = InFallback(whole);
  const Moment local = FallbackMoment(moment, HostNowNs());
  if (IsLog(charge.limit->limit.algorithm())) {
    fallback_->Release(charge, admitted_ns, local);
  } else {
    fallback_->Refund(charge, local);
  }
}

int64_t RedisStore::ExtendInFallback(const Charge& whole, int64_t admitted_ns,
                                     const Moment& moment) {
  const Charge charge = InFallback(whole);
  return fallback_->Extend({&charge, 1}, admitted_ns, FallbackMoment(moment, HostNowNs()));
}

Decision RedisStore::PeekFallback(const Charge& charge, const Moment& moment) {
  return fallback_->Peek(InFallback(charge), FallbackMoment(moment, HostNowNs()));
}

Decision RedisStore::DecideInFallback(Op op, absl::Span<const Charge> plan, const Moment& moment,
                                      Outcomes* outcomes) {
  if (op == Op::kPeek) return fallback_->PeekAll(plan, moment, outcomes);
  if (IsOfUsed(op)) return fallback_->ChargeAllUsed(op, plan, moment);
  if (plan.size() == 1 && outcomes == nullptr) return fallback_->Hit(plan[0], moment);
  return fallback_->HitAll(
      plan, moment, [&] { return FallbackMoment(moment, HostNowNs()).now_ns; }, outcomes);
}

Decision RedisStore::FromPolicy(const Charge& charge, int64_t host_ns) const {
  Decision d;
  d.limit = &charge.limit->limit;
  d.allowed = options_.on_error == OnError::kOpen;
  if (d.limit->capacity() == 0) {
    // A limit of 0 refuses every call for ever, whatever the policy is.
    Refuse(&d, Decision::kNever);
    return d;
  }
  if (!d.allowed) {
    // Retry when Redis may be asked again.
    Refuse(&d, std::max(breaker_->OpenFor(host_ns), absl::ToInt64Nanoseconds(options_.timeout)));
  }
  return d;
}

Decision RedisStore::FromPolicies(Op op, absl::Span<const Charge> plan, int64_t host_ns,
                                  Outcomes* outcomes) const {
  PlanVerdict verdict;
  if (outcomes != nullptr) outcomes->clear();
  for (size_t i = 0; i < plan.size(); ++i) {
    const Decision each = FromPolicy(plan[i], host_ns);
    verdict.Add(each, static_cast<uint32_t>(i));
    if (outcomes != nullptr) outcomes->push_back(each);
  }
  Decision d = verdict.get();
  if (IsOfUsed(op)) d.SetCharged(0);
  return d;
}

void RedisStore::OnWhole(const Limit& whole, Decision* d) {
  const int64_t left = d->remaining() - d->debt();
  d->known_more_ns = d->more_after_ns();
  d->limit = &whole;
  if (IsBucket(whole.algorithm())) {
    const Interval used = CostInterval(whole, whole.burst() - left);
    d->used_ns = used.ns;
    d->used_fraction = used.fraction;
  } else {
    d->used_units = whole.count() - left;
  }
}

Decision RedisStore::FromFallback(Op op, absl::Span<const Charge> plan, const Moment& moment,
                                  Outcomes* outcomes) {
  if (plan[0].limit->share == nullptr) return DecideInFallback(op, plan, moment, outcomes);
  absl::InlinedVector<Charge, 4> shares(plan.begin(), plan.end());
  for (Charge& charge : shares) charge.limit = charge.limit->share.get();
  Decision d = DecideInFallback(op, shares, moment, outcomes);
  OnWhole(plan[d.rule].limit->limit, &d);
  for (size_t i = 0; outcomes != nullptr && i < outcomes->size(); ++i) {
    OnWhole(plan[i].limit->limit, &(*outcomes)[i]);
  }
  return d;
}

// Never copied: copying a struct that was just written stalls.
Decision RedisStore::Degraded(Op op, absl::Span<const Charge> plan, const Moment& asked,
                              int64_t host_ns, Outcomes* outcomes) {
  degraded_.fetch_add(1, std::memory_order_relaxed);
  const Moment moment = FallbackMoment(asked, host_ns);
  const bool falls_back = options_.on_error == OnError::kFallback;
  const auto mark = [&](Decision* d) {
    d->behind = false;
    d->degraded = true;
    d->SetChargedIn(falls_back ? ChargedIn::kFallback : ChargedIn::kNowhere);
    d->at_ns = moment.now_ns;
  };
  const bool is_usual = falls_back && op == Op::kHit && plan.size() == 1 && outcomes == nullptr &&
                        plan[0].limit->share == nullptr;
  Decision d = is_usual     ? fallback_->Hit(plan[0], moment)
               : falls_back ? FromFallback(op, plan, moment, outcomes)
                            : FromPolicies(op, plan, host_ns, outcomes);
  mark(&d);
  for (size_t i = 0; outcomes != nullptr && i < outcomes->size(); ++i) mark(&(*outcomes)[i]);
  return d;
}

}  // namespace tidegate
