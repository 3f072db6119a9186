// The core's limiter behind one of Python's.
#ifndef TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
#define TIDEGATE_PYTHON_BINDINGS_LIMITER_H_

#include <pybind11/pybind11.h>

#include "tidegate/limiter.h"

namespace tidegate::python {

// `self` must be a tidegate._core.Limiter. nullptr with the error indicator set where it
// is closed.
Limiter* LimiterOf(PyObject* self);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
