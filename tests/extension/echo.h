// Services that answer with the body of the request.
#ifndef TIDEGATE_TESTS_EXTENSION_ECHO_H_
#define TIDEGATE_TESTS_EXTENSION_ECHO_H_

#include <pybind11/pybind11.h>

namespace tidegate::python {

void RegisterEcho(pybind11::module_& m);

}  // namespace tidegate::python

#endif  // TIDEGATE_TESTS_EXTENSION_ECHO_H_
