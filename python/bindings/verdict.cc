// tidegate._core.Verdict, what tidegate._guard.Verdict inherits: a decision on a request with
// what its response is told. A type written against the C API, since one is made for each
// request; and tidegate._core.Fields, which it tells by.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "classes.h"
#include "decision.h"
#include "fast_call.h"
#include "fields.h"
#include "limiter.h"
#include "verdict.h"

namespace tidegate::python {
namespace {

struct VerdictObject {
  PyObject_HEAD PyObject* guard;
  PyObject* terms;
  PyObject* fields;
  PyObject* decision;
  PyObject* charges;
  int64_t decided_ns;
  double extra;  // seconds
};

PyTypeObject verdict_type{};  // both are filled in by RegisterVerdict()
PyTypeObject* fields_type = nullptr;

VerdictObject& Of(PyObject* self) { return *reinterpret_cast<VerdictObject*>(self); }

void Dealloc(PyObject* self) {
  VerdictObject& verdict = Of(self);
  Py_XDECREF(verdict.guard);
  Py_XDECREF(verdict.terms);
  Py_XDECREF(verdict.fields);
  Py_XDECREF(verdict.decision);
  Py_XDECREF(verdict.charges);
  Py_TYPE(self)->tp_free(self);
}

// (guard, terms, decision, decided_ns, charges)
PyObject* New(PyTypeObject* type, PyObject* args, PyObject* names) {
  if (PyTuple_GET_SIZE(args) != 5 || names != nullptr ||
      GetDecision(PyTuple_GET_ITEM(args, 2)) == nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "takes a guard, terms, a Decision, None or its instant in ns, and charges");
    return nullptr;
  }
  return NewVerdict(type, PyTuple_GET_ITEM(args, 0), PyTuple_GET_ITEM(args, 1),
                    PyTuple_GET_ITEM(args, 2), PyTuple_GET_ITEM(args, 3),
                    PyTuple_GET_ITEM(args, 4));
}

// `use` is called with the fields, the decision and what is told of it, and returns the answer.
template <typename Use>
PyObject* Telling(PyObject* self, Use use) {
  try {
    const VerdictObject& verdict = Of(self);
    const Fields& fields = *HeldBy<Fields>(verdict.fields);
    const Decision& decision = *GetDecision(verdict.decision);
    const int64_t now_ns = fields.limiter->NowNs();
    const Told told = TellOf(decision, verdict.decided_ns, now_ns, verdict.extra);
    return use(fields, decision, told).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const py::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <typename Kind>
PyObject* Encode(PyObject* self, PyObject* /*none*/) {
  return Telling(self, [](const Fields& fields, const Decision& decision, const Told& told) {
    py::object list = Stolen(PyList_New(0));
    fields.of<Kind>().Extend(list, decision, told);
    return list;
  });
}

template <typename Kind>
PyObject* Merge(PyObject* self, PyObject* headers) {
  return Telling(self, [&](const Fields& fields, const Decision& decision, const Told& told) {
    py::object list = Stolen(PySequence_List(headers));
    fields.of<Kind>().Extend(list, decision, told);
    return list;
  });
}

PyObject* Put(PyObject* self, PyObject* headers) {
  return Telling(self, [&](const Fields& fields, const Decision& decision, const Told& told) {
    if (!PyList_Check(headers)) throw py::type_error("a list of headers is expected");
    fields.of<Raw>().Put(py::reinterpret_borrow<py::object>(headers), decision, told);
    return py::object(py::none());
  });
}

PyObject* GetWait(PyObject* self, void* /*closure*/) {
  const VerdictObject& verdict = Of(self);
  const auto wait_s = WaitOf(*GetDecision(verdict.decision), verdict.extra);
  if (!wait_s.has_value()) Py_RETURN_NONE;
  return PyLong_FromLongLong(*wait_s);
}

PyGetSetDef getters[] = {
    {"wait", GetWait, nullptr, "Seconds that a refusal tells to wait.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[] = {
    {"fields", Encode<Raw>, METH_NOARGS, "fields($self, /)\n--\n\nThe fields for ASGI."},
    {"text_fields", Encode<Text>, METH_NOARGS, "text_fields($self, /)\n--\n\nThe fields for WSGI."},
    {"merged", Merge<Raw>, METH_O, "merged($self, headers, /)\n--\n\nHeaders with the fields."},
    {"merged_text", Merge<Text>, METH_O,
     "merged_text($self, headers, /)\n--\n\nHeaders of WSGI with the fields."},
    {"put", Put, METH_O, "put($self, headers, /)\n--\n\nPuts the fields into headers."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"guard", T_OBJECT, offsetof(VerdictObject, guard), READONLY, "Whose limit binds."},
    {"decision", T_OBJECT, offsetof(VerdictObject, decision), READONLY, "What was decided."},
    {"_terms", T_OBJECT, offsetof(VerdictObject, terms), READONLY, nullptr},
    {"_charges", T_OBJECT, offsetof(VerdictObject, charges), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

}  // namespace

bool IsVerdictType(PyObject* type) {
  return PyType_Check(type) &&
         PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), &verdict_type) != 0;
}

PyObject* NewVerdict(PyTypeObject* type, PyObject* guard, PyObject* terms, PyObject* decision,
                     PyObject* decided_ns, PyObject* charges) {
  static PyObject* const fields_name = PyUnicode_InternFromString("fields");
  static PyObject* const extra_wait = PyUnicode_InternFromString("extra_wait");
  PyObject* const self = type->tp_alloc(type, 0);  // all zero
  if (self == nullptr) return nullptr;
  VerdictObject& verdict = Of(self);
  const auto kept = [](PyObject* object) {
    Py_INCREF(object);
    return object;
  };
  verdict.guard = kept(guard);
  verdict.terms = kept(terms);
  verdict.decision = kept(decision);
  verdict.charges = kept(charges);
  verdict.fields = PyObject_GetAttr(terms, fields_name);
  if (verdict.fields != nullptr &&
      (Py_TYPE(verdict.fields) != fields_type || HeldBy<Fields>(verdict.fields) == nullptr)) {
    PyErr_SetString(PyExc_TypeError, "the terms have no Fields");
  }
  const Decision& decided = *GetDecision(decision);
  verdict.decided_ns = decided_ns == Py_None ? decided.at_ns : PyLong_AsLongLong(decided_ns);
  if (!decided.allowed && PyErr_Occurred() == nullptr) {
    // Drawn once, so that fields and body agree.
    PyObject* const extra = PyObject_CallMethodOneArg(guard, extra_wait, decision);
    if (extra != nullptr) {
      verdict.extra = PyFloat_AsDouble(extra);
      Py_DECREF(extra);
    }
  }
  if (PyErr_Occurred() != nullptr) {
    Py_DECREF(self);
    return nullptr;
  }
  return self;
}

void RegisterVerdict(py::module_& m) {
  py::class_<Fields> fields(m, "Fields");
  fields_type = reinterpret_cast<PyTypeObject*>(fields.ptr());
  fields.def(py::init([](const py::object& limiter, const Rules& rules, bool x_ratelimit,
                         const std::optional<std::string>& policy) {
               return std::make_unique<Fields>(SharedLimiter(limiter), rules, x_ratelimit, policy);
             }),
             py::arg("limiter"), py::arg("rules"), py::arg("x_ratelimit"), py::arg("policy"));
  PyTypeObject& type = verdict_type;
  type.tp_name = "tidegate._core.Verdict";
  type.tp_basicsize = sizeof(VerdictObject);
  type.tp_new = New;
  type.tp_dealloc = Dealloc;
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  type.tp_doc = "A decision on a request, and what its response is told.";
  type.tp_methods = methods;
  type.tp_members = members;
  type.tp_getset = getters;
  AddType(m, "Verdict", type);
}

}  // namespace tidegate::python
