#include <pybind11/pybind11.h>

#include "classes.h"
#include "decision.h"

PYBIND11_MODULE(_core, m) {
  m.attr("__version__") = TIDEGATE_VERSION;
  tidegate::python::RegisterDecision(m);
  tidegate::python::RegisterChannel(m);
  tidegate::python::RegisterLimit(m);
  tidegate::python::RegisterClock(m);
  tidegate::python::RegisterLimiter(m);
  tidegate::python::RegisterPlan(m);
  tidegate::python::RegisterRedisStore(m);
  tidegate::python::RegisterReplay(m);
  tidegate::python::RegisterShmStore(m);
  tidegate::python::RegisterVerdict(m);
  tidegate::python::RegisterJudge(m);
  tidegate::python::RegisterTellingSend(m);
}
