#include "tidegate/store.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace tidegate {

BoundLimit BindWith(const Hasher& hasher, const Limit& limit, std::string_view scope) {
  std::string name(AlgorithmName(limit.algorithm()));
  absl::StrAppend(&name, ":", limit.ToString(), ":");
  name.append(scope);
  return {limit, std::string(scope), hasher.Hash(name), nullptr};
}

void PlanVerdict::Add(const Decision& decision, uint32_t index) {
  const bool binds =
      !any_ ||
      (decision_.allowed ? !decision.allowed || decision.remaining() < decision_.remaining()
                         : !decision.allowed && decision.retry_after_ns > decision_.retry_after_ns);
  const int64_t delay_ns =
      any_ ? std::max(decision_.delay_ns, decision.delay_ns) : decision.delay_ns;
  const bool behind = decision_.behind || decision.behind;
  if (binds) {
    decision_ = decision;
    decision_.rule = static_cast<uint16_t>(index);
    any_ = true;
  }
  decision_.behind = behind;
  decision_.delay_ns = decision_.allowed ? delay_ns : 0;
  ++added_;
  if (decision.limits_elsewhere != 0) [[unlikely]] {
    ++added_elsewhere_;
    elsewhere_ = decision.elsewhere;
    if (index < Decision::kMostTracked) {
      limits_elsewhere_ = static_cast<uint16_t>(limits_elsewhere_ | 1U << index);
    }
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

absl::Status Store::Accepts(const Limit&) const { return absl::OkStatus(); }

Decision Store::PeekAll(absl::Span<const Charge> plan, const Moment& moment) {
  PlanVerdict verdict;
  for (size_t i = 0; i < plan.size(); ++i) {
    verdict.Add(Peek(plan[i], moment), static_cast<uint32_t>(i));
  }
  return verdict.get();
}

Decision Store::HitAll(absl::Span<const Charge> plan, const Moment& moment,
                       absl::FunctionRef<int64_t()> clock) {
  const Decision forecast = PeekAll(plan, moment);
  if (forecast.behind && !moment.confirmed) return forecast;
  if (!forecast.allowed) {
    if (!forecast.behind) return forecast;
    // A cost beyond the capacity is never charged, but moves back what a clock
    // that went back has left ahead.
    for (const Charge& charge : plan) {
      Hit({charge.key, charge.limit, charge.limit->limit.capacity() + 1}, moment);
    }
    return forecast;
  }
  PlanVerdict verdict;
  absl::InlinedVector<Decision, 4> charged;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Decision decision = Hit(plan[i], moment);
    verdict.Add(decision, static_cast<uint32_t>(i));
    if (decision.allowed && (!decision.behind || moment.confirmed)) {
      charged.push_back(decision);
      continue;
    }
    const Moment later{clock()};
    for (size_t j = 0; j < charged.size(); ++j) {
      charged[j].at_ns = moment.now_ns;
      const auto op = Undoing(plan[j], charged[j], later.now_ns);
      if (op == Op::kRelease) Release(plan[j], charged[j].at_ns, later);
      if (op == Op::kRefund) Refund(plan[j], later);
    }
    break;
  }
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
