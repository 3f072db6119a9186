// Functions that add the classes of each file to the module tidegate.server._native.
#ifndef TIDEGATE_BINDINGS_SERVER_CLASSES_H_
#define TIDEGATE_BINDINGS_SERVER_CLASSES_H_

#include <pybind11/pybind11.h>

namespace tidegate::python {

void RegisterChecks(pybind11::module_& m);
void RegisterEnvoy(pybind11::module_& m);
void RegisterFront(pybind11::module_& m);
void RegisterPenalties(pybind11::module_& m);

}  // namespace tidegate::python

#endif  // TIDEGATE_BINDINGS_SERVER_CLASSES_H_
