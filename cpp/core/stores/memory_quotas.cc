// Quotas in a memory store.
#include "quotas/calls_inl.h"
#include "stores/memory_cells.h"
#include "table/quota_table.h"

namespace tidegate {
namespace {

struct PlaceInTable {
  QuotaTable& table;
  const Fingerprint key;
  const QuotaTerms& terms;
  const int64_t now_ns;

  QuotaState Read() const { return table.Read(key); }
  void Update(absl::FunctionRef<bool(QuotaState&)> work) { table.With(key, terms, now_ns, work); }
};

PlaceInTable At(QuotaTable& table, const Fingerprint& key, const Charge& charge,
                const Moment& moment) {
  return {table, key, *charge.limit->limit.quota(), moment.now_ns};
}

}  // namespace

Decision MemoryCells::HitQuota(const Charge& charge, const Fingerprint& key, const Moment& moment) {
  const Gate::Pass pass(gate_);
  return QuotaCalls::Hit(At(*quotas_, key, charge, moment), charge, moment);
}

Decision MemoryCells::PeekAtQuota(const Charge& charge, const Fingerprint& key,
                                  const Moment& moment) {
  const Gate::Pass pass(gate_);
  return QuotaCalls::Peek(At(*quotas_, key, charge, moment), charge, moment);
}

Decision MemoryCells::ChargeQuota(Op op, const Charge& charge, const Fingerprint& key,
                                  const Moment& moment) {
  const Gate::Pass pass(gate_);
  return QuotaCalls::ChargeUsed(At(*quotas_, key, charge, moment), op, charge, moment);
}

int64_t MemoryCells::RefundToQuota(const Charge& charge, const Fingerprint& key,
                                   const Moment& moment) {
  const Gate::Pass pass(gate_);
  return QuotaCalls::Refund(At(*quotas_, key, charge, moment), charge, moment);
}

void MemoryCells::ResetQuota(const Charge& charge, const Moment& moment) {
  const Gate::Pass pass(gate_);
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  QuotaCalls::Reset(At(*quotas_, key, charge, moment), charge, moment);
}

absl::Status MemoryCells::BringForward(const Charge& charge, const Moment& moment) {
  const Gate::Pass pass(gate_);
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  QuotaCalls::BringForward(At(*quotas_, key, charge, moment), charge, moment);
  return absl::OkStatus();
}

absl::StatusOr<QuotaStatus> MemoryCells::StatusOf(const Charge& charge, const Moment& moment) {
  const Gate::Pass pass(gate_);
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  return QuotaCalls::StatusOf(At(*quotas_, key, charge, moment), charge, moment);
}

absl::Status MemoryCells::TopUp(const Charge& charge, const QuotaTopUp& top_up,
                                const Moment& moment) {
  const Gate::Pass pass(gate_);
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  return QuotaCalls::TopUp(At(*quotas_, key, charge, moment), charge, top_up, moment);
}

}  // namespace tidegate
