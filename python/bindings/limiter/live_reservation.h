// tidegate._core.LiveReservation: a reservation in memory that only its object knows.
//
// The GIL guards its state: nothing that settles it releases the GIL between the look whether it is
// open and the note that it is settled. Only a clock in Python would, and a limiter with one makes
// no such reservations. An interpreter without the GIL would need a lock of each reservation there.
// A child of fork() has a copy of that state: where it shares the counts with its parent, only the
// parent settles what it has reserved.
#ifndef TIDEGATE_PYTHON_BINDINGS_LIVE_RESERVATION_H_
#define TIDEGATE_PYTHON_BINDINGS_LIVE_RESERVATION_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "absl/container/inlined_vector.h"
#include "tidegate/decision.h"
#include "tidegate/reservation.h"
#include "tidegate/store.h"

namespace tidegate::python {

// The calls of a reservation of a plan or of rules, which has several charges. Throws what the
// calls of its owner throw, such as that it is closed. Needs the GIL, and never releases it.
class Holding {
 public:
  // One for each limiter of a plan; none where rules give everything back.
  using Units = absl::InlinedVector<int64_t, 4>;

  virtual ~Holding() = default;
  // The units of a call; a null handle stands for those of a release. Throws for invalid ones.
  virtual Units Read(Op op, pybind11::handle units) const = 0;
  // Throws if the owner is closed, or if `op` cannot be made for the limits.
  virtual void Expect(Op op) const = 0;
  virtual Decision Call(Op op, const Units& units, Reservation* reservation) = 0;
  // Makes the records by which another process can settle it.
  virtual void Record(Reservation* reservation) = 0;
  virtual bool spans_processes() const = 0;
  // Whether another reservation of the owner may have to be given back, as its life is over.
  virtual bool is_expiring() const = 0;
  // Whether anybody waits for room.
  virtual bool is_awaited() const = 0;
  // What keeps the limits of decisions alive.
  virtual PyObject* decides() const = 0;
  // What RuleLimiter._usage_cost() returns; None without rules.
  virtual pybind11::object UsageCost() const { return pybind11::none(); }
};

// A reservation of `owner`, by `holding`, which keeps no reference to it, as an object of `type`, a
// subclass of LiveReservation. `whose` says of what it is.
pybind11::object ReserveTogether(pybind11::handle type, pybind11::handle owner,
                                 pybind11::handle whose, std::unique_ptr<Holding> holding,
                                 pybind11::handle units, int64_t ttl_ns);

// The same for what the hit of `decision` has charged, whose life has no end.
pybind11::object TakenOver(pybind11::handle type, pybind11::handle owner, pybind11::handle whose,
                           std::unique_ptr<Holding> holding, Reservation charged,
                           pybind11::handle decision);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_LIVE_RESERVATION_H_
