// tidegate._core.RequestDecision.
#ifndef TIDEGATE_PYTHON_BINDINGS_WEB_REQUEST_DECISION_H_
#define TIDEGATE_PYTHON_BINDINGS_WEB_REQUEST_DECISION_H_

#include <pybind11/pybind11.h>

namespace tidegate::python {

bool IsRequestDecision(PyObject* object);

// A list of `headers`, pairs of bytes, with the fields that they do not set. nullptr with the error
// indicator set on failure. `decision` must be a RequestDecision.
PyObject* MergedHeaders(PyObject* decision, PyObject* headers);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_WEB_REQUEST_DECISION_H_
