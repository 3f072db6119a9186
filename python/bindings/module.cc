#include <pybind11/pybind11.h>

#include "classes.h"
#include "decision.h"

// What pybind11 makes is not what Python calls, see below.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the name is Python's.
#define PyInit__core TidegateInitModule
PYBIND11_MODULE(_core, m) {
  m.attr("__version__") = TIDEGATE_VERSION;
  tidegate::python::RegisterDecision(m);
  tidegate::python::RegisterChannel(m);
  tidegate::python::RegisterLimit(m);
  tidegate::python::RegisterClock(m);
  tidegate::python::RegisterMemoryStore(m);
  tidegate::python::RegisterLimiter(m);
  tidegate::python::RegisterPlan(m);
  tidegate::python::RegisterRedisStore(m);
  tidegate::python::RegisterReplay(m);
  tidegate::python::RegisterShmStore(m);
  tidegate::python::RegisterVerdict(m);
}
#undef PyInit__core

// Classes and their free lists are those of one interpreter. Another one of the process would
// wait for ever for the lock that this thread has: pybind11 asks for it by the thread.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError,
                    "tidegate cannot be imported in a sub-interpreter; accepted is the main one "
                    "(under mod_wsgi: WSGIApplicationGroup %{GLOBAL})");
    return nullptr;
  }
  return TidegateInitModule();
}
