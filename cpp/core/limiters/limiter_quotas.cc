// The calls of Limiter on its quotas.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tidegate/limiter.h"

namespace tidegate {

namespace {

absl::Status CheckQuota(absl::Span<const BoundLimit> limits, size_t quota) {
  if (quota < limits.size() && limits[quota].limit.quota() != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("limit ", quota, " of ", limits.size(),
                                                 " was named as a quota; expected a quota"));
}

}  // namespace

absl::StatusOr<QuotaStatus> Limiter::StatusOf(size_t quota, std::string_view key) {
  if (absl::Status status = CheckQuota(limits_, quota); !status.ok()) return status;
  return store().StatusOf({key, &limits_[quota], 1}, {NowNs()});
}

absl::Status Limiter::TopUp(size_t quota, std::string_view key, const QuotaTopUp& top_up) {
  if (absl::Status status = CheckQuota(limits_, quota); !status.ok()) return status;
  return store().TopUp({key, &limits_[quota], 1}, top_up, {NowNs()});
}

absl::Status Limiter::BringForward(std::string_view key) {
  for (const BoundLimit& bound : limits_) {
    if (bound.limit.quota() == nullptr) continue;
    if (absl::Status status = store().BringForward({key, &bound, 1}, {NowNs()}); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

std::vector<std::pair<size_t, QuotaEvents::Event>> Limiter::TakeEvents() {
  std::vector<std::pair<size_t, QuotaEvents::Event>> all;
  for (size_t i = 0; i < limits_.size(); ++i) {
    if (limits_[i].events == nullptr) continue;
    for (QuotaEvents::Event& event : limits_[i].events->Take()) {
      all.emplace_back(i, std::move(event));
    }
  }
  return all;
}

}  // namespace tidegate
