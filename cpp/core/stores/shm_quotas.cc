// Quotas in shared memory.
#include "quotas/calls_inl.h"
#include "stores/shm_cells.h"
#include "table/quota_cells.h"

namespace tidegate {

template <typename Call>
auto ShmCells::WithQuota(const Charge& charge, const Moment& moment, Call call) {
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  const auto entered = [&](const Table::Entry& entry) { Entered(entry, moment.now_ns); };
  return call(QuotaCells(table_, *charge.limit->limit.quota(), key, moment.now_ns, entered));
}

Decision ShmCells::HitQuota(const Charge& charge, const Moment& moment) {
  return WithQuota(charge, moment,
                   [&](QuotaCells quota) { return QuotaCalls::Hit(quota, charge, moment); });
}

Decision ShmCells::PeekAtQuota(const Charge& charge, const Moment& moment) {
  return WithQuota(charge, moment,
                   [&](QuotaCells quota) { return QuotaCalls::Peek(quota, charge, moment); });
}

Decision ShmCells::ChargeQuota(Op op, const Charge& charge, const Moment& moment) {
  return WithQuota(charge, moment, [&](QuotaCells quota) {
    return QuotaCalls::ChargeUsed(quota, op, charge, moment);
  });
}

int64_t ShmCells::RefundToQuota(const Charge& charge, const Moment& moment) {
  return WithQuota(charge, moment,
                   [&](QuotaCells quota) { return QuotaCalls::Refund(quota, charge, moment); });
}

void ShmCells::ResetQuota(const Charge& charge, const Moment& moment) {
  WithQuota(charge, moment, [&](QuotaCells quota) { QuotaCalls::Reset(quota, charge, moment); });
}

absl::Status ShmCells::BringForward(const Charge& charge, const Moment& moment) {
  WithQuota(charge, moment,
            [&](QuotaCells quota) { QuotaCalls::BringForward(quota, charge, moment); });
  return absl::OkStatus();
}

void ShmCells::ForgetQuota(const Charge& charge, const Moment& moment) {
  WithQuota(charge, moment, [&](QuotaCells quota) { quota.Forget(); });
}

absl::StatusOr<QuotaStatus> ShmCells::StatusOf(const Charge& charge, const Moment& moment) {
  return WithQuota(charge, moment,
                   [&](QuotaCells quota) { return QuotaCalls::StatusOf(quota, charge, moment); });
}

absl::Status ShmCells::TopUp(const Charge& charge, const QuotaTopUp& top_up, const Moment& moment) {
  return WithQuota(charge, moment, [&](QuotaCells quota) {
    return QuotaCalls::TopUp(quota, charge, top_up, moment);
  });
}

}  // namespace tidegate
