// The core's limiter behind one of Python's.
#ifndef TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
#define TIDEGATE_PYTHON_BINDINGS_LIMITER_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "tidegate/limiter.h"

namespace tidegate::python {

bool IsLimiter(PyObject* object);

// `self` must be a tidegate._core.Limiter. nullptr with the error indicator set where it
// is closed.
Limiter* LimiterOf(PyObject* self);

// The same, closed or not, to be kept without the object. Throws py::type_error for others.
std::shared_ptr<Limiter> SharedLimiter(const pybind11::object& object);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
