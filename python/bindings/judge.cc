// tidegate._core.Judge, what tidegate._guard.Guard inherits: from a request to a verdict in one
// call, where nothing has to be asked of it but a key. The rest is the guard's.
#include <pybind11/pybind11.h>

#include "classes.h"
#include "decision.h"
#include "fast_call.h"
#include "verdict.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

struct JudgeObject {
  PyObject_HEAD PyTypeObject* verdict_type;  // null: all is left to the guard
  PyObject* terms;
  PyObject* limiter;
  PyObject* cost;
  PyObject* observers;
  bool reads_peer;  // the key is the address of the connection
};

PyTypeObject judge_type{};  // filled in by RegisterJudge()

JudgeObject& Of(PyObject* self) { return *reinterpret_cast<JudgeObject*>(self); }

struct Names {
  PyObject* const asked_key = Interned("_asked_key");
  PyObject* const client = Interned("client");
  PyObject* const hit = Interned("hit");
  PyObject* const judge_otherwise = Interned("_judge_otherwise");
  PyObject* const request_scope = Interned("scope");
  PyObject* const times = Interned("times");
  PyObject* const type = Interned("type");
  PyObject* const verdict = Interned("_verdict");
};

const Names* names = nullptr;

int Traverse(PyObject* self, visitproc visit, void* arg) {
  JudgeObject& judge = Of(self);
  Py_VISIT(reinterpret_cast<PyObject*>(judge.verdict_type));
  Py_VISIT(judge.terms);
  Py_VISIT(judge.limiter);
  Py_VISIT(judge.cost);
  Py_VISIT(judge.observers);
  return 0;
}

int Clear(PyObject* self) {
  JudgeObject& judge = Of(self);
  Py_CLEAR(judge.verdict_type);
  Py_CLEAR(judge.terms);
  Py_CLEAR(judge.limiter);
  Py_CLEAR(judge.cost);
  Py_CLEAR(judge.observers);
  return 0;
}

void Dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  Clear(self);
  Py_TYPE(self)->tp_free(self);
}

// (verdict_type, terms, limiter, cost, observers, reads_peer)
PyObject* JudgeBy(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 6 || !IsVerdictType(args[0])) {
    PyErr_SetString(PyExc_TypeError,
                    "takes a type of verdicts, terms, a limiter, a cost, observers and a bool");
    return nullptr;
  }
  const int reads_peer = PyObject_IsTrue(args[5]);
  if (reads_peer < 0) return nullptr;
  Clear(self);
  JudgeObject& judge = Of(self);
  for (Py_ssize_t i = 0; i < 5; ++i) Py_INCREF(args[i]);
  judge.verdict_type = reinterpret_cast<PyTypeObject*>(args[0]);
  judge.terms = args[1];
  judge.limiter = args[2];
  judge.cost = args[3];
  judge.observers = args[4];
  judge.reads_peer = reads_peer != 0;
  Py_RETURN_NONE;
}

bool IsText(PyObject* object, const char* text) {
  return PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, text) == 0;
}

// The address of the connection, as most requests tell it: a new reference. nullptr, without an
// error, where tidegate.keys.peer has to be asked.
PyObject* PeerOf(PyObject* request) {
  PyObject* scope = request;
  Py_INCREF(scope);
  if (!PyDict_CheckExact(request)) {
    Py_DECREF(scope);
    scope = PyObject_GetAttr(request, names->request_scope);
    if (scope == nullptr) {
      PyErr_Clear();
      return nullptr;
    }
    PyObject* const kind =
        PyDict_CheckExact(scope) ? PyDict_GetItemWithError(scope, names->type) : nullptr;
    if (kind == nullptr || !(IsText(kind, "http") || IsText(kind, "websocket"))) {
      PyErr_Clear();
      Py_DECREF(scope);
      return nullptr;
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
  if (is_plain) {
    Py_INCREF(host);
  } else {
    PyErr_Clear();
    host = nullptr;
  }
  Py_DECREF(scope);
  return host;
}

// Whether nobody is to be told how long decisions take; -1 with the error set.
int IsUntimed(PyObject* observers) {
  PyObject* const times = PyObject_GetAttr(observers, names->times);
  if (times == nullptr) return -1;
  const int is_timed = PyObject_IsTrue(times);
  Py_DECREF(times);
  return is_timed < 0 ? -1 : static_cast<int>(is_timed == 0);
}

PyObject* Decided(PyObject* self, PyObject* request, PyObject* key) {
  const JudgeObject& judge = Of(self);
  PyObject* const asked[] = {judge.limiter, key, judge.cost};
  PyObject* const decision = PyObject_VectorcallMethod(names->hit, asked, 3, nullptr);
  if (decision == nullptr) return nullptr;
  const Decision* const decided = GetDecision(decision);
  PyObject* verdict = nullptr;
  if (decided == nullptr) {
    PyErr_SetString(PyExc_TypeError, "hit() returned no Decision");
  } else if (decided->allowed) {
    verdict = NewVerdict(judge.verdict_type, self, judge.terms, decision, Py_None, key);
  } else {
    PyObject* const call[] = {self, request, key, decision, Py_None};
    verdict = PyObject_VectorcallMethod(names->verdict, call, 5, nullptr);
  }
  Py_DECREF(decision);
  return verdict;
}

PyObject* JudgeRequest(PyObject* self, PyObject* const* args, Py_ssize_t count,
                       PyObject* keywords) {
  const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
  if (count != 1 || named > 1 ||
      (named == 1 && !IsText(PyTuple_GET_ITEM(keywords, 0), "blocking"))) {
    PyErr_SetString(PyExc_TypeError, "judge() takes a request, and `blocking` by name");
    return nullptr;
  }
  PyObject* const request = args[0];
  PyObject* const blocking = named == 1 ? args[1] : Py_False;
  const JudgeObject& judge = Of(self);
  const int is_quick = judge.verdict_type == nullptr ? 0 : IsUntimed(judge.observers);
  if (is_quick < 0) return nullptr;
  if (is_quick == 0) {
    PyObject* const call[] = {self, request, blocking};
    return PyObject_VectorcallMethod(names->judge_otherwise, call, 3, nullptr);
  }
  PyObject* key = judge.reads_peer ? PeerOf(request) : nullptr;
  if (key == nullptr) {
    key = PyObject_CallMethodOneArg(self, names->asked_key, request);
    if (key == nullptr) return nullptr;
  }
  PyObject* verdict = nullptr;
  if (PyUnicode_CheckExact(key)) {
    verdict = Decided(self, request, key);
  } else {
    PyObject* const call[] = {self, request, blocking, key};
    verdict = PyObject_VectorcallMethod(names->judge_otherwise, call, 4, nullptr);
  }
  Py_DECREF(key);
  return verdict;
}

PyMethodDef methods[] = {
    {"judge", AsMethod(JudgeRequest), METH_FASTCALL | METH_KEYWORDS,
     "judge($self, request, /, *, blocking=False)\n--\n\n"
     "Charges the request; None where it is none of the limiter's business."},
    {"_judge_by", AsMethod(JudgeBy), METH_FASTCALL,
     "_judge_by($self, verdict_type, terms, limiter, cost, observers, reads_peer, /)\n--\n\n"
     "Has requests judged here, by a limiter that never waits."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void RegisterJudge(py::module_& m) {
  names = new Names;
  PyTypeObject& type = judge_type;
  type.tp_name = "tidegate._core.Judge";
  type.tp_basicsize = sizeof(JudgeObject);
  type.tp_new = PyType_GenericNew;
  type.tp_dealloc = Dealloc;
  type.tp_traverse = Traverse;
  type.tp_clear = Clear;
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
  type.tp_doc = "What judges requests of which nothing is asked but a key.";
  type.tp_methods = methods;
  AddType(m, "Judge", type);
}

}  // namespace tidegate::python
