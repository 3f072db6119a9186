// Calls on the quota of a key, shared by the stores that keep its state themselves. A place Q of
// the state has
//
//   Read()         the state
//   Update(work)   calls work(state), repeatedly if other callers interfere, and stores the state
//                  if work returns true
#ifndef TIDEGATE_SRC_QUOTAS_CALLS_INL_H_
#define TIDEGATE_SRC_QUOTAS_CALLS_INL_H_

#include <utility>

#include "quotas/step.h"
#include "tidegate/store.h"

namespace tidegate {

struct QuotaCalls {
  template <typename Q>
  static Decision Hit(Q quota, const Charge& charge, const Moment& moment) {
    return Charged(quota, charge, moment, StepQuota, [](const Decision& d) { return d.allowed; });
  }

  template <typename Q>
  static Decision ChargeUsed(Q quota, Op op, const Charge& charge, const Moment& moment) {
    const auto step = [op](const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost,
                           uint8_t* happened) {
      return StepQuotaCharge(limit, state, now_ns, cost, MostDebt(op, limit), happened);
    };
    Decision decision =
        Charged(quota, charge, moment, step, [](const Decision& d) { return d.charged > 0; });
    if (decision.behind && !moment.confirmed) decision.charged = 0;
    return decision;
  }

  template <typename Q>
  static Decision Peek(Q quota, const Charge& charge, const Moment& moment) {
    return PeekQuota(charge.limit->limit, quota.Read(), moment.now_ns, charge.cost);
  }

  template <typename Q>
  static int64_t Refund(Q quota, const Charge& charge, const Moment& moment) {
    const Limit& limit = charge.limit->limit;
    int64_t units = 0;
    quota.Update([&](QuotaState& state) {
      units = 0;
      if (!moment.confirmed && PeekQuota(limit, state, moment.now_ns, 1).behind) return false;
      units = RefundQuota(limit, &state, moment.now_ns, charge.cost);
      return units > 0;
    });
    return units;
  }

  template <typename Q>
  static void Reset(Q quota, const Charge& charge, const Moment& moment) {
    quota.Update(
        [&](QuotaState& state) { return ResetQuota(charge.limit->limit, &state, moment.now_ns); });
  }

  template <typename Q>
  static void BringForward(Q quota, const Charge& charge, const Moment& moment) {
    quota.Update([&](QuotaState& state) {
      BringQuotaForward(charge.limit->limit, &state, moment.now_ns);
      return true;
    });
  }

  template <typename Q>
  static QuotaStatus StatusOf(Q quota, const Charge& charge, const Moment& moment) {
    return StatusOfQuota(charge.limit->limit, quota.Read(), moment.now_ns);
  }

  template <typename Q>
  static absl::Status TopUp(Q quota, const Charge& charge, const QuotaTopUp& top_up,
                            const Moment& moment) {
    absl::Status status;
    quota.Update([&](QuotaState& state) {
      status = AddTopUp(charge.limit->limit, &state, moment.now_ns, top_up);
      return status.ok();
    });
    return status;
  }

 private:
  template <typename Q, typename Step, typename Charges>
  static Decision Charged(Q& quota, const Charge& charge, const Moment& moment, Step step,
                          Charges charges) {
    Decision decision;
    uint8_t happened = 0;
    QuotaState after;
    quota.Update([&](QuotaState& state) {
      decision = step(charge.limit->limit, &state, moment.now_ns, charge.cost, &happened);
      const bool writes = decision.behind ? moment.confirmed : charges(decision);
      if (!writes) happened = 0;
      if (happened != 0) after = state;
      return writes;
    });
    if (happened != 0) charge.limit->events->Push(charge.key, happened, after);
    return decision;
  }
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_QUOTAS_CALLS_INL_H_
