// tidegate._core.HeaderSend, a `send` of ASGI that adds header fields to the one message that has
// headers; and tidegate._core.HeaderStart, a `start_response` of WSGI that adds them. Types written
// against the C API, since one is made for each request.
#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstddef>

#include "limiter/classes.h"
#include "limiter/fast_call.h"
#include "web/request_decision.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

// An object of either type.
struct HeaderObject {
  PyObject_HEAD PyObject* server;  // its `send` or `start_response`
  PyObject* fields;                // a RequestDecision, or a sequence of them
  vectorcallfunc call;
};

PyTypeObject header_send_type{};  // these are filled in by RegisterHeaderSend()
PyTypeObject header_start_type{};

HeaderObject& Of(PyObject* self) { return *reinterpret_cast<HeaderObject*>(self); }

struct Names {
  PyObject* const type = Interned("type");
  PyObject* const headers = Interned("headers");
  PyObject* const merged_text = Interned("merged_text");
  PyObject* const none = PyTuple_New(0);
};

const Names* names = nullptr;

constexpr const char* kWithHeaders[] = {"http.response.start", "websocket.accept",
                                        "websocket.http.response.start"};

// Whether `message` has headers; -1 with the error set.
int HasHeaders(PyObject* message) {
  PyObject* const kind = PyObject_GetItem(message, names->type);
  if (kind == nullptr) return -1;
  int found = 0;
  if (PyUnicode_Check(kind)) {
    for (const char* each : kWithHeaders) {
      if (PyUnicode_CompareWithASCIIString(kind, each) == 0) found = 1;
    }
  }
  Py_DECREF(kind);
  return found;
}

// A copy of `message`, which the application may send again, with the fields.
PyObject* WithHeaders(const HeaderObject& self, PyObject* message) {
  PyObject* const copy = PyDict_New();
  if (copy == nullptr || PyDict_Update(copy, message) != 0) {
    Py_XDECREF(copy);
    return nullptr;
  }
  PyObject* headers = PyDict_GetItemWithError(copy, names->headers);
  if (headers == nullptr) headers = names->none;
  PyObject* const merged =
      PyErr_Occurred() == nullptr ? MergedHeaders(self.fields, headers) : nullptr;
  if (merged == nullptr || PyDict_SetItem(copy, names->headers, merged) != 0) {
    Py_XDECREF(merged);
    Py_DECREF(copy);
    return nullptr;
  }
  Py_DECREF(merged);
  return copy;
}

PyObject* Send(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords) {
  if (PyVectorcall_NARGS(count) != 1 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError, "send() takes one message");
    return nullptr;
  }
  const HeaderObject& object = Of(self);
  const int has_headers = HasHeaders(args[0]);
  if (has_headers < 0) return nullptr;
  // Returns the server's awaitable: a coroutine around it would be one more for each message.
  if (has_headers == 0) return PyObject_CallOneArg(object.server, args[0]);
  PyObject* const message = WithHeaders(object, args[0]);
  if (message == nullptr) return nullptr;
  PyObject* const sent = PyObject_CallOneArg(object.server, message);
  Py_DECREF(message);
  return sent;
}

// (status, headers[, exc_info]): the fields of the last decision come first.
PyObject* Start(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords) {
  const Py_ssize_t given = PyVectorcall_NARGS(count);
  if (given < 2 || given > 3 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "start_response() was called with others; expected a status, headers and "
                    "perhaps exc_info, by position");
    return nullptr;
  }
  const HeaderObject& object = Of(self);
  // Whoever holds the decisions may add some meanwhile.
  const auto decisions = py::reinterpret_steal<py::object>(PySequence_Tuple(object.fields));
  if (!decisions) return nullptr;
  auto headers = py::reinterpret_borrow<py::object>(args[1]);
  for (Py_ssize_t i = PyTuple_GET_SIZE(decisions.ptr()); i-- > 0;) {
    PyObject* const of[] = {PyTuple_GET_ITEM(decisions.ptr(), i), headers.ptr()};
    headers = py::reinterpret_steal<py::object>(
        PyObject_VectorcallMethod(names->merged_text, of, 2, nullptr));
    if (!headers) return nullptr;
  }
  PyObject* const all[] = {args[0], headers.ptr(), given == 3 ? args[2] : nullptr};
  return PyObject_Vectorcall(object.server, all, static_cast<size_t>(given), nullptr);
}

PyObject* NewOf(PyTypeObject* type, PyObject* args, vectorcallfunc call) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  HeaderObject& object = Of(self);
  object.server = PyTuple_GET_ITEM(args, 0);
  object.fields = PyTuple_GET_ITEM(args, 1);
  object.call = call;
  Py_INCREF(object.server);
  Py_INCREF(object.fields);
  return self;
}

PyObject* NewSend(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  if (PyTuple_GET_SIZE(args) != 2 || keywords != nullptr ||
      !IsRequestDecision(PyTuple_GET_ITEM(args, 1))) {
    PyErr_SetString(
        PyExc_TypeError,
        "the arguments are others; expected the `send` of a server and a RequestDecision");
    return nullptr;
  }
  return NewOf(type, args, Send);
}

PyObject* NewStart(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  if (PyTuple_GET_SIZE(args) != 2 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "the arguments are others; expected the `start_response` of a server and a "
                    "sequence of RequestDecision");
    return nullptr;
  }
  return NewOf(type, args, Start);
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Of(self).server);
  Py_VISIT(Of(self).fields);
  return 0;
}

int Clear(PyObject* self) {
  Py_CLEAR(Of(self).server);
  Py_CLEAR(Of(self).fields);
  return 0;
}

void Dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Clear(self);
  Py_TYPE(self)->tp_free(self);
}

}  // namespace

void RegisterHeaderSend(py::module_& m) {
  names = new Names;
  const CalledType kind = {sizeof(HeaderObject), offsetof(HeaderObject, call), Dealloc, Traverse,
                           Clear};
  AddCalledType(m, "tidegate._core.HeaderSend", header_send_type, kind, NewSend,
                "`send`, which adds header fields to the message that has headers.");
  AddCalledType(m, "tidegate._core.HeaderStart", header_start_type, kind, NewStart,
                "`start_response`, which adds header fields.");
}

}  // namespace tidegate::python
