// The hot path of the memory store: from a key to a decision in one function,
// for its own calls and for Limiter, which makes them without a virtual call.
#ifndef TIDEGATE_SRC_MEMORY_STORE_INL_H_
#define TIDEGATE_SRC_MEMORY_STORE_INL_H_

#include "fingerprint_inl.h"
#include "table_inl.h"
#include "tidegate/memory_store.h"

namespace tidegate {

// GCC judges these too large to inline; they are one straight line in practice.
#define TIDEGATE_INLINE __attribute__((always_inline)) inline

TIDEGATE_INLINE Decision MemoryStore::HitInline(const Charge& charge, const Moment& moment) {
  return HitKey(charge, hasher_.HashInline(charge.key, charge.limit->tag), moment);
}

TIDEGATE_INLINE Decision MemoryStore::HitKey(const Charge& charge, const Fingerprint& key,
                                             const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  if (!IsBucket(limit.algorithm()) || charge.cost > limit.capacity()) [[unlikely]] {
    return HitOther(charge, key, moment);
  }
  // A lambda, not the function's address: only its body can be inlined.
  return HitCell(charge, key, moment, [](const auto&... args) { return StepBucket(args...); });
}

template <typename StepFunction>
TIDEGATE_INLINE Decision MemoryStore::HitCell(const Charge& charge, const Fingerprint& key,
                                              const Moment& moment, StepFunction step) {
  const Limit& limit = charge.limit->limit;
  Gate::Pass pass(gate_);
  Table& table = TableOf(key);
  Table::Entry entry = Table::Entry::kFound;
  for (;;) {
    Table::Slot slot;
    CellState next;
    if (!table.FindAtHome(key, &slot)) [[unlikely]] {
      entry = table.FindOrClaim(key, moment.now_ns, &slot);
    }
    const Decision decision = step(limit, slot.state, moment.now_ns, charge.cost, &next);
    if (decision.behind ? !moment.confirmed : !decision.allowed) {
      // A claim must not be left behind; the key is as good as new.
      if ((slot.raw.w0 & Table::kClaimBit) != 0) [[unlikely]] {
        Table::Replace(slot, {0, key.lo});
      }
      return decision;
    }
    if (!Table::ReplaceInline(slot, next)) [[unlikely]] continue;
    if (entry != Table::Entry::kFound ||
        moment.now_ns >= tend_at_ns_.load(std::memory_order_relaxed)) [[unlikely]] {
      pass.Leave();
      Entered(entry, moment.now_ns);
    }
    return decision;
  }
}

#undef TIDEGATE_INLINE

}  // namespace tidegate

#endif  // TIDEGATE_SRC_MEMORY_STORE_INL_H_
