#include "tidegate/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tidegate {

namespace {

// Limits with one id share what keys have used, so they must have equal numbers. The error names
// the first two that do not.
absl::Status CheckIds(absl::Span<const BoundLimit* const> limits) {
  absl::flat_hash_map<Fingerprint, const BoundLimit*> known;
  for (const BoundLimit* bound : limits) {
    if (bound->limit.id().empty()) continue;
    const BoundLimit* const other = known.try_emplace(bound->tag, bound).first->second;
    if (other->limit.ToString() == bound->limit.ToString()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "two limits of a plan have the id '", bound->limit.id(), "': ", other->limit.ToString(),
        " and ", bound->limit.ToString(), "; expected one number for each id"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Plan>> Plan::Create(std::vector<Limiter*> limiters) {
  if (limiters.empty()) {
    return absl::InvalidArgumentError("no limiter was given; expected at least one");
  }
  size_t limits = 0;
  std::vector<const BoundLimit*> bound;
  for (const Limiter* limiter : limiters) {
    if (&limiter->store() != &limiters[0]->store()) {
      return absl::InvalidArgumentError(
          "the limiters of a plan have different storages, which cannot charge all or none; "
          "expected limiters of one: Limiter(..., storage=other.storage)");
    }
    limits += limiter->limits_.size();
    for (const BoundLimit& limit : limiter->limits_) bound.push_back(&limit);
  }
  if (absl::Status status = CheckIds(bound); !status.ok()) return status;
  if (limits > Limiter::kMostLimits) {
    return absl::InvalidArgumentError(absl::StrCat("the limiters of a plan have ", limits,
                                                   " limits; expected at most ",
                                                   Limiter::kMostLimits));
  }
  return std::unique_ptr<Plan>(new Plan(std::move(limiters)));
}

Plan::Plan(std::vector<Limiter*> limiters)
    : limiters_(std::move(limiters)),
      store_(limiters_[0]->store_),
      has_shadow_(std::any_of(limiters_.begin(), limiters_.end(),
                              [](const Limiter* limiter) { return limiter->has_shadow_; })) {}

Plan::Charged Plan::For(Keys keys, Costs costs) const {
  Charged charged;
  for (size_t i = 0; i < limiters_.size(); ++i) {
    for (const BoundLimit& limit : limiters_[i]->limits_) {
      const auto same = std::find_if(
          charged.charges.begin(), charged.charges.end(),
          [&](const Charge& c) { return c.limit->tag == limit.tag && c.key == keys[i]; });
      charged.charge_of.push_back(static_cast<uint32_t>(same - charged.charges.begin()));
      if (same == charged.charges.end()) {
        charged.charges.push_back({keys[i], &limit, costs[i]});
      } else if (same->limit->limit.shadow() && !limit.limit.shadow()) {
        *same = {keys[i], &limit, costs[i]};
      } else if (same->limit->limit.shadow() == limit.limit.shadow()) {
        const int64_t room = std::numeric_limits<int64_t>::max() - same->cost;
        same->cost += std::min(room, costs[i]);
      }
    }
  }
  return charged;
}

void Plan::ToLimits(const ChargeNumbers& charge_of, Decision* decision, Outcomes* outcomes) {
  if (decision->limits_elsewhere != 0 && decision->limits_elsewhere != Decision::kAllLimits) {
    uint32_t elsewhere = 0;
    for (size_t i = 0; i < charge_of.size() && i < Decision::kMostTracked; ++i) {
      elsewhere |= (uint32_t{decision->limits_elsewhere} >> charge_of[i] & 1U) << i;
    }
    decision->limits_elsewhere = static_cast<uint16_t>(elsewhere);
    if (charge_of.size() > Decision::kMostTracked) decision->SetChargedIn(ChargedIn::kNowhere);
  }
  decision->rule = static_cast<uint16_t>(
      std::find(charge_of.begin(), charge_of.end(), decision->rule) - charge_of.begin());
  if (outcomes != nullptr) {
    Outcomes by_limit;
    for (const uint32_t number : charge_of) {
      by_limit.push_back((*outcomes)[number]);
      by_limit.back().rule = static_cast<uint16_t>(by_limit.size() - 1);
    }
    *outcomes = std::move(by_limit);
  }
}

Decision Plan::Finish(Decision decision, const ChargeNumbers& charge_of, Outcomes* outcomes) const {
  ToLimits(charge_of, &decision, outcomes);
  uint32_t first = 0;
  for (Limiter* limiter : limiters_) {
    const uint32_t after = first + static_cast<uint32_t>(limiter->limits_.size());
    const bool binds = first <= decision.rule && decision.rule < after;
    if (decision.allowed || binds) limiter->Count(decision, decision.rule - first);
    if (outcomes != nullptr) limiter->CountShadow(absl::MakeConstSpan(*outcomes).subspan(first));
    first = after;
  }
  return decision;
}

Decision Plan::Hit(Keys keys, Costs costs, Outcomes* outcomes) {
  Outcomes own;
  outcomes = Wanted(outcomes, &own);
  const Charged charged = For(keys, costs);
  return Finish(store_.Call(Op::kHit, charged.charges, nullptr, outcomes), charged.charge_of,
                outcomes);
}

Decision Plan::Peek(Keys keys, Costs costs, Outcomes* outcomes) {
  const Charged charged = For(keys, costs);
  Decision decision = store_.Call(Op::kPeek, charged.charges, nullptr, outcomes);
  ToLimits(charged.charge_of, &decision, outcomes);
  return decision;
}

Decision Plan::FinishCharge(Decision decision, const Charged& charged) const {
  decision.rule = static_cast<uint16_t>(
      std::find(charged.charge_of.begin(), charged.charge_of.end(), decision.rule) -
      charged.charge_of.begin());
  // Of several limits the decision has the smallest charge only.
  const int64_t least = LeastOf(charged);
  if (decision.charged < least) limiters_[0]->CountWrittenOff(decision, least);
  return decision;
}

Decision Plan::ChargeInFull(Keys keys, Costs costs) {
  const Charged charged = For(keys, costs);
  return FinishCharge(store_.Call(Op::kCharge, charged.charges), charged);
}

std::optional<Decision> Plan::Submit(Op op, Keys keys, Costs costs, Outcomes* outcomes,
                                     Store::Done done) {
  Charged charged = For(keys, costs);
  if (op == Op::kCharge) {
    const absl::InlinedVector<Charge, 4> charges = charged.charges;
    const auto finish = [this, charged = std::move(charged)](const Decision& decision) {
      return FinishCharge(decision, charged);
    };
    return store_.Submit(op, charges, nullptr, nullptr, finish, std::move(done));
  }
  if (op == Op::kPeek) {
    const auto finish = [charge_of = charged.charge_of, outcomes](Decision decision) {
      ToLimits(charge_of, &decision, outcomes);
      return decision;
    };
    return store_.Submit(op, charged.charges, nullptr, outcomes, finish, std::move(done));
  }
  // Kept alive by `finish`.
  const auto own = has_shadow_ ? std::make_shared<Outcomes>() : std::shared_ptr<Outcomes>();
  Outcomes* const wanted = Wanted(outcomes, own.get());
  const auto finish = [this, charge_of = charged.charge_of, own, wanted](const Decision& decision) {
    return Finish(decision, charge_of, wanted);
  };
  return store_.Submit(Op::kHit, charged.charges, nullptr, wanted, finish, std::move(done));
}

}  // namespace tidegate
