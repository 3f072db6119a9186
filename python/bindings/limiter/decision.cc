#include "limiter/decision.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <vector>

#include "limiter/convert.h"
#include "limiter/fast_call.h"
#include "tidegate/limit.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

// The outcome of each limit of a plan. The decisions follow it in the same memory.
struct PlanOutcomes {
  PyObject* tuple;  // made when the attribute is read first
  size_t count;

  Decision* decisions() { return reinterpret_cast<Decision*>(this + 1); }
};

// Decisions may live as long as the connection of their request, so this type does not take part
// in garbage collection.
struct DecisionObject {
  PyObject_HEAD Decision decision;
  PyObject* owner;
  PlanOutcomes* outcomes;  // null if the caller did not ask for them
};

PyTypeObject decision_type{};  // filled in by RegisterDecision()
PyNumberMethods as_number{};

const Decision& Of(PyObject* self) { return reinterpret_cast<DecisionObject*>(self)->decision; }

// Freed decisions, without outcomes, for reuse. Guarded by the GIL.
#if !defined(Py_GIL_DISABLED)
constexpr int kMostFree = 64;
DecisionObject* free_decisions[kMostFree];
int free_count = 0;
#endif

void Dealloc(PyObject* self) {
  auto* object = reinterpret_cast<DecisionObject*>(self);
  Py_DECREF(object->owner);
  if (object->outcomes != nullptr) {
    Py_XDECREF(object->outcomes->tuple);
    PyObject_Free(object->outcomes);
    object->outcomes = nullptr;
  }
#if !defined(Py_GIL_DISABLED)
  if (free_count < kMostFree) {
    free_decisions[free_count++] = object;
    return;
  }
#endif
  PyObject_Free(self);
}

// Seconds that are never less than the nanoseconds: multiplied by 1e9 again, as by
// ManualClock.advance(), they give no smaller value. Below 2^51 ns rounding ensures that; beyond
// 2^53, where a double cannot represent each nanosecond, they are rounded up.
double Seconds(int64_t ns) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (ns == Decision::kNever) return kInfinity;
  double seconds = static_cast<double>(ns) / 1e9;
  if (ns < int64_t{1} << 51) return seconds;
  const auto whole = static_cast<double>(ns);
  const auto rest = static_cast<double>(ns - static_cast<int64_t>(whole));
  const auto is_early = [&] {
    if (static_cast<int64_t>(std::nearbyint(seconds * 1e9)) < ns) return true;
    return ns >= int64_t{1} << 53 && std::fma(seconds, 1e9, -whole) < rest;
  };
  while (is_early()) seconds = std::nextafter(seconds, kInfinity);
  return seconds;
}

PyObject* Text(const std::string& text) {
  return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* GetAllowed(PyObject* self, void*) { return PyBool_FromLong(Of(self).allowed); }
PyObject* GetLimit(PyObject* self, void*) {
  return PyLong_FromLongLong(Of(self).limit->capacity());
}
PyObject* GetRemaining(PyObject* self, void*) { return PyLong_FromLongLong(Of(self).remaining()); }
PyObject* GetRetryAfter(PyObject* self, void*) {
  return PyFloat_FromDouble(Seconds(Of(self).retry_after_ns));
}
PyObject* GetResetAfter(PyObject* self, void*) {
  return PyFloat_FromDouble(Seconds(Of(self).reset_after_ns));
}
PyObject* GetDelay(PyObject* self, void*) { return PyFloat_FromDouble(Seconds(Of(self).delay_ns)); }
PyObject* RuleName(const Decision& decision) {
  const std::string& rule = decision.limit->rule();
  if (rule.empty()) Py_RETURN_NONE;
  return Text(rule);
}
PyObject* GetRule(PyObject* self, void*) { return RuleName(Of(self)); }
PyObject* GetIndex(PyObject* self, void*) { return PyLong_FromUnsignedLong(Of(self).rule); }
PyObject* GetLeased(PyObject* self, void*) { return PyBool_FromLong(Of(self).leased); }
PyObject* GetBehind(PyObject* self, void*) { return PyBool_FromLong(Of(self).behind); }
PyObject* GetDegraded(PyObject* self, void*) { return PyBool_FromLong(Of(self).degraded); }
PyObject* GetChargedIn(PyObject* self, void*) {
  static PyObject* const names[] = {Interned("store"), Interned("fallback"), Interned("nowhere")};
  PyObject* const name = names[static_cast<size_t>(Of(self).charged_in(0))];
  Py_INCREF(name);
  return name;
}

PyObject* GetCharged(PyObject* self, void*) {
  const int64_t charged = Of(self).charged;
  if (charged == Decision::kUnset) Py_RETURN_NONE;
  return PyLong_FromLongLong(charged);
}

PyObject* GetDebt(PyObject* self, void*) { return PyLong_FromLongLong(Of(self).debt()); }

PyObject* GetOutcomes(PyObject* self, void*) {
  const auto& object = *reinterpret_cast<DecisionObject*>(self);
  PlanOutcomes* const outcomes = object.outcomes;
  if (outcomes == nullptr) return PyTuple_New(0);
  if (outcomes->tuple == nullptr) {
    PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(outcomes->count));
    for (size_t i = 0; tuple != nullptr && i < outcomes->count; ++i) {
      PyObject* const each = NewDecision(outcomes->decisions()[i], object.owner);
      if (each == nullptr) {
        Py_DECREF(tuple);
        return nullptr;
      }
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), each);
    }
    // A collection of garbage may have read the attribute meanwhile.
    if (tuple == nullptr || outcomes->tuple != nullptr) {
      Py_XDECREF(tuple);
    } else {
      outcomes->tuple = tuple;
    }
  }
  Py_XINCREF(outcomes->tuple);
  return outcomes->tuple;
}

PyObject* GetOwner(PyObject* self, void*);
PyObject* GetBinding(PyObject* self, void*);
PyObject* GetPolicy(PyObject* self, void*) { return Text(Of(self).limit->name()); }

PyGetSetDef getters[] = {
    {"allowed", GetAllowed, nullptr, "Whether the call may pass.", nullptr},
    {"limit", GetLimit, nullptr,
     "Capacity of the limit that binds: the limit that refused with the longest wait, else the\n"
     "limit with the least room left.",
     nullptr},
    {"remaining", GetRemaining, nullptr, "Whole units left now, from 0 up.", nullptr},
    {"retry_after", GetRetryAfter, nullptr,
     "Seconds after which the same call would pass, never early; 0.0 when allowed, inf\n"
     "if it never can (a cost beyond the capacity).",
     nullptr},
    {"reset_after", GetResetAfter, nullptr, "Seconds until the key is full again.", nullptr},
    {"delay", GetDelay, nullptr,
     "Seconds that the caller of a leaky bucket should wait before proceeding; else 0.0.", nullptr},
    {"rule", GetRule, nullptr,
     "Name of the limit that binds, or id of its rule; None if no rule applies.", nullptr},
    {"outcomes", GetOutcomes, nullptr,
     "The decision of each limit, if the caller asked for them (see Plan.hit()); else empty. In\n"
     "a refused plan, the outcome of a limit with room is allowed, though nothing was\n"
     "charged. A pickled decision loses them.",
     nullptr},
    {"_owner", GetOwner, nullptr, "The owner of its limits.", nullptr},
    {"_policy", GetPolicy, nullptr, "The name of the limit that binds in header fields.", nullptr},
    {"_limit", GetBinding, nullptr, "The limit that binds.", nullptr},
    {"_behind", GetBehind, nullptr,
     "Whether the state is further ahead than the clock allows, which a hit corrects.", nullptr},
    {"charged", GetCharged, nullptr,
     "The units that charge() or charge_up_to() charged; None in decisions of other calls.",
     nullptr},
    {"debt", GetDebt, nullptr,
     "Units owed beyond the limit that binds: calls are refused until they are paid.", nullptr},
    {"_index", GetIndex, nullptr, "The index of the limit of the plan that binds.", nullptr},
    {"leased", GetLeased, nullptr,
     "Whether it was decided by what the shared store had leased to this process.", nullptr},
    {"degraded", GetDegraded, nullptr, "Whether the decision was made without the shared store.",
     nullptr},
    {"_charged_in", GetChargedIn, nullptr,
     "Where the first limit of its plan was charged: store, fallback or nowhere.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

// What other limiters call the attributes of a decision, and what to read here.
constexpr char kAllowed[] = "allowed, or the decision itself, as in `if decision:`";
constexpr char kNotAllowed[] =
    "`not decision.allowed`, or the decision itself, as in `if not decision:`";
constexpr char kResetAfter[] = "reset_after, the seconds until all of the limit is there again";
constexpr char kRetryAfter[] = "retry_after, the seconds to wait";
constexpr char kRemaining[] = "remaining";
constexpr char kUsed[] = "limit and remaining, whose difference is what is used";
constexpr char kItself[] = "the decision itself, which has allowed, remaining and retry_after";

struct Elsewhere {
  const char* name;
  const char* advice;
};

constexpr Elsewhere kElsewhere[] = {
    {"acquired", kAllowed},
    {"conforming", kAllowed},
    {"granted", kAllowed},
    {"is_allowed", kAllowed},
    {"ok", kAllowed},
    {"passed", kAllowed},
    {"permitted", kAllowed},
    {"success", kAllowed},
    {"blocked", kNotAllowed},
    {"denied", kNotAllowed},
    {"exceeded", kNotAllowed},
    {"is_exceeded", kNotAllowed},
    {"is_limited", kNotAllowed},
    {"limited", kNotAllowed},
    {"refused", kNotAllowed},
    {"rejected", kNotAllowed},
    {"should_limit", kNotAllowed},
    {"expires_at", kResetAfter},
    {"reset", kResetAfter},
    {"reset_at", kResetAfter},
    {"reset_in", kResetAfter},
    {"reset_time", kResetAfter},
    {"resets_at", kResetAfter},
    {"retry_at", kRetryAfter},
    {"retry_in", kRetryAfter},
    {"wait", kRetryAfter},
    {"wait_time", kRetryAfter},
    {"available", kRemaining},
    {"left", kRemaining},
    {"remaining_tokens", kRemaining},
    {"tokens", kRemaining},
    {"count", kUsed},
    {"current", kUsed},
    {"hits", kUsed},
    {"used", kUsed},
    {"result", kItself},
    {"state", kItself},
};

// Unlike a lookup of our own, it makes no other attribute slower.
PyObject* NameWhatToRead(PyObject*, void* closure) {
  const auto& [name, advice] = *static_cast<const Elsewhere*>(closure);
  PyErr_Format(PyExc_AttributeError, "a Decision has no %s; expected %s", name, advice);
  return nullptr;
}

PyGetSetDef* AllGetters() {
  static std::vector<PyGetSetDef> all;
  for (const PyGetSetDef& each : getters) {
    if (each.name != nullptr) all.push_back(each);
  }
  for (const Elsewhere& each : kElsewhere) {
    all.push_back({each.name, NameWhatToRead, nullptr, "Absent: names what to read in its place.",
                   const_cast<Elsewhere*>(&each)});
  }
  all.push_back({nullptr, nullptr, nullptr, nullptr, nullptr});
  return all.data();
}

// The attributes that there are.
PyObject* Dir(PyObject* self, PyObject*) {
  auto* const base = reinterpret_cast<PyObject*>(&PyBaseObject_Type);
  PyObject* const names = PyObject_CallMethod(base, "__dir__", "O", self);
  if (names == nullptr) return nullptr;
  for (const Elsewhere& each : kElsewhere) {
    PyObject* const done = PyObject_CallMethod(names, "remove", "s", each.name);
    if (done == nullptr) {
      Py_DECREF(names);
      return nullptr;
    }
    Py_DECREF(done);
  }
  return names;
}

int Bool(PyObject* self) { return Of(self).allowed; }

PyObject* Repr(PyObject* self) {
  const Decision& d = Of(self);
  PyObject* rule = RuleName(d);
  PyObject* retry = PyFloat_FromDouble(Seconds(d.retry_after_ns));
  PyObject* reset = PyFloat_FromDouble(Seconds(d.reset_after_ns));
  PyObject* delay = PyFloat_FromDouble(Seconds(d.delay_ns));
  PyObject* repr = nullptr;
  if (rule != nullptr && retry != nullptr && reset != nullptr && delay != nullptr) {
    repr = PyUnicode_FromFormat(
        "Decision(allowed=%s, limit=%lld, remaining=%lld, retry_after=%R, "
        "reset_after=%R, delay=%R, rule=%R, degraded=%s)",
        d.allowed ? "True" : "False", static_cast<long long>(d.limit->capacity()),
        static_cast<long long>(d.remaining()), retry, reset, delay, rule,
        d.degraded ? "True" : "False");
  }
  Py_XDECREF(rule);
  Py_XDECREF(retry);
  Py_XDECREF(reset);
  Py_XDECREF(delay);
  return repr;
}

// (limit, allowed, ...) as Restored() takes them: the limit lives on in a copy.
PyObject* Reduce(PyObject* self, PyObject*) {
  try {
    const Decision& d = Of(self);
    return py::make_tuple(
               py::module_::import("tidegate._core").attr("_decision"),
               py::make_tuple(*d.limit, d.allowed, static_cast<bool>(d.degraded), d.rule,
                              d.retry_after_ns, d.reset_after_ns, d.delay_ns, d.at_ns, d.used_ns,
                              d.used_fraction, d.used_units, static_cast<int>(d.elsewhere),
                              d.limits_elsewhere, d.known_more_ns, d.charged,
                              static_cast<bool>(d.leased), static_cast<bool>(d.late)))
        .release()
        .ptr();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

py::object Restored(const py::object& limit, bool allowed, bool degraded, uint16_t rule,
                    int64_t retry_after_ns, int64_t reset_after_ns, int64_t delay_ns, int64_t at_ns,
                    int64_t used_ns, int64_t used_fraction, int64_t used_units, int elsewhere,
                    uint16_t limits_elsewhere, int64_t known_more_ns, int64_t charged, bool leased,
                    bool late) {
  Decision d;
  d.limit = &limit.cast<const Limit&>();
  d.allowed = allowed;
  d.degraded = degraded;
  d.leased = leased;
  d.late = late;
  d.rule = rule;
  d.retry_after_ns = retry_after_ns;
  d.reset_after_ns = reset_after_ns;
  d.delay_ns = delay_ns;
  d.at_ns = at_ns;
  d.used_ns = used_ns;
  d.used_fraction = used_fraction;
  d.used_units = used_units;
  d.known_more_ns = known_more_ns;
  d.charged = charged;
  // A pickle may have any contents.
  d.elsewhere =
      static_cast<ChargedIn>(std::clamp(elsewhere, 0, static_cast<int>(ChargedIn::kNowhere)));
  d.limits_elsewhere = limits_elsewhere;
  return py::reinterpret_steal<py::object>(NewDecision(d, limit.ptr()));
}

// (number): the decision of a plan, reduced to its limits from this number on, with where each of
// them was charged.
PyObject* FromLimit(PyObject* self, PyObject* number) {
  const size_t first = PyLong_AsSize_t(number);
  if (first == static_cast<size_t>(-1) && PyErr_Occurred() != nullptr) return nullptr;
  const Decision& d = Of(self);
  if (d.limits_elsewhere == 0 || d.limits_elsewhere == Decision::kAllLimits) {
    Py_INCREF(self);
    return self;
  }
  Decision part = d;
  part.limits_elsewhere =
      first < Decision::kMostTracked ? static_cast<uint16_t>(d.limits_elsewhere >> first) : 0;
  return NewDecision(part, reinterpret_cast<DecisionObject*>(self)->owner);
}

// The same decision, as that of a call that passed.
PyObject* Among(PyObject* self, PyObject* decisions) {
  if (PyList_Check(decisions) == 0) {
    PyErr_SetString(PyExc_TypeError, "the decisions are of another type; expected a list");
    return nullptr;
  }
  const Py_ssize_t count = PyList_GET_SIZE(decisions);
  Outcomes outcomes;
  PyObject* const owners = PyTuple_New(count + 1);  // keeps the limits of all of them
  if (owners == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i <= count; ++i) {
    PyObject* const each = i < count ? PyList_GET_ITEM(decisions, i) : self;
    const Decision* const decision = GetDecision(each);
    if (decision == nullptr) {
      Py_DECREF(owners);
      PyErr_SetString(PyExc_TypeError, "an item is another object; expected a Decision");
      return nullptr;
    }
    if (i < count) outcomes.push_back(*decision);
    PyObject* const owner = reinterpret_cast<DecisionObject*>(each)->owner;
    Py_INCREF(owner);
    PyTuple_SET_ITEM(owners, i, owner);
  }
  PyObject* const made = NewDecision(Of(self), owners, &outcomes);
  Py_DECREF(owners);
  return made;
}

PyObject* AsAllowed(PyObject* self, PyObject*) {
  Decision allowed = Of(self);
  allowed.allowed = true;
  allowed.retry_after_ns = 0;
  return NewDecision(allowed, reinterpret_cast<DecisionObject*>(self)->owner);
}

PyObject* GetOwner(PyObject* self, void*) {
  PyObject* const owner = reinterpret_cast<DecisionObject*>(self)->owner;
  Py_INCREF(owner);
  return owner;
}

// The limit that binds.
PyObject* GetBinding(PyObject* self, void*) {
  try {
    return py::cast(*Of(self).limit).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  }
}

PyMethodDef methods[] = {
    {"_plan_key", PlanKey, METH_O,
     "_plan_key($self, start, /)\n--\n\n"
     "The bytes `start` and others, equal for decisions of the same limits of one owner."},
    {"__dir__", Dir, METH_NOARGS, nullptr},
    {"__reduce__", Reduce, METH_NOARGS, "For pickle and copy."},
    {"_from_limit", FromLimit, METH_O, "The same decision, of the limits from this one on."},
    {"_among", Among, METH_O, "The same decision, with these decisions of a list as its outcomes."},
    {"_as_allowed", AsAllowed, METH_NOARGS, "The same state, as that of a call that passed."},
    {nullptr, nullptr, 0, nullptr},
};

PyObject* Compare(PyObject* self, PyObject* other, int op) {
  if (Py_TYPE(other) != &decision_type || (op != Py_EQ && op != Py_NE)) {
    Py_RETURN_NOTIMPLEMENTED;
  }
  const Decision& a = Of(self);
  const Decision& b = Of(other);
  const bool equal = a.allowed == b.allowed && a.degraded == b.degraded &&
                     a.limit->capacity() == b.limit->capacity() &&
                     a.limit->rule() == b.limit->rule() && a.remaining() == b.remaining() &&
                     a.retry_after_ns == b.retry_after_ns && a.reset_after_ns == b.reset_after_ns &&
                     a.delay_ns == b.delay_ns;
  return PyBool_FromLong(equal == (op == Py_EQ));
}

}  // namespace

void RegisterDecision(pybind11::module_& module) {
  PyTypeObject& type = decision_type;
  as_number.nb_bool = Bool;
  type.tp_name = "tidegate.Decision";
  type.tp_basicsize = sizeof(DecisionObject);
  type.tp_dealloc = Dealloc;
  type.tp_repr = Repr;
  type.tp_as_number = &as_number;
  type.tp_richcompare = Compare;
  type.tp_hash = PyObject_HashNotImplemented;
  type.tp_flags = Py_TPFLAGS_DEFAULT;
#if defined(Py_TPFLAGS_DISALLOW_INSTANTIATION)
  type.tp_flags |= Py_TPFLAGS_DISALLOW_INSTANTIATION;  // before 3.10 the lack of tp_new does it
#endif
  type.tp_doc =
      "The answer to a call; truthy if the call may pass.\n\n"
      "Immutable. Attributes are computed when they are read.";
  type.tp_getset = AllGetters();
  type.tp_methods = methods;
  AddType(module, "Decision", type);
  module.def("_decision", &Restored);
}

PyObject* NewDecision(const Decision& decision, PyObject* owner, const Outcomes* outcomes) {
  Decision* room = nullptr;
  PyObject* object = NewDecisionIn(owner, &room);
  if (object == nullptr) return nullptr;
  *room = decision;
  if (outcomes == nullptr || outcomes->empty()) return object;
  static_assert(std::is_trivially_copyable_v<Decision>);
  const size_t size = outcomes->size() * sizeof(Decision);
  void* const memory = PyObject_Malloc(sizeof(PlanOutcomes) + size);
  if (memory == nullptr) {
    Py_DECREF(object);
    return PyErr_NoMemory();
  }
  auto* const kept = new (memory) PlanOutcomes{nullptr, outcomes->size()};
  std::memcpy(kept->decisions(), outcomes->data(), size);
  reinterpret_cast<DecisionObject*>(object)->outcomes = kept;
  return object;
}

PyObject* NewDecisionIn(PyObject* owner, Decision** room) {
  DecisionObject* object = nullptr;
#if !defined(Py_GIL_DISABLED)
  if (free_count > 0) {
    object = free_decisions[--free_count];
    Py_SET_REFCNT(reinterpret_cast<PyObject*>(object), 1);
#if defined(Py_TRACE_REFS)
    _Py_NewReference(reinterpret_cast<PyObject*>(object));
#endif
  }
#endif
  if (object == nullptr) [[unlikely]] {
    object = PyObject_New(DecisionObject, &decision_type);
    if (object == nullptr) return nullptr;
    object->outcomes = nullptr;
  }
  *room = &object->decision;
  Py_INCREF(owner);
  object->owner = owner;
  return reinterpret_cast<PyObject*>(object);
}

const Decision* GetDecision(PyObject* object) {
  return Py_TYPE(object) == &decision_type ? &Of(object) : nullptr;
}

const Decision& ExpectDecision(PyObject* object) {
  const Decision* const decision = GetDecision(object);
  if (decision == nullptr) {
    throw pybind11::type_error("the decision is another object; expected a Decision");
  }
  return *decision;
}

const Decision* DecisionOrNone(PyObject* object) {
  if (object == Py_None) return nullptr;
  const Decision* const decision = GetDecision(object);
  if (decision == nullptr) {
    Throw(Error::kArgumentType, "the decision is " + Shown(object) + "; expected a Decision");
  }
  return decision;
}

PyObject* PlanKey(PyObject* decision, PyObject* start) {
  if (!PyBytes_CheckExact(start)) {
    PyErr_SetString(PyExc_TypeError, "the start of the key is of another type; expected bytes");
    return nullptr;
  }
  const absl::Span<const Decision> outcomes = OutcomesOf(decision);
  constexpr size_t kEach = sizeof(void*);  // the address of a limit
  const Py_ssize_t before = PyBytes_GET_SIZE(start);
  PyObject* const key =
      PyBytes_FromStringAndSize(nullptr, before + static_cast<Py_ssize_t>(outcomes.size() * kEach));
  if (key == nullptr) return nullptr;
  char* at = PyBytes_AS_STRING(key);
  std::memcpy(at, PyBytes_AS_STRING(start), static_cast<size_t>(before));
  at += before;
  for (const Decision& outcome : outcomes) {
    std::memcpy(at, &outcome.limit, kEach);
    at += kEach;
  }
  return key;
}

absl::Span<const Decision> OutcomesOf(PyObject* decision) {
  PlanOutcomes* const outcomes = reinterpret_cast<DecisionObject*>(decision)->outcomes;
  if (outcomes == nullptr) return {};
  return {outcomes->decisions(), outcomes->count};
}

py::object DecisionOwner(PyObject* decision) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<DecisionObject*>(decision)->owner);
}

}  // namespace tidegate::python
