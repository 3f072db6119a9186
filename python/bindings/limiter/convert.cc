#include "limiter/convert.h"

#include <limits>

#include "tidegate/step.h"

namespace tidegate::python {
namespace {

// Borrowed for the life of the process: the module never goes away.
PyObject* ErrorType(Error error) {
  static PyObject* const module = py::module_::import("tidegate.limiter.errors").release().ptr();
  const char* name = error == Error::kConfiguration  ? "ConfigurationError"
                     : error == Error::kArgumentType ? "ArgumentTypeError"
                     : error == Error::kStorage      ? "StorageError"
                                                     : "LimiterClosedError";
  PyObject* type = PyObject_GetAttrString(module, name);
  if (type == nullptr) throw py::error_already_set();
  Py_DECREF(type);  // the module holds it
  return type;
}

}  // namespace

void SetError(Error error, const std::string& message) {
  PyErr_SetString(ErrorType(error), message.c_str());
}

void Throw(Error error, const std::string& message) {
  SetError(error, message);
  throw py::error_already_set();
}

void ThrowUnlessOk(const absl::Status& status) {
  if (status.ok()) return;
  const bool given = absl::IsInvalidArgument(status) || absl::IsOutOfRange(status);
  Throw(given ? Error::kConfiguration : Error::kStorage,
        std::string(status.message().data(), status.message().size()));
}

std::string Shown(PyObject* object) {
  constexpr size_t kMost = 80;
  PyObject* repr = PyObject_Repr(object);
  PyObject* utf8 =
      repr != nullptr ? PyUnicode_AsEncodedString(repr, "utf-8", "backslashreplace") : nullptr;
  const char* text = utf8 != nullptr ? PyBytes_AsString(utf8) : nullptr;
  std::string shown = text != nullptr ? text : "an object without a repr";
  Py_XDECREF(utf8);
  Py_XDECREF(repr);
  PyErr_Clear();
  if (shown.size() > kMost) {
    size_t end = kMost;
    while ((static_cast<unsigned char>(shown[end]) & 0xC0) == 0x80) --end;  // within a character
    shown = shown.substr(0, end) + "...";
  }
  return shown + " of type " + Py_TYPE(object)->tp_name;
}

bool KeyView::ReadOther(PyObject* key) {
  if (PyUnicode_Check(key)) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(key, &size);
    if (data != nullptr) {
      view_ = {data, static_cast<size_t>(size)};
    } else {
      PyErr_Clear();
      encoded_ = py::reinterpret_steal<py::object>(
          PyUnicode_AsEncodedString(key, "utf-8", "surrogatepass"));
      if (!encoded_) return false;
      view_ = {PyBytes_AS_STRING(encoded_.ptr()),
               static_cast<size_t>(PyBytes_GET_SIZE(encoded_.ptr()))};
    }
  } else if (PyBytes_Check(key)) {
    view_ = {PyBytes_AS_STRING(key), static_cast<size_t>(PyBytes_GET_SIZE(key))};
  } else {
    SetError(Error::kArgumentType,
             "the key is " + Shown(key) + "; expected a non-empty str or bytes");
    return false;
  }
  if (view_.empty()) {
    SetError(Error::kConfiguration,
             "the key is empty; expected a non-empty str or bytes (all callers "
             "without a key would share one limit)");
    return false;
  }
  return true;
}

py::object IntFrom(PyObject* value, const char* what, const char* accepted) {
  PyObject* index = nullptr;
  if (!PyBool_Check(value) && PyIndex_Check(value) != 0) {
    index = PyNumber_Index(value);
    // An array, for example, is not an int unless it is a scalar.
    if (index == nullptr && PyErr_ExceptionMatches(PyExc_TypeError) == 0) return {};
  }
  if (index == nullptr) {
    PyErr_Clear();
    SetError(Error::kArgumentType,
             std::string(what) + " is " + Shown(value) + "; expected " + accepted);
  }
  return py::reinterpret_steal<py::object>(index);
}

int64_t NsFrom(const py::handle& ns, const char* what) {
  const py::object index = IntFrom(ns.ptr(), what, "an int of nanoseconds");
  if (!index) throw py::error_already_set();
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0) return overflow < 0 ? std::numeric_limits<int64_t>::min() : kMaxInstantNs;
  return value;
}

bool ReadCost(PyObject* cost, int64_t* value) {
  constexpr const char* kAccepted = "an int from 1 up";
  const py::object index = IntFrom(cost, "the cost", kAccepted);
  if (!index) return false;
  int overflow = 0;
  *value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow > 0) {
    *value = std::numeric_limits<int64_t>::max();
  } else if (overflow < 0 || *value < 1) {
    SetError(Error::kConfiguration, "the cost is " + Shown(cost) + "; expected " + kAccepted);
    return false;
  }
  return true;
}

}  // namespace tidegate::python
