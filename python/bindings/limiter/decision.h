// tidegate.Decision: a type written against the C API, since one is made for
// each hit. It keeps the core's integers and builds a Python value only when an
// attribute is read.
#ifndef TIDEGATE_PYTHON_BINDINGS_DECISION_H_
#define TIDEGATE_PYTHON_BINDINGS_DECISION_H_

#include <pybind11/pybind11.h>

#include "absl/types/span.h"
#include "tidegate/store.h"

namespace tidegate::python {

// Adds the type to the module.
void RegisterDecision(pybind11::module_& module);

// A new reference, or nullptr with MemoryError set. `owner` keeps
// decision.limit alive, and those of `outcomes`, which may be null.
PyObject* NewDecision(const Decision& decision, PyObject* owner,
                      const Outcomes* outcomes = nullptr);

// The same, with room for a decision that the caller constructs in place at `*room` to save a copy.
PyObject* NewDecisionIn(PyObject* owner, Decision** room);

// The decision in `object`, which must be a tidegate.Decision; else nullptr.
const Decision* GetDecision(PyObject* object);

// The same; throws TypeError for anything else.
const Decision& ExpectDecision(PyObject* object);

// The same, but null only for None. Throws for anything else.
const Decision* DecisionOrNone(PyObject* object);

// The outcomes of a tidegate.Decision.
absl::Span<const Decision> OutcomesOf(PyObject* decision);

// Bytes that begin with `start` and are equal for decisions on the same limits of one owner. A new
// reference, or nullptr with an exception set.
PyObject* PlanKey(PyObject* decision, PyObject* start);

// The object that keeps the limit of `decision` alive.
pybind11::object DecisionOwner(PyObject* decision);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_DECISION_H_
