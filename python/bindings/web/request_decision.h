// tidegate._core.RequestDecision.
#ifndef TIDEGATE_PYTHON_BINDINGS_WEB_REQUEST_DECISION_H_
#define TIDEGATE_PYTHON_BINDINGS_WEB_REQUEST_DECISION_H_

#include <pybind11/pybind11.h>

#include "web/peer.h"

namespace tidegate::python {

bool IsRequestDecision(PyObject* object);
bool IsRequestDecisionType(PyObject* object);

// Makes one of a class from (fields, decision, decided_ns, extra_s, limiter, limits, charges).
PyObject* NewRequestDecision(PyObject* type, PyObject* const (&of)[7]);

// Keeps the cost that a new `decision` charged.
void KeepCost(PyObject* decision, PyObject* cost);

// Keeps the cost and the attributes of the request that a new `decision` charged, from which its
// charges are made when they are read.
void KeepRequest(PyObject* decision, PyObject* cost, const PlainRequest& request);

// A list of `headers`, pairs of bytes, with the fields that they do not set. nullptr with the error
// indicator set on failure. `decision` must be a RequestDecision.
PyObject* MergedHeaders(PyObject* decision, PyObject* headers);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_WEB_REQUEST_DECISION_H_
