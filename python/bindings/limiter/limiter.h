// The core's limiter inside a Python limiter.
#ifndef TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
#define TIDEGATE_PYTHON_BINDINGS_LIMITER_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "limiter/gil.h"
#include "tidegate/limiter.h"

namespace tidegate::python {

bool IsLimiter(PyObject* object);

// `self` must be a tidegate._core.Limiter. Returns nullptr with the error indicator set if it is
// closed.
Limiter* LimiterOf(PyObject* self);

// Whether the clock of a tidegate._core.Limiter is a function in Python.
bool HasPythonClock(PyObject* self);

// What the package keeps beside a tidegate._core.Limiter, and calls of each request look at.
struct Upkeep {
  pybind11::object lines;    // a dict of those who wait for room; null until it is set
  bool is_expiring = false;  // whether a reservation may have to be given back, as its life is over

  bool is_awaited() const { return lines && PyDict_GET_SIZE(lines.ptr()) > 0; }
};
const Upkeep& UpkeepOf(PyObject* self);

// The same, closed or not, for use without the object. Throws py::type_error for other objects.
std::shared_ptr<Limiter> SharedLimiter(const pybind11::object& object);

// The call hit(key, cost) of a tidegate._core.Limiter. Returns a new reference to a Decision, or
// nullptr with the error indicator set.
PyObject* HitLimiter(PyObject* limiter, PyObject* key, PyObject* cost);

// The counters of stats(), for limiters of all kinds.
pybind11::dict DictOf(const LimiterStats& stats);

// Calls `call`, with the GIL released if it may wait. The caller must keep its data alive.
template <typename Call>
auto Run(const Limiter& limiter, Call call) {
  if (!limiter.blocks()) [[likely]]
    return call();
  return WithoutGil(call);
}

// hit_many(): which keys were allowed, in order. A list for a sequence, a NumPy bool array for an
// array. Throws for an invalid key or cost, before anything is charged.
pybind11::object HitMany(Limiter& limiter, const pybind11::object& keys,
                         const pybind11::object& costs);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
