// What the stores with a table have in common: their batches and their reservations.
#ifndef TIDEGATE_SRC_TABLE_CELL_STORE_H_
#define TIDEGATE_SRC_TABLE_CELL_STORE_H_

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tidegate/store.h"

namespace tidegate {

// `Cells` is the store, derived from this, and `Base` its public class. The functions are defined
// in cell_calls_inl.h; CellCalls there says what a store must have.
template <typename Cells, typename Base>
class CellStore : public Base {
 public:
  absl::Status KeepsReservations(const Limit&) const final { return absl::OkStatus(); }
  void HitMany(absl::Span<const Charge> charges, const Moment& moment, Verdict* verdicts) final;

 protected:
  using typename Store::Record;

  void OpenRecord(const Charge& charge, const Reservation& reservation, const Moment& moment) final;
  std::optional<Record> ChangeRecord(const Charge& charge, const Reservation& reservation,
                                     const Moment& moment,
                                     absl::FunctionRef<bool(Record*)> change) final;
  void GiveBackUntil(const Charge& charge, int64_t admitted_ns, int64_t until_ns,
                     const Moment& moment) final;

 private:
  Cells& cells() { return static_cast<Cells&>(*this); }
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_CELL_STORE_H_
