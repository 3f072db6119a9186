// tidegate._core.KeyChecker and tidegate._core.RuleChecker: each charges a request in one call, by
// a limiter or by rules, and makes the decision with its header fields. What is rare is left to the
// package: a refusal that somebody observes, and rules that decide together for the first time.
// Types written against the C API, since each request calls one.
#include <pybind11/pybind11.h>
#include <structmember.h>

#include <cstddef>

#include "limiter/classes.h"
#include "limiter/decision.h"
#include "limiter/fast_call.h"
#include "limiter/limiter.h"
#include "rules/rule_limiter.h"
#include "web/peer.h"
#include "web/request_decision.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

// What a checker was made of. `kOwner` is asked for what is rare, and kept by decisions.
// While `kObservers` has no `refusals`, a refusal is made here; None stands for an owner that adds
// to its wait.
enum Part { kKind, kLimiter, kOwner, kObservers, kFields, kLimits, kParts, kStart = kFields };

struct CheckerObject {
  PyObject_HEAD PyObject* parts[kParts];
  vectorcallfunc call;
};

PyTypeObject key_checker_type{};  // filled in by RegisterCheckers()
PyTypeObject rule_checker_type{};

struct Names {
  PyObject* const check = Interned("check");
  PyObject* const fields_by_limit = Interned("fields_by_limit");
  PyObject* const finish = Interned("_finish");
  PyObject* const plans = Interned("plans");
  PyObject* const refusals = Interned("refusals");
  PyObject* const refuse = Interned("_refuse");
  PyObject* const none = PyTuple_New(0);
  PyObject* const no_extra = PyFloat_FromDouble(0.0);
};

const Names* names = nullptr;

PyObject* PartOf(PyObject* self, Part part) {
  return reinterpret_cast<CheckerObject*>(self)->parts[part];
}

py::object Taken(PyObject* object) { return py::reinterpret_steal<py::object>(object); }

// Whether a refusal is made here. -1 with an exception set if the observers are others.
int MakesRefusals(PyObject* self) {
  PyObject* const observers = PartOf(self, kObservers);
  if (observers == Py_None) return 0;
  const py::object refusals = Taken(PyObject_GetAttr(observers, names->refusals));
  const int observed = refusals ? PyObject_IsTrue(refusals.ptr()) : -1;
  return observed < 0 ? -1 : observed == 0;
}

// A decision as it was made, with nothing added to its wait.
PyObject* Made(PyObject* self, PyObject* fields, PyObject* decision, PyObject* limits,
               PyObject* charges) {
  PyObject* const of[] = {fields, decision, Py_None, names->no_extra, PartOf(self, kOwner),
                          limits, charges};
  return NewRequestDecision(PartOf(self, kKind), of);
}

// (request, key, cost): charges `key`, or the peer of the request if `key` is None. Returns a
// RequestDecision; or None, with nothing charged, if the peer is not plain.
PyObject* CheckKey(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords) {
  if (PyVectorcall_NARGS(count) != 3 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError,
                    "the arguments are others; expected a request, a key or None, and a cost");
    return nullptr;
  }
  const py::object key =
      args[1] == Py_None ? Taken(PlainPeer(args[0])) : py::reinterpret_borrow<py::object>(args[1]);
  if (key.is_none()) Py_RETURN_NONE;
  const py::object decision = Taken(HitLimiter(PartOf(self, kLimiter), key.ptr(), args[2]));
  if (!decision) return nullptr;
  const bool allowed = GetDecision(decision.ptr())->allowed;
  const int is_made_here = allowed ? 1 : MakesRefusals(self);
  if (is_made_here < 0) return nullptr;
  if (is_made_here == 1) {
    PyObject* const made = Made(self, PartOf(self, kFields), decision.ptr(), PartOf(self, kLimits),
                                allowed ? key.ptr() : names->none);
    if (made != nullptr) KeepCost(made, args[2]);
    return made;
  }
  PyObject* const of[] = {PartOf(self, kOwner), args[0], key.ptr(), args[2], decision.ptr()};
  return PyObject_VectorcallMethod(names->refuse, of, 5, nullptr);
}

// The plan of a decision on the limits of several rules, with the fields for the limit that binds;
// null, perhaps with an exception set, for other decisions, for refusals that are not made here,
// and if the rules that decided have no such plan yet. `_owner.plans` of the decision has the
// object of each plan; its `fields_by_limit` has the HeaderFields by binding limit, or is None.
struct FoundPlan {
  py::object plan;
  py::object fields;
};

FoundPlan PlanOf(PyObject* self, PyObject* decision) {
  const Decision& decided = *GetDecision(decision);
  if (OutcomesOf(decision).empty() || (!decided.allowed && MakesRefusals(self) != 1)) return {};
  const py::object plans = Taken(PyObject_GetAttr(DecisionOwner(decision).ptr(), names->plans));
  const py::object key = plans ? Taken(PlanKey(decision, PartOf(self, kStart))) : py::object();
  PyObject* const plan = key ? PyDict_GetItemWithError(plans.ptr(), key.ptr()) : nullptr;
  if (plan == nullptr) return {};
  const py::object fields = Taken(PyObject_GetAttr(plan, names->fields_by_limit));
  if (!fields || !PyTuple_CheckExact(fields.ptr()) ||
      decided.rule >= PyTuple_GET_SIZE(fields.ptr())) {
    return {};
  }
  return {py::reinterpret_borrow<py::object>(plan),
          py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(fields.ptr(), decided.rule))};
}

// The RequestDecision of a decision by rules, or None if no limit applies. `plain` is the request
// whose attributes were read here; null if `attributes` has them, with the cost.
PyObject* Finish(PyObject* self, PyObject* const* args, const py::object& decision,
                 const PlainRequest* plain, PyObject* attributes) {
  if (!decision) return nullptr;
  if (GetDecision(decision.ptr()) == nullptr) {
    PyErr_SetString(PyExc_TypeError, "check() of the limiter returned no Decision");
    return nullptr;
  }
  const FoundPlan found = PlanOf(self, decision.ptr());
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (found.plan) {
    const bool allowed = GetDecision(decision.ptr())->allowed;
    PyObject* const made = Made(self, found.fields.ptr(), decision.ptr(), found.plan.ptr(),
                                allowed ? attributes : names->none);
    if (made != nullptr && allowed && plain != nullptr) KeepRequest(made, args[1], *plain);
    return made;
  }
  const py::object read = plain == nullptr ? py::reinterpret_borrow<py::object>(attributes)
                                           : Taken(plain->AttributesWith(args[1]));
  if (!read) return nullptr;
  PyObject* const of[] = {PartOf(self, kOwner), args[0], read.ptr(), decision.ptr()};
  return PyObject_VectorcallMethod(names->finish, of, 4, nullptr);
}

// (request, cost, attributes): charges a request with these attributes, of which one is the cost,
// or with those that every request has if `attributes` is None. Returns a RequestDecision; None if
// no limit applies; or NotImplemented, with nothing charged, if attributes are missing here.
PyObject* CheckRequest(PyObject* self, PyObject* const* args, size_t count, PyObject* keywords) {
  if (PyVectorcall_NARGS(count) != 3 || keywords != nullptr ||
      (args[2] != Py_None && !PyDict_CheckExact(args[2]))) {
    PyErr_SetString(PyExc_TypeError,
                    "the arguments are others; expected a request, a cost, and attributes or None");
    return nullptr;
  }
  PyObject* const limiter = PartOf(self, kLimiter);
  if (args[2] != Py_None) {
    const py::object check = Taken(PyObject_GetAttr(limiter, names->check));
    if (!check) return nullptr;
    return Finish(self, args, Taken(PyObject_Call(check.ptr(), names->none, args[2])), nullptr,
                  args[2]);
  }
  const PlainRequest plain(args[0]);
  if (!plain) Py_RETURN_NOTIMPLEMENTED;
  const auto& read = plain.attributes();
  const NamedAttribute all[] = {{PlainRequest::Cost(), args[1]}, read[0], read[1], read[2]};
  return Finish(self, args, Taken(CheckRules(limiter, all)), &plain, Py_None);
}

PyObject* NewOf(PyTypeObject* type, PyObject* args, Py_ssize_t count, vectorcallfunc call) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  auto& object = *reinterpret_cast<CheckerObject*>(self);
  for (Py_ssize_t i = 0; i < count; ++i) {
    object.parts[i] = PyTuple_GET_ITEM(args, i);
    Py_INCREF(object.parts[i]);
  }
  object.call = call;
  return self;
}

// Whether `args` are `count` parts that begin as those of every checker.
bool AreParts(PyObject* args, PyObject* keywords, Py_ssize_t count) {
  return PyTuple_GET_SIZE(args) == count && keywords == nullptr &&
         IsRequestDecisionType(PyTuple_GET_ITEM(args, kKind));
}

PyObject* RefuseParts(const char* expected) {
  return PyErr_Format(PyExc_TypeError,
                      "the arguments are others; expected a class of RequestDecision, %s",
                      expected);
}

PyObject* NewKeyChecker(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  return AreParts(args, keywords, 6) && IsLimiter(PyTuple_GET_ITEM(args, kLimiter))
             ? NewOf(type, args, 6, CheckKey)
             : RefuseParts("a Limiter, an owner, observers, HeaderFields and limits");
}

PyObject* NewRuleChecker(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  return AreParts(args, keywords, 5) && IsRuleLimiter(PyTuple_GET_ITEM(args, kLimiter)) &&
                 PyBytes_CheckExact(PyTuple_GET_ITEM(args, kStart))
             ? NewOf(type, args, 5, CheckRequest)
             : RefuseParts("a RuleLimiter, an owner, observers and bytes");
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  for (int i = 0; i < kParts; ++i) Py_VISIT(PartOf(self, static_cast<Part>(i)));
  return 0;
}

void Dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  for (PyObject*& part : reinterpret_cast<CheckerObject*>(self)->parts) Py_CLEAR(part);
  Py_TYPE(self)->tp_free(self);
}

}  // namespace

void RegisterCheckers(py::module_& m) {
  names = new Names;
  // The parts stay: a call may run while its checker is cleared. Its owner, which is part of every
  // cycle, drops the checker.
  const CalledType kind = {sizeof(CheckerObject), offsetof(CheckerObject, call), Dealloc, Traverse,
                           /*clear=*/nullptr};
  AddCalledType(m, "tidegate._core.KeyChecker", key_checker_type, kind, NewKeyChecker,
                "Charges the key of a request, and makes the decision on it.");
  AddCalledType(m, "tidegate._core.RuleChecker", rule_checker_type, kind, NewRuleChecker,
                "Charges a request by rules, and makes the decision on it.");
}

}  // namespace tidegate::python
