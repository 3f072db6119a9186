#include "tidegate/store.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tidegate {

std::string CountName(const Limit& limit, std::string_view scope) {
  return absl::StrCat(Absl(AlgorithmName(limit.algorithm())), ":", scope.size(), ":", Absl(scope),
                      ":", limit.identity());
}

BoundLimit BindWith(const Hasher& hasher, const Limit& limit, std::string_view scope) {
  return {limit, std::string(scope), hasher.Hash(CountName(limit, scope)), nullptr,
          limit.quota() == nullptr ? nullptr : std::make_shared<QuotaEvents>()};
}

void PlanVerdict::Add(const Decision& decision, uint32_t index) {
  const bool behind = decision_.behind || decision.behind;
  const bool late = decision_.late || decision.late;
  if (decision.limit->shadow()) [[unlikely]] {
    if (!any_) {
      decision_ = decision;
      decision_.rule = static_cast<uint16_t>(index);
      decision_.allowed = true;
      decision_.retry_after_ns = decision_.delay_ns = 0;
    }
  } else {
    const bool binds =
        !any_enforced_ ||
        (decision_.allowed
             ? !decision.allowed || decision.remaining() < decision_.remaining()
             : !decision.allowed && decision.retry_after_ns > decision_.retry_after_ns);
    const int64_t delay_ns =
        any_enforced_ ? std::max(decision_.delay_ns, decision.delay_ns) : decision.delay_ns;
    const int64_t charged =
        any_enforced_ ? std::min(decision_.charged, decision.charged) : decision.charged;
    if (binds) {
      decision_ = decision;
      decision_.rule = static_cast<uint16_t>(index);
      any_enforced_ = true;
    }
    decision_.delay_ns = decision_.allowed ? delay_ns : 0;
    decision_.charged = charged;
  }
  any_ = true;
  decision_.behind = behind;
  decision_.late = late;
  ++added_;
  const bool refused_in_shadow = !decision.allowed && decision.limit->shadow();
  if (decision.limits_elsewhere != 0 || refused_in_shadow) [[unlikely]] {
    AddElsewhere(refused_in_shadow ? ChargedIn::kNowhere : decision.elsewhere, index);
  }
  if (added_elsewhere_ == 0) [[likely]]
    return;
  if (added_elsewhere_ == added_) {
    decision_.SetChargedIn(elsewhere_);
  } else if (index >= Decision::kMostTracked) {
    decision_.SetChargedIn(ChargedIn::kNowhere);
  } else {
    decision_.elsewhere = elsewhere_;
    decision_.limits_elsewhere = limits_elsewhere_;
  }
}

void PlanVerdict::AddElsewhere(ChargedIn where, uint32_t index) {
  // Only one place is recorded for all. If there are two, the fallback's charges are not given
  // back.
  elsewhere_ = added_elsewhere_ == 0 || elsewhere_ == where ? where : ChargedIn::kNowhere;
  ++added_elsewhere_;
  if (index < Decision::kMostTracked) {
    limits_elsewhere_ = static_cast<uint16_t>(limits_elsewhere_ | 1U << index);
  }
}

namespace {

absl::Status NoQuotas(const Store& store) {
  return absl::InvalidArgumentError(absl::StrCat("quotas are not supported by the storage ",
                                                 store.name(),
                                                 "; expected memory://, shm:// or redis://"));
}

}  // namespace

absl::Status Store::Accepts(const Limit& limit) const {
  return limit.quota() == nullptr ? absl::OkStatus() : NoQuotas(*this);
}

int64_t Store::Extend(absl::Span<const Charge>, int64_t, const Moment&) { return kNoInstant; }

absl::StatusOr<QuotaStatus> Store::StatusOf(const Charge&, const Moment&) {
  return NoQuotas(*this);
}

absl::Status Store::TopUp(const Charge&, const QuotaTopUp&, const Moment&) {
  return NoQuotas(*this);
}

absl::Status Store::BringForward(const Charge&, const Moment&) { return NoQuotas(*this); }

Decision Store::PeekAll(absl::Span<const Charge> plan, const Moment& moment, Outcomes* outcomes) {
  if (outcomes != nullptr) outcomes->clear();
  PlanVerdict verdict;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Decision decision = Peek(plan[i], moment);
    verdict.Add(decision, static_cast<uint32_t>(i));
    if (outcomes != nullptr) outcomes->push_back(decision);
  }
  return verdict.get();
}

Decision Store::ChargeUsed(Op, const Charge& charge, const Moment& moment) {
  constexpr int kMostTries = 1000;
  for (int tries = 0;; ++tries) {
    Decision standing = Peek({charge.key, charge.limit, 1}, moment);
    const int64_t units = std::min(charge.cost, standing.remaining());
    if (units == 0 || tries == kMostTries || (standing.behind && !moment.confirmed)) {
      standing.SetCharged(0);
      return standing;
    }
    Decision decision = Hit({charge.key, charge.limit, units}, moment);
    if (!decision.allowed || (decision.behind && !moment.confirmed)) continue;
    decision.SetCharged(units);
    return decision;
  }
}

Decision Store::ChargeAllUsed(Op op, absl::Span<const Charge> plan, const Moment& moment) {
  if (plan.size() == 1) return ChargeUsed(op, plan[0], moment);
  // Peek first: otherwise, if one limit needs a confirmed reading, the call is made again and
  // charges the other limits twice.
  Decision standing = PeekAll(plan, moment, nullptr);
  if (standing.behind && !moment.confirmed) {
    standing.SetCharged(0);
    return standing;
  }
  PlanVerdict verdict;
  for (size_t i = 0; i < plan.size(); ++i) {
    verdict.Add(ChargeUsed(op, plan[i], moment), static_cast<uint32_t>(i));
  }
  return verdict.get();
}

void Store::GiveBack(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                     const Moment& moment) {
  for (const Charge& charge : plan) {
    if (op == Op::kRelease ||
        (admitted_ns != kNoInstant && IsLog(charge.limit->limit.algorithm()))) {
      Release(charge, admitted_ns, moment);
    } else {
      Refund(charge, moment);
    }
  }
}

// NOLINTBEGIN(performance-unnecessary-value-param): overrides keep both functions.
std::optional<Decision> Store::Submit(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                      const Moment& moment, Clock clock, Outcomes* outcomes, Done) {
  // NOLINTEND(performance-unnecessary-value-param)
  const auto now = [&] { return clock ? clock() : moment.now_ns; };
  switch (op) {
    case Op::kHit:
      return HitAll(plan, moment, now, outcomes);
    case Op::kPeek:
      return PeekAll(plan, moment, outcomes);
    case Op::kCharge:
    case Op::kChargeUpTo:
      return ChargeAllUsed(op, plan, moment);
    case Op::kReset:
      for (const Charge& charge : plan) Reset(charge, moment);
      break;
    case Op::kForget:
      for (const Charge& charge : plan) Forget(charge, moment);
      break;
    default:
      GiveBack(op, plan, admitted_ns, moment);
  }
  return Decision();
}

Decision Store::HitAll(absl::Span<const Charge> plan, const Moment& moment,
                       absl::FunctionRef<int64_t()> clock, Outcomes* outcomes) {
  const Decision forecast = PeekAll(plan, moment, outcomes);
  if (forecast.behind && !moment.confirmed) return forecast;
  if (!forecast.allowed) {
    if (!forecast.behind) return forecast;
    // A hit of a cost beyond the capacity charges nothing, but moves back a state that a clock left
    // ahead when it went back.
    for (const Charge& charge : plan) {
      Hit({charge.key, charge.limit, charge.limit->limit.beyond()}, moment);
    }
    return forecast;
  }
  PlanVerdict verdict;
  Outcomes hits;
  for (size_t i = 0; i < plan.size(); ++i) {
    Decision decision = Hit(plan[i], moment);
    const bool charged = decision.allowed && (!decision.behind || moment.confirmed);
    const bool in_shadow = plan[i].limit->limit.shadow();
    if (in_shadow) decision.behind = false;  // or the whole plan would be tried again
    verdict.Add(decision, static_cast<uint32_t>(i));
    if (charged || in_shadow) {
      decision.allowed = charged;
      decision.at_ns = moment.now_ns;
      hits.push_back(decision);
      continue;
    }
    if (outcomes != nullptr) (*outcomes)[i] = decision;
    Moment later{clock()};
    for (size_t j = 0; j < hits.size(); ++j) {
      if (!hits[j].allowed) continue;
      later.late = hits[j].late;
      const auto op = Undoing(plan[j], hits[j], later.now_ns);
      if (op == Op::kRelease) Release(plan[j], hits[j].at_ns, later);
      if (op == Op::kRefund) Refund(plan[j], later);
    }
    return verdict.get();
  }
  if (outcomes != nullptr) *outcomes = std::move(hits);
  return verdict.get();
}

std::optional<Op> Store::Undoing(const Charge& charge, const Decision& decision, int64_t now_ns) {
  const Limit& limit = charge.limit->limit;
  if (IsLog(limit.algorithm())) return Op::kRelease;
  int64_t until_ns = decision.at_ns + decision.reset_after_ns;
  if (limit.algorithm() == Algorithm::kSlidingWindow) until_ns -= limit.period_ns();
  if (now_ns >= until_ns) return std::nullopt;
  return Op::kRefund;
}

void Store::HitMany(absl::Span<const Charge> charges, const Moment& moment, Verdict* verdicts) {
  for (size_t i = 0; i < charges.size(); ++i) {
    const Decision decision = Hit(charges[i], moment);
    verdicts[i] = decision.behind && !moment.confirmed ? Verdict::kUnconfirmed
                  : decision.allowed                   ? Verdict::kAllowed
                                                       : Verdict::kRefused;
  }
}

}  // namespace tidegate
