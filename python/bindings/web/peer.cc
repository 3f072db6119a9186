// tidegate._core.peer_of(): the client's address, which is the key of most requests.
#include <pybind11/pybind11.h>

#include "classes.h"
#include "fast_call.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

struct Names {
  PyObject* const client = Interned("client");
  PyObject* const request_scope = Interned("scope");
  PyObject* const type = Interned("type");
};

const Names* names = nullptr;

bool IsText(PyObject* object, const char* text) {
  return PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, text) == 0;
}

// The address of the connection in the most frequent form: in an ASGI dict, in ASCII and without
// the colon of IPv6. Else None, and tidegate.keys.peer handles the request.
PyObject* PeerOf(PyObject* /*module*/, PyObject* request) {
  PyObject* scope = request;
  Py_INCREF(scope);
  if (!PyDict_CheckExact(request)) {
    Py_DECREF(scope);
    scope = PyObject_GetAttr(request, names->request_scope);
    if (scope == nullptr) {
      PyErr_Clear();
      Py_RETURN_NONE;
    }
    PyObject* const kind =
        PyDict_CheckExact(scope) ? PyDict_GetItemWithError(scope, names->type) : nullptr;
    if (kind == nullptr || !(IsText(kind, "http") || IsText(kind, "websocket"))) {
      PyErr_Clear();
      Py_DECREF(scope);
      Py_RETURN_NONE;
    }
  }
  PyObject* const client = PyDict_GetItemWithError(scope, names->client);
  PyObject* host = nullptr;
  if (client != nullptr && PyTuple_Check(client) && PyTuple_GET_SIZE(client) > 0) {
    host = PyTuple_GET_ITEM(client, 0);
  } else if (client != nullptr && PyList_Check(client) && PyList_GET_SIZE(client) > 0) {
    host = PyList_GET_ITEM(client, 0);
  }
  const bool is_plain = host != nullptr && PyUnicode_CheckExact(host) &&
                        PyUnicode_IS_COMPACT_ASCII(host) && PyUnicode_GET_LENGTH(host) > 0 &&
                        PyUnicode_FindChar(host, ':', 0, PyUnicode_GET_LENGTH(host), 1) == -1;
  if (!is_plain) {
    PyErr_Clear();
    host = Py_None;
  }
  Py_INCREF(host);
  Py_DECREF(scope);
  return host;
}

PyMethodDef functions[] = {
    {"peer_of", PeerOf, METH_O,
     "peer_of($module, request, /)\n--\n\nThe address of the connection, if it is plain."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void RegisterPeer(py::module_& m) {
  names = new Names;
  if (PyModule_AddFunctions(m.ptr(), functions) != 0) throw py::error_already_set();
}

}  // namespace tidegate::python
