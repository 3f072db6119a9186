// tidegate._core.HeaderSend: a `send` of ASGI that adds header fields to the one message that has
// headers. A type written against the C API, since one is made for each request.
#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstddef>

#include "limiter/classes.h"
#include "limiter/fast_call.h"
#include "web/request_decision.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

struct HeaderSendObject {
  PyObject_HEAD PyObject* send;
  PyObject* decision;
  vectorcallfunc call;
};

PyTypeObject header_send_type{};  // filled in by RegisterHeaderSend()

HeaderSendObject& Of(PyObject* self) { return *reinterpret_cast<HeaderSendObject*>(self); }

struct Names {
  PyObject* const type = Interned("type");
  PyObject* const headers = Interned("headers");
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
PyObject* WithHeaders(const HeaderSendObject& self, PyObject* message) {
  PyObject* const copy = PyDict_New();
  if (copy == nullptr || PyDict_Update(copy, message) != 0) {
    Py_XDECREF(copy);
    return nullptr;
  }
  PyObject* headers = PyDict_GetItemWithError(copy, names->headers);
  if (headers == nullptr) headers = names->none;
  PyObject* const merged =
      PyErr_Occurred() == nullptr ? MergedHeaders(self.decision, headers) : nullptr;
  if (merged == nullptr || PyDict_SetItem(copy, names->headers, merged) != 0) {
    Py_XDECREF(merged);
    Py_DECREF(copy);
    return nullptr;
  }
  Py_DECREF(merged);
  return copy;
}

PyObject* Call(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords) {
  if (PyVectorcall_NARGS(count) != 1 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError, "send() takes one message");
    return nullptr;
  }
  const HeaderSendObject& object = Of(self);
  const int has_headers = HasHeaders(args[0]);
  if (has_headers < 0) return nullptr;
  // Returns the server's awaitable: a coroutine around it would be one more for each message.
  if (has_headers == 0) return PyObject_CallOneArg(object.send, args[0]);
  PyObject* const message = WithHeaders(object, args[0]);
  if (message == nullptr) return nullptr;
  PyObject* const sent = PyObject_CallOneArg(object.send, message);
  Py_DECREF(message);
  return sent;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  if (PyTuple_GET_SIZE(args) != 2 || keywords != nullptr ||
      !IsRequestDecision(PyTuple_GET_ITEM(args, 1))) {
    PyErr_SetString(
        PyExc_TypeError,
        "the arguments are others; expected the `send` of a server and a RequestDecision");
    return nullptr;
  }
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  HeaderSendObject& object = Of(self);
  object.send = PyTuple_GET_ITEM(args, 0);
  object.decision = PyTuple_GET_ITEM(args, 1);
  object.call = Call;
  Py_INCREF(object.send);
  Py_INCREF(object.decision);
  return self;
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Of(self).send);
  Py_VISIT(Of(self).decision);
  return 0;
}

int Clear(PyObject* self) {
  Py_CLEAR(Of(self).send);
  Py_CLEAR(Of(self).decision);
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
  PyTypeObject& type = header_send_type;
  type.tp_name = "tidegate._core.HeaderSend";
  type.tp_basicsize = sizeof(HeaderSendObject);
  type.tp_new = New;
  type.tp_dealloc = Dealloc;
  type.tp_traverse = Traverse;
  type.tp_clear = Clear;
  type.tp_call = PyVectorcall_Call;
  type.tp_vectorcall_offset = offsetof(HeaderSendObject, call);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_doc = "`send`, which adds header fields to the message that has headers.";
  AddType(m, "HeaderSend", type);
}

}  // namespace tidegate::python
