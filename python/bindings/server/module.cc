// tidegate.server._native: the server of checks, which runs without Python.
#include <pybind11/pybind11.h>

#include "limiter/gil.h"
#include "limiter/instances.h"
#include "server/classes.h"

PYBIND11_MODULE(_native, m) {
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    throw pybind11::import_error(
        "tidegate cannot be imported in a sub-interpreter; expected the main one");
  }
  tidegate::python::RegisterGil();
  tidegate::python::RegisterFront(m);
  tidegate::python::RegisterPenalties(m);
  tidegate::python::RegisterChecks(m);
  tidegate::python::RegisterEnvoy(m);
  tidegate::python::GuardInstances(m);
}
