// The hot path of the memory store: from a key to a decision in one function,
// for its own calls and for Limiter, which makes them without a virtual call.
#ifndef TIDEGATE_SRC_MEMORY_STORE_INL_H_
#define TIDEGATE_SRC_MEMORY_STORE_INL_H_

#include "cell_calls_inl.h"
#include "tidegate/memory_store.h"

namespace tidegate {

TIDEGATE_INLINE Decision MemoryStore::HitInline(const Charge& charge, const Moment& moment) {
  return CellCalls::Hit(*this, charge, moment);
}

TIDEGATE_INLINE Verdict MemoryStore::AskInline(const Charge& charge, const Moment& moment) {
  return CellCalls::Ask(*this, charge, moment);
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_MEMORY_STORE_INL_H_
