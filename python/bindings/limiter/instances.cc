#include "limiter/instances.h"

#include <cstddef>

#include "limiter/fast_call.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

// pybind11 calls it for the memory of an object that has none yet, though a method needs it.
void* RefuseToAllocate(size_t) {
  throw py::type_error(
      "the object is not initialized: its __init__ did not run; expected an object that was made "
      "by calling its class, and super().__init__(...) in a class that inherits it");
}

PyObject* RefuseToReduce(PyObject* self, PyObject*) {
  PyErr_Format(PyExc_TypeError,
               "a %s cannot be pickled or copied, since it belongs to its process; expected one "
               "that is made where it is used, from the same arguments (limiters share counts "
               "through storage='shm://NAME' or 'redis://HOST')",
               Py_TYPE(self)->tp_name);
  return nullptr;
}

PyMethodDef reduce_method[] = {
    {"__reduce__", RefuseToReduce, METH_NOARGS, "Raises TypeError."},
    {nullptr, nullptr, 0, nullptr},
};

bool IsOfPybind(PyTypeObject* type) {
  return Py_TYPE(type) == py::detail::get_internals().default_metaclass;
}

}  // namespace

void GuardInstances(py::module_& m) {
  const auto names = py::reinterpret_borrow<py::dict>(m.attr("__dict__"));
  for (const auto& [name, value] : names) {
    if (!PyType_Check(value.ptr())) continue;
    auto* const type = reinterpret_cast<PyTypeObject*>(value.ptr());
    if (!IsOfPybind(type)) continue;
    py::detail::get_type_info(type)->operator_new = RefuseToAllocate;
    const auto own = py::reinterpret_borrow<py::object>(type->tp_dict);
    if (!own.contains("__reduce__")) {
      AddFastMethods(py::reinterpret_borrow<py::type>(value), reduce_method);
    }
  }
}

}  // namespace tidegate::python
