// The hot path of the shared-memory store, as in memory_store_inl.h.
#ifndef TIDEGATE_SRC_SHM_STORE_INL_H_
#define TIDEGATE_SRC_SHM_STORE_INL_H_

#include "cell_calls_inl.h"
#include "tidegate/shm_store.h"

namespace tidegate {

TIDEGATE_INLINE Decision ShmStore::HitInline(const Charge& charge, const Moment& moment) {
  return CellCalls::Hit(*this, charge, moment);
}

TIDEGATE_INLINE Verdict ShmStore::AskInline(const Charge& charge, const Moment& moment) {
  return CellCalls::Ask(*this, charge, moment);
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_SHM_STORE_INL_H_
