// tidegate._core.Verdict.
#ifndef TIDEGATE_PYTHON_BINDINGS_VERDICT_H_
#define TIDEGATE_PYTHON_BINDINGS_VERDICT_H_

#include <pybind11/pybind11.h>

namespace tidegate::python {

// Whether `type` is that of verdicts, or inherits it.
bool IsVerdictType(PyObject* type);

// A new verdict of such a type. `decided_ns` may be None; nullptr with the error set.
PyObject* NewVerdict(PyTypeObject* type, PyObject* guard, PyObject* terms, PyObject* decision,
                     PyObject* decided_ns, PyObject* charges);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_VERDICT_H_
