#include "limiter/functions.h"

#include <utility>

#include "limiter/gil.h"

namespace tidegate::python {

namespace py = pybind11;

std::shared_ptr<py::object> Keep(py::object object) {
  return {new py::object(std::move(object)), [](py::object* kept) {
            if (!WithGil([&] { *kept = py::object(); })) (void)kept->release();
            delete kept;
          }};
}

py::object Referable(const py::object& function) {
  if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(function.ptr()))) return function;
  return py::module_::import("functools").attr("partial")(function);
}

WeakFunction::WeakFunction(const py::object& function) {
  PyObject* const reference = PyWeakref_NewRef(function.ptr(), nullptr);
  if (reference == nullptr) throw py::error_already_set();
  reference_ = Keep(py::reinterpret_steal<py::object>(reference));
}

py::object WeakFunction::get() const {
#if PY_VERSION_HEX >= 0x030d0000
  PyObject* function = nullptr;
  if (PyWeakref_GetRef(reference_->ptr(), &function) < 0) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(function);
#else
  PyObject* const function = PyWeakref_GetObject(reference_->ptr());
  return function == Py_None ? py::object() : py::reinterpret_borrow<py::object>(function);
#endif
}

}  // namespace tidegate::python
