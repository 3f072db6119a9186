// tidegate._core.peer_of(): the client's address, which is the key of most requests; and
// tidegate._core.add_attributes(): the attributes that every request has.
#include "web/peer.h"

#include "limiter/classes.h"
#include "limiter/fast_call.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

struct Names {
  PyObject* const client = Interned("client");
  PyObject* const request_scope = Interned("scope");
  PyObject* const environ = Interned("environ");
  PyObject* const remote_address = Interned("REMOTE_ADDR");
  PyObject* const type = Interned("type");
  PyObject* const path = Interned("path");
  PyObject* const root_path = Interned("root_path");
  PyObject* const method = Interned("method");
  PyObject* const cost = Interned("cost");
  PyObject* const attributes[PlainRequest::kAttributes] = {Interned("endpoint"), method,
                                                           Interned("ip")};
};

const Names* names = nullptr;

bool IsText(PyObject* object, const char* text) {
  return PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, text) == 0;
}

// The attribute `name`, a new reference; null, without an exception, if there is none. Requests of
// WSGI have no scope, and an exception that nobody sees takes longer than all else here.
PyObject* OptionalAttribute(PyObject* object, PyObject* name) {
  PyObject* found = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  const int result = PyObject_GetOptionalAttr(object, name, &found);
#else
  const int result = _PyObject_LookupAttr(object, name, &found);
#endif
  if (result < 0) PyErr_Clear();
  return found;
}

// The ASGI scope of a request, a new reference: the request itself if it is a dict, or the
// attribute `scope` of a framework's request. Null, without an exception, for other requests.
PyObject* ScopeOf(PyObject* request) {
  if (PyDict_CheckExact(request)) {
    Py_INCREF(request);
    return request;
  }
  PyObject* const scope = OptionalAttribute(request, names->request_scope);
  if (scope == nullptr) return nullptr;
  PyObject* const kind =
      PyDict_CheckExact(scope) ? PyDict_GetItemWithError(scope, names->type) : nullptr;
  if (kind != nullptr && (IsText(kind, "http") || IsText(kind, "websocket"))) return scope;
  PyErr_Clear();
  Py_DECREF(scope);
  return nullptr;
}

// As ScopeOf(), or else the WSGI environ of a framework's request.
PyObject* SourceOf(PyObject* request) {
  PyObject* const scope = ScopeOf(request);
  if (scope != nullptr) return scope;
  PyObject* const environ = OptionalAttribute(request, names->environ);
  if (environ != nullptr && PyDict_CheckExact(environ)) return environ;
  Py_XDECREF(environ);
  return nullptr;
}

// The address that the connection of a scope or an environ came from, borrowed; null if it is not
// plain text.
PyObject* HostOf(PyObject* source) {
  PyObject* const client = PyDict_GetItemWithError(source, names->client);
  PyObject* host = nullptr;
  if (client == nullptr || client == Py_None) {
    host = PyDict_GetItemWithError(source, names->remote_address);
  } else if (PyTuple_Check(client) && PyTuple_GET_SIZE(client) > 0) {
    host = PyTuple_GET_ITEM(client, 0);
  } else if (PyList_Check(client) && PyList_GET_SIZE(client) > 0) {
    host = PyList_GET_ITEM(client, 0);
  }
  const bool is_plain = host != nullptr && PyUnicode_CheckExact(host) &&
                        PyUnicode_IS_COMPACT_ASCII(host) && PyUnicode_GET_LENGTH(host) > 0;
  return is_plain ? host : nullptr;
}

}  // namespace

PyObject* PlainPeer(PyObject* request) {
  PyObject* const source = SourceOf(request);
  if (source == nullptr) Py_RETURN_NONE;
  PyObject* host = HostOf(source);
  const bool has_colon =
      host != nullptr && PyUnicode_FindChar(host, ':', 0, PyUnicode_GET_LENGTH(host), 1) != -1;
  PyErr_Clear();
  if (host == nullptr || has_colon) host = Py_None;
  Py_INCREF(host);
  Py_DECREF(source);
  return host;
}

namespace {

PyObject* PeerOf(PyObject* /*module*/, PyObject* request) { return PlainPeer(request); }

// The text in `scope`, borrowed; null if it has none or an empty one.
PyObject* TextIn(PyObject* scope, PyObject* name) {
  PyObject* const text = PyDict_GetItemWithError(scope, name);
  return text != nullptr && PyUnicode_CheckExact(text) && PyUnicode_GET_LENGTH(text) > 0 ? text
                                                                                         : nullptr;
}

// The path in `scope` if it is inside of the application as it stands: it begins with a slash, ends
// in no line feed, which some routers do not see, and there is no root path. Borrowed, else null.
PyObject* PathIn(PyObject* scope) {
  PyObject* const path = TextIn(scope, names->path);
  if (path == nullptr || PyUnicode_READ_CHAR(path, 0) != '/' ||
      PyUnicode_READ_CHAR(path, PyUnicode_GET_LENGTH(path) - 1) == '\n') {
    return nullptr;
  }
  return TextIn(scope, names->root_path) == nullptr ? path : nullptr;
}

// (request, attributes): sets those of endpoint, method and ip that the dict `attributes` lacks,
// for a request of HTTP in the most frequent form. Returns False, and sets nothing, for other
// requests.
PyObject* AddAttributes(PyObject* /*module*/, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyDict_CheckExact(args[1])) {
    PyErr_SetString(PyExc_TypeError, "the arguments are others; expected a request and a dict");
    return nullptr;
  }
  const PlainRequest plain(args[0]);
  if (!plain) Py_RETURN_FALSE;
  for (const auto& [name, value] : plain.attributes()) {
    if (PyDict_SetDefault(args[1], name, value) == nullptr) return nullptr;
  }
  Py_RETURN_TRUE;
}

PyMethodDef functions[] = {
    {"peer_of", PeerOf, METH_O,
     "peer_of($module, request, /)\n--\n\nThe address of the connection, if it is plain."},
    {"add_attributes", AsMethod(AddAttributes), METH_FASTCALL,
     "add_attributes($module, request, attributes, /)\n--\n\n"
     "Sets endpoint, method and ip, as far as they are not set, if the request is plain."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* PlainRequest::Cost() { return names->cost; }

PlainRequest::PlainRequest(PyObject* request) {
  PyObject* const scope = ScopeOf(request);
  if (scope == nullptr) return;
  attributes_[0] = {names->attributes[0], PathIn(scope)};
  attributes_[1] = {names->attributes[1], TextIn(scope, names->method)};
  attributes_[2] = {names->attributes[2], HostOf(scope)};
  PyErr_Clear();
  is_plain_ = true;
  for (const auto& [name, value] : attributes_) {
    Py_XINCREF(value);
    is_plain_ = is_plain_ && value != nullptr;
  }
  Py_DECREF(scope);
}

PlainRequest::~PlainRequest() {
  for (const auto& [name, value] : attributes_) Py_XDECREF(value);
}

PyObject* PlainRequest::AttributesWith(PyObject* cost) const {
  return AttributeDict(cost, {attributes_[0].second, attributes_[1].second, attributes_[2].second});
}

PyObject* AttributeDict(PyObject* cost, PyObject* const (&values)[PlainRequest::kAttributes]) {
  py::object dict = py::reinterpret_steal<py::object>(PyDict_New());
  bool is_set = dict && PyDict_SetItem(dict.ptr(), names->cost, cost) == 0;
  for (size_t i = 0; is_set && i < PlainRequest::kAttributes; ++i) {
    is_set = PyDict_SetItem(dict.ptr(), names->attributes[i], values[i]) == 0;
  }
  return is_set ? dict.release().ptr() : nullptr;
}

void RegisterPeer(py::module_& m) {
  names = new Names;
  if (PyModule_AddFunctions(m.ptr(), functions) != 0) throw py::error_already_set();
}

}  // namespace tidegate::python
