// The calls of RuleLimiter on its quotas.
#include "tidegate/rule_limiter.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tidegate {

absl::StatusOr<std::vector<std::pair<const Limit*, QuotaStatus>>> RuleLimiter::StatusOf(
    const Request& request) const {
  Charged charged;
  ChargesOf(nullptr, request, 1, &charged);
  std::vector<std::pair<const Limit*, QuotaStatus>> all;
  for (const Charge& charge : charged.charges) {
    if (charge.limit->limit.quota() == nullptr) continue;
    auto status = store_->store().StatusOf(charge, {store_->NowNs()});
    if (!status.ok()) return status.status();
    all.emplace_back(&charge.limit->limit, *std::move(status));
  }
  return all;
}

absl::Status RuleLimiter::TopUp(const Request& request, std::string_view quota,
                                const QuotaTopUp& top_up) const {
  Charged charged;
  ChargesOf(nullptr, request, 1, &charged);
  const Charge* found = nullptr;
  int number = 0;
  for (const Charge& charge : charged.charges) {
    const Limit& limit = charge.limit->limit;
    if (limit.quota() == nullptr || (!quota.empty() && limit.name() != quota)) continue;
    found = &charge;
    ++number;
  }
  if (number != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        number, " quotas", quota.empty() ? "" : absl::StrCat(" of the name ", Quote(quota)),
        " apply to the request; expected one for a top-up",
        quota.empty() && number > 1 ? ", given by its name" : ""));
  }
  return store_->store().TopUp(*found, top_up, {store_->NowNs()});
}

std::vector<std::pair<const Limit*, QuotaEvents::Event>> RuleLimiter::TakeEvents() const {
  std::vector<std::pair<const Limit*, QuotaEvents::Event>> all;
  for (const BoundLimit& bound : bound_) {
    if (bound.events == nullptr) continue;
    for (QuotaEvents::Event& event : bound.events->Take()) {
      all.emplace_back(&bound.limit, std::move(event));
    }
  }
  return all;
}

}  // namespace tidegate
