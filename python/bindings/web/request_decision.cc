// tidegate._core.RequestDecision: a decision on a request, and the header fields of its response.
// A type written against the C API, since one is made for each request; and
// tidegate._core.HeaderFields, the templates of the fields.
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
#include <utility>

#include "limiter/classes.h"
#include "limiter/decision.h"
#include "limiter/fast_call.h"
#include "limiter/limiter.h"
#include "rules/rule_limiter.h"
#include "web/request_decision.h"
#include "web/response_headers.h"

namespace tidegate::python {
namespace {

struct RequestDecisionObject {
  PyObject_HEAD PyObject* fields;  // a HeaderFields
  PyObject* decision;
  int64_t decided_ns;
  double extra_s;  // added to the wait of a refusal
  // Only the subclass uses these.
  PyObject* limiter;
  PyObject* limits;
  PyObject* charges;
  PyObject* cost;  // as it was charged; may be null
  // Those of KeepRequest(). Not a dict, for the reason that DecisionObject gives.
  PyObject* attributes[PlainRequest::kAttributes];
};

PyTypeObject request_decision_type{};  // these are filled in by RegisterRequestDecision()
PyTypeObject* fields_type = nullptr;

RequestDecisionObject& Of(PyObject* self) {
  return *reinterpret_cast<RequestDecisionObject*>(self);
}

void Dealloc(PyObject* self) {
  RequestDecisionObject& object = Of(self);
  Py_XDECREF(object.fields);
  Py_XDECREF(object.decision);
  Py_XDECREF(object.limiter);
  Py_XDECREF(object.limits);
  Py_XDECREF(object.charges);
  Py_XDECREF(object.cost);
  for (PyObject* const value : object.attributes) Py_XDECREF(value);
  Py_TYPE(self)->tp_free(self);
}

// Makes one from (fields, decision, decided_ns, extra_s, limiter, limits, charges).
PyObject* NewOf(PyTypeObject* type, PyObject* const* args, Py_ssize_t count) {
  if (count != 7 || Py_TYPE(args[0]) != fields_type || HeldBy<HeaderFields>(args[0]) == nullptr ||
      GetDecision(args[1]) == nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "the arguments are others; expected HeaderFields, a Decision, its instant in "
                    "ns or None, extra seconds, "
                    "and a limiter, limits and charges to keep");
    return nullptr;
  }
  const int64_t decided_ns =
      args[2] == Py_None ? GetDecision(args[1])->at_ns : PyLong_AsLongLong(args[2]);
  const double extra_s = PyFloat_AsDouble(args[3]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  const auto kept = [args](Py_ssize_t i) {
    Py_INCREF(args[i]);
    return args[i];
  };
  RequestDecisionObject& object = Of(self);
  object.fields = kept(0);
  object.decision = kept(1);
  object.decided_ns = decided_ns;
  object.extra_s = extra_s;
  object.limiter = kept(4);
  object.limits = kept(5);
  object.charges = kept(6);
  return self;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  if (keywords != nullptr && PyDict_GET_SIZE(keywords) != 0) {
    PyErr_SetString(PyExc_TypeError, "takes no keywords");
    return nullptr;
  }
  return NewOf(type, PySequence_Fast_ITEMS(args), PyTuple_GET_SIZE(args));
}

// New() without a tuple.
PyObject* MakeByPosition(PyObject* type, PyObject* const* args, Py_ssize_t count) {
  return NewOf(reinterpret_cast<PyTypeObject*>(type), args, count);
}

// Calls `use` with the fields, the decision, the current values and what stands beside them, and
// returns its result.
template <typename Use>
PyObject* WithValues(PyObject* self, Use use) {
  return Guarded([&] {
    const RequestDecisionObject& object = Of(self);
    const HeaderFields& fields = *HeldBy<HeaderFields>(object.fields);
    const Decision& decision = *GetDecision(object.decision);
    const int64_t now_ns = fields.now();
    const RateFieldValues values =
        RateFieldValuesOf(decision, object.decided_ns, now_ns, object.extra_s);
    const Beside beside = fields.BesideOf(object.decision, object.decided_ns, now_ns);
    return use(fields, decision, values, beside).release().ptr();
  });
}

template <typename Kind>
PyObject* Encode(PyObject* self, PyObject* /*none*/) {
  return WithValues(self, [](const HeaderFields& fields, const Decision& decision,
                             const RateFieldValues& values, const Beside& beside) {
    py::object list = Stolen(PyList_New(0));
    fields.of<Kind>().Extend(list, decision, values, beside);
    return list;
  });
}

template <typename Kind>
PyObject* Merge(PyObject* self, PyObject* headers) {
  return WithValues(self, [&](const HeaderFields& fields, const Decision& decision,
                              const RateFieldValues& values, const Beside& beside) {
    py::object list = Stolen(PySequence_List(headers));
    fields.of<Kind>().Extend(list, decision, values, beside);
    return list;
  });
}

PyObject* Put(PyObject* self, PyObject* headers) {
  return WithValues(self, [&](const HeaderFields& fields, const Decision& decision,
                              const RateFieldValues& values, const Beside& beside) {
    if (!PyList_Check(headers))
      throw py::type_error("the headers are of another type; expected a list");
    fields.of<Raw>().Put(py::reinterpret_borrow<py::object>(headers), decision, values, beside);
    return py::object(py::none());
  });
}

PyObject* GetWait(PyObject* self, void* /*closure*/) {
  const RequestDecisionObject& object = Of(self);
  const auto wait_s = WaitSeconds(*GetDecision(object.decision), object.extra_s);
  if (!wait_s.has_value()) Py_RETURN_NONE;
  return PyLong_FromLongLong(*wait_s);
}

PyObject* GetCharges(PyObject* self, void* /*closure*/) {
  RequestDecisionObject& object = Of(self);
  if (object.attributes[0] == nullptr) {
    Py_INCREF(object.charges);
    return object.charges;
  }
  return AttributeDict(object.cost, object.attributes);
}

int SetCharges(PyObject* self, PyObject* charges, void* /*closure*/) {
  if (charges == nullptr) {
    PyErr_SetString(PyExc_AttributeError, "the charges cannot be deleted");
    return -1;
  }
  RequestDecisionObject& object = Of(self);
  for (PyObject*& value : object.attributes) Py_CLEAR(value);
  Py_INCREF(charges);
  std::swap(object.charges, charges);
  Py_DECREF(charges);
  return 0;
}

PyGetSetDef getters[] = {
    {"_charges", GetCharges, SetCharges, nullptr, nullptr},
    {"wait", GetWait, nullptr, "Seconds to wait after a refusal.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[] = {
    {"_make", AsMethod(MakeByPosition), METH_FASTCALL | METH_CLASS,
     "_make($type, fields, decision, decided_ns, extra_s, limiter, limits, charges, /)\n--\n\n"
     "As the constructor, and faster."},
    {"fields", Encode<Raw>, METH_NOARGS, "fields($self, /)\n--\n\nThe fields for ASGI."},
    {"text_fields", Encode<Text>, METH_NOARGS, "text_fields($self, /)\n--\n\nThe fields for WSGI."},
    {"merged", Merge<Raw>, METH_O, "merged($self, headers, /)\n--\n\nHeaders with the fields."},
    {"merged_text", Merge<Text>, METH_O,
     "merged_text($self, headers, /)\n--\n\nHeaders of WSGI with the fields."},
    {"put", Put, METH_O, "put($self, headers, /)\n--\n\nPuts the fields into headers."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {"decision", T_OBJECT, offsetof(RequestDecisionObject, decision), READONLY, "The decision."},
    {"limiter", T_OBJECT, offsetof(RequestDecisionObject, limiter), READONLY, nullptr},
    {"_cost", T_OBJECT, offsetof(RequestDecisionObject, cost), READONLY, nullptr},
    {"limits", T_OBJECT, offsetof(RequestDecisionObject, limits), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

}  // namespace

bool IsRequestDecision(PyObject* object) {
  return PyObject_TypeCheck(object, &request_decision_type);
}

bool IsRequestDecisionType(PyObject* object) {
  return PyType_Check(object) != 0 &&
         PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(object), &request_decision_type) != 0;
}

PyObject* NewRequestDecision(PyObject* type, PyObject* const (&of)[7]) {
  return NewOf(reinterpret_cast<PyTypeObject*>(type), of, 7);
}

void KeepCost(PyObject* decision, PyObject* cost) {
  Py_INCREF(cost);
  Of(decision).cost = cost;
}

void KeepRequest(PyObject* decision, PyObject* cost, const PlainRequest& request) {
  KeepCost(decision, cost);
  RequestDecisionObject& object = Of(decision);
  for (size_t i = 0; i < PlainRequest::kAttributes; ++i) {
    object.attributes[i] = request.attributes()[i].second;
    Py_INCREF(object.attributes[i]);
  }
}

PyObject* MergedHeaders(PyObject* decision, PyObject* headers) {
  return Merge<Raw>(decision, headers);
}

namespace {

std::function<int64_t()> ClockOf(const py::object& limiter) {
  if (IsLimiter(limiter.ptr())) return [owner = SharedLimiter(limiter)] { return owner->NowNs(); };
  return [store = TimedStoreOf(limiter)] { return store->NowNs(); };
}

}  // namespace

void RegisterRequestDecision(py::module_& m) {
  py::class_<HeaderFields> fields(m, "HeaderFields");
  fields_type = reinterpret_cast<PyTypeObject*>(fields.ptr());
  fields.def(py::init([](const py::object& limiter, const std::vector<Limit>& limits,
                         bool x_ratelimit, bool ietf, bool openai) {
               const RateFieldSet set = (x_ratelimit ? kXRateLimitFields : 0) |
                                        (ietf ? kIetfFields : 0) | (openai ? kOpenAiFields : 0) |
                                        SetOf(RateField::kRetryAfter);
               return std::make_unique<HeaderFields>(ClockOf(limiter), limits, set);
             }),
             py::arg("limiter"), py::arg("limits"), py::arg("x_ratelimit"), py::arg("ietf"),
             py::arg("openai") = false);
  m.def(
      "policy_member", [](const Limit& limit) { return py::bytes(PolicyMember(limit)); },
      py::arg("limit"));
  PyTypeObject& type = request_decision_type;
  type.tp_name = "tidegate._core.RequestDecision";
  type.tp_basicsize = sizeof(RequestDecisionObject);
  type.tp_new = New;
  type.tp_dealloc = Dealloc;
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  type.tp_doc = "A decision on a request, and the header fields of its response.";
  type.tp_methods = methods;
  type.tp_members = members;
  type.tp_getset = getters;
  AddType(m, "RequestDecision", type);
}

}  // namespace tidegate::python
