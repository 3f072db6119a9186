// The core's limiter behind one of Python's.
#ifndef TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
#define TIDEGATE_PYTHON_BINDINGS_LIMITER_H_

#include <pybind11/pybind11.h>

#include <cstdint>

#include "tidegate/limiter.h"

namespace tidegate::python {

bool IsLimiter(PyObject* object);

// `self` must be a tidegate._core.Limiter. nullptr with the error indicator set where it
// is closed.
Limiter* LimiterOf(PyObject* self);

// The clock of one, closed or not.
int64_t NowOf(PyObject* self);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_LIMITER_H_
