// The hot path of the memory store: from a key to a decision in one function,
// for its own calls and for Limiter, which makes them without a virtual call.
#ifndef TIDEGATE_SRC_MEMORY_STORE_INL_H_
#define TIDEGATE_SRC_MEMORY_STORE_INL_H_

#include "fingerprint_inl.h"
#include "table_inl.h"
#include "tidegate/memory_store.h"

namespace tidegate {

TIDEGATE_INLINE void UpdateBucket(Table& table, const Charge& charge, const Fingerprint& key,
                                  const Moment& moment, Table::Entry& entry, BucketOutcome& out) {
  const Limit& limit = charge.limit->limit;
  table.Update(
      key, moment.now_ns, limit.denominator() == 1, entry,
      [&](uint64_t w0, uint64_t w1, uint64_t & next_w0, uint64_t & next_w1)
          __attribute__((always_inline)) {
            StepBucket(limit, w0, w1, moment.now_ns, charge.cost, out);
            next_w0 = out.next_w0;
            next_w1 = out.next_w1;
            return out.behind ? moment.confirmed : out.allowed;
          });
}

TIDEGATE_INLINE Decision MemoryStore::HitInline(const Charge& charge, const Moment& moment) {
  const Fingerprint key = hasher_.HashInline(charge.key, charge.limit->tag);
  const Limit& limit = charge.limit->limit;
  if (!IsBucket(limit.algorithm()) || charge.cost > limit.burst()) [[unlikely]] {
    return HitOther(charge, key, moment);
  }
  return HitBucket(charge, key, moment);
}

TIDEGATE_INLINE Decision MemoryStore::HitBucket(const Charge& charge, const Fingerprint& key,
                                                const Moment& moment) {
  Table::Entry entry = Table::Entry::kFound;
  Gate::Pass pass(gate_);
  BucketOutcome outcome;
  UpdateBucket(TableOf(key), charge, key, moment, entry, outcome);
  pass.Leave();
  if (IsDue(entry, moment.now_ns)) [[unlikely]]
    Entered(entry, moment.now_ns);
  return MakeDecision(charge.limit->limit, outcome);
}

TIDEGATE_INLINE Verdict VerdictOf(bool allowed, bool behind, const Moment& moment) {
  if (behind && !moment.confirmed) return Verdict::kUnconfirmed;
  return allowed ? Verdict::kAllowed : Verdict::kRefused;
}

TIDEGATE_INLINE Verdict MemoryStore::AskInline(const Charge& charge, const Moment& moment) {
  const Fingerprint key = hasher_.HashInline(charge.key, charge.limit->tag);
  const Limit& limit = charge.limit->limit;
  if (!IsBucket(limit.algorithm()) || charge.cost > limit.burst()) [[unlikely]] {
    const Decision decision = HitOther(charge, key, moment);
    return VerdictOf(decision.allowed, decision.behind, moment);
  }
  Table::Entry entry = Table::Entry::kFound;
  BucketOutcome outcome;
  Gate::Pass pass(gate_);
  UpdateBucket(TableOf(key), charge, key, moment, entry, outcome);
  pass.Leave();
  if (IsDue(entry, moment.now_ns)) [[unlikely]]
    Entered(entry, moment.now_ns);
  return VerdictOf(outcome.allowed, outcome.behind, moment);
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_MEMORY_STORE_INL_H_
