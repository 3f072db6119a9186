// The core's limiter behind one of Python's.
#ifndef TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
#define TIDEGATE_PYTHON_BINDINGS_LIMITER_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "gil.h"
#include "tidegate/limiter.h"

namespace tidegate::python {

bool IsLimiter(PyObject* object);

// `self` must be a tidegate._core.Limiter. nullptr with the error indicator set where it
// is closed.
Limiter* LimiterOf(PyObject* self);

// The same, closed or not, to be kept without the object. Throws py::type_error for others.
std::shared_ptr<Limiter> SharedLimiter(const pybind11::object& object);

// Calls `call` with the GIL released where it may wait. What it reads must be kept
// alive by the caller.
template <typename Call>
auto Run(const Limiter& limiter, Call call) {
  if (!limiter.blocks()) [[likely]]
    return call();
  return WithoutGil(call);
}

// hit_many(): who was allowed, in order. A list for a sequence, a NumPy bool array for an array.
// Throws where a key or a cost is none, before anything is charged.
pybind11::object HitMany(Limiter& limiter, const pybind11::object& keys,
                         const pybind11::object& costs);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
