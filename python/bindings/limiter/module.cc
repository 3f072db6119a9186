#include <pybind11/pybind11.h>

#include "limiter/classes.h"
#include "limiter/decision.h"
#include "limiter/gil.h"
#include "limiter/instances.h"

namespace {

bool IsMainInterpreter() { return PyInterpreterState_Get() == PyInterpreterState_Main(); }

constexpr const char* kMainOnly =
    "tidegate cannot be imported in a sub-interpreter; expected the main one (under mod_wsgi: "
    "WSGIApplicationGroup %{GLOBAL})";

}  // namespace

// Python does not call pybind11's function directly, see below.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the name is Python's.
#define PyInit__core TidegateInitModule
PYBIND11_MODULE(_core, m) {
  if (!IsMainInterpreter()) throw pybind11::import_error(kMainOnly);
  m.attr("__version__") = TIDEGATE_VERSION;
  tidegate::python::RegisterGil();
  tidegate::python::RegisterDecision(m);
  tidegate::python::RegisterChannel(m);
  tidegate::python::RegisterLimit(m);
  tidegate::python::RegisterClock(m);
  tidegate::python::RegisterLocalStores(m);
  tidegate::python::RegisterLimiter(m);
  tidegate::python::RegisterPlan(m);
  tidegate::python::RegisterQuotas(m);
  tidegate::python::RegisterRedisStore(m);
  tidegate::python::RegisterReplay(m);
  tidegate::python::RegisterReservations(m);
  tidegate::python::RegisterLiveReservation(m);
  tidegate::python::RegisterRuleSet(m);
  tidegate::python::RegisterRuleLimiter(m);
#ifdef TIDEGATE_HAS_TUNING
  tidegate::python::RegisterArrow(m);
  tidegate::python::RegisterNumbering(m);
  tidegate::python::RegisterReplayRun(m);
#endif
  tidegate::python::RegisterRequestDecision(m);
  tidegate::python::RegisterCheckers(m);
  tidegate::python::RegisterHeaderSend(m);
  tidegate::python::RegisterPeer(m);
  tidegate::python::GuardInstances(m);
}
#undef PyInit__core

// Classes and their free lists belong to one interpreter. Asking pybind11 for them in another one
// would deadlock on a lock that this thread holds. From 3.13 on the main interpreter calls this,
// and the other one then makes the module. NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (IsMainInterpreter()) return TidegateInitModule();
  PyErr_SetString(PyExc_ImportError, kMainOnly);
  return nullptr;
}
