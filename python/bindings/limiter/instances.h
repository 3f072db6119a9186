// What every class of an extension has in common, however its objects came to be.
#ifndef TIDEGATE_PYTHON_BINDINGS_INSTANCES_H_
#define TIDEGATE_PYTHON_BINDINGS_INSTANCES_H_

#include <pybind11/pybind11.h>

namespace tidegate::python {

// Call it once all classes of the module are registered. From then on
// - an object whose __init__ has not run raises TypeError where C++ needs what is in it: pybind11
//   would pass memory that was never written;
// - an object of a class without a __reduce__ of its own raises a TypeError that names the way out
//   when it is pickled or copied, in every protocol: the protocols 0 and 1 know nothing of C++ and
//   would make an empty object.
void GuardInstances(pybind11::module_& m);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_INSTANCES_H_
