// The calls of reservations, for limiters, plans and limiters with rules.
#ifndef TIDEGATE_PYTHON_BINDINGS_RESERVATIONS_H_
#define TIDEGATE_PYTHON_BINDINGS_RESERVATIONS_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "tidegate/store.h"

namespace tidegate::python {

// Makes a call of a reservation, which `submit` begins in the core. Without a loop, waits for the
// answer and returns the decision; with one, returns the decision or a future of it, as BeginOn()
// does. `owner` keeps what the call needs alive.
pybind11::object CallReserved(pybind11::handle owner, Store& store, Op op, pybind11::handle loop,
                              pybind11::handle channel,
                              absl::FunctionRef<std::optional<Decision>(Store::Done)> submit);

// The units of a call: an int from 1 up, or for kSettle from 0 up. Throws otherwise.
int64_t ReservedUnits(Op op, pybind11::handle units);

// The id of a reservation: 16 bytes. Throws for others.
void SetReservationId(const pybind11::bytes& id, Reservation* reservation);

// Makes what the hit of `decision` has charged, `cost` to each of `count` limits from `first` on,
// the parts of a reservation. A decision without outcomes is that of the only limit. Throws if they
// lack.
void TakeOverHit(pybind11::handle decision, size_t first, size_t count, int64_t cost,
                 Reservation* reservation);

// Throws unless `op` can be made for all these limits.
void ExpectReservable(const Store& store, absl::Span<const BoundLimit> limits, Op op);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_RESERVATIONS_H_
