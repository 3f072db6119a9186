// service_testing: services that echo, and calls of services without a front.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "direct_call.h"
#include "echo.h"
#include "limiter/gil.h"

PYBIND11_MODULE(service_testing, m) {
  namespace py = pybind11;
  py::module_::import("tidegate.server._native");  // registers the classes that these inherit
  tidegate::python::RegisterGil();
  tidegate::python::RegisterEcho(m);
  m.def("call", &tidegate::python::CallDirectly, py::arg("service"), py::arg("method"),
        py::arg("target"), py::arg("headers") = std::vector<std::pair<std::string, std::string>>(),
        py::arg("body") = py::bytes(), py::arg("grpc") = false);
}
