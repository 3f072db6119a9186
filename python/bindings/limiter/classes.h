// The registration functions of the module's files.
#ifndef TIDEGATE_PYTHON_BINDINGS_CLASSES_H_
#define TIDEGATE_PYTHON_BINDINGS_CLASSES_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "tidegate/clock.h"

namespace tidegate::python {

void RegisterChannel(pybind11::module_& m);
void RegisterLimit(pybind11::module_& m);
void RegisterClock(pybind11::module_& m);
void RegisterLimiter(pybind11::module_& m);
// Registers Store too, which the other stores inherit.
void RegisterLocalStores(pybind11::module_& m);
void RegisterLiveReservation(pybind11::module_& m);
void RegisterPlan(pybind11::module_& m);
void RegisterQuotas(pybind11::module_& m);
void RegisterRedisStore(pybind11::module_& m);
void RegisterReplay(pybind11::module_& m);
void RegisterReservations(pybind11::module_& m);
void RegisterRuleLimiter(pybind11::module_& m);
void RegisterRuleSet(pybind11::module_& m);
// The functions of tuning/.
void RegisterArrow(pybind11::module_& m);
void RegisterNumbering(pybind11::module_& m);
void RegisterReplayRun(pybind11::module_& m);
// The functions of web/.
void RegisterCheckers(pybind11::module_& m);
void RegisterHeaderSend(pybind11::module_& m);
void RegisterPeer(pybind11::module_& m);
void RegisterRequestDecision(pybind11::module_& m);

// The caller's clock: None, a ManualClock, a callable that returns
// int nanoseconds or float seconds, or an object with now_ns(). Null for None.
struct GivenClock {
  std::shared_ptr<Clock> clock;
  // The Python function that `clock` calls, which the caller has to hold; null if there is none.
  pybind11::object function;
};
GivenClock ClockFrom(const pybind11::object& clock);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_CLASSES_H_
