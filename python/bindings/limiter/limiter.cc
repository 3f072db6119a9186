// tidegate._core.Limiter, the base class of tidegate.Limiter. The calls made for each
// request (hit, allow, hit_many) are CPython fast-call methods, added to the
// pybind11 class as plain method descriptors; the rest is plain pybind11.
//
// The GIL is held during a step in memory: it takes tens of nanoseconds, and releasing the GIL
// would cost as much again. It is released around calls that may wait for I/O.
#include "tidegate/limiter.h"

#include <pybind11/stl.h>

#include <memory>
#include <utility>
#include <vector>

#include "limiter/channel.h"
#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/decision.h"
#include "limiter/fast_call.h"
#include "limiter/functions.h"
#include "limiter/gil.h"
#include "limiter/limiter.h"

namespace tidegate::python {
namespace {

struct PyLimiter {
  Limiter* open = nullptr;  // null once closed
  // Kept after close(): decisions point into it.
  std::shared_ptr<Limiter> limiter;
  py::object clock_function;
  Upkeep upkeep;

  int Traverse(visitproc visit, void* arg) const {
    Py_VISIT(clock_function.ptr());
    Py_VISIT(upkeep.lines.ptr());
    return 0;
  }
  void Clear() {
    clock_function = py::object();
    upkeep.lines = py::object();
  }
};

PyTypeObject* limiter_type = nullptr;  // set by RegisterLimiter()

}  // namespace

bool IsLimiter(PyObject* object) { return PyObject_TypeCheck(object, limiter_type); }

bool HasPythonClock(PyObject* self) {
  return static_cast<bool>(HeldBy<PyLimiter>(self)->clock_function);
}

const Upkeep& UpkeepOf(PyObject* self) { return HeldBy<PyLimiter>(self)->upkeep; }

Limiter* LimiterOf(PyObject* self) {
  const auto* py_limiter = HeldBy<PyLimiter>(self);
  if (py_limiter == nullptr || py_limiter->open == nullptr) [[unlikely]] {
    SetError(Error::kClosed, "the limiter is closed");
    return nullptr;
  }
  return py_limiter->open;
}

namespace {

// Like LimiterOf(), but also once closed: a place that was taken can always be given back.
Limiter* LimiterToReleaseOf(PyObject* self) {
  const auto* py_limiter = HeldBy<PyLimiter>(self);
  return py_limiter != nullptr && py_limiter->limiter != nullptr ? py_limiter->limiter.get()
                                                                 : LimiterOf(self);
}

}  // namespace

std::shared_ptr<Limiter> SharedLimiter(const py::object& object) {
  const PyLimiter* held = IsLimiter(object.ptr()) ? HeldBy<PyLimiter>(object.ptr()) : nullptr;
  if (held == nullptr) throw py::type_error("the limiter is another object; expected a Limiter");
  return held->limiter;
}

namespace {

// The arguments (key, cost=1) of a fast call.
struct KeyAndCost {
  KeyView key;
  int64_t cost = 1;

  bool Read(PyObject* const* args, Py_ssize_t count, PyObject* names) {
    if (count == 1 && names == nullptr) [[likely]]
      return key.Read(args[0]);
    return ReadOther(args, count, names);
  }

 private:
  bool ReadOther(PyObject* const* args, Py_ssize_t count, PyObject* names) {
    PyObject* given[2] = {nullptr, nullptr};
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    if (count + named > 2) {
      PyErr_Format(PyExc_TypeError, "takes key and cost, but %zd arguments were given",
                   count + named);
      return false;
    }
    for (Py_ssize_t i = 0; i < count; ++i) given[i] = args[i];
    for (Py_ssize_t i = 0; i < named; ++i) {
      PyObject* name = PyTuple_GET_ITEM(names, i);
      const int at = PyUnicode_CompareWithASCIIString(name, "key") == 0    ? 0
                     : PyUnicode_CompareWithASCIIString(name, "cost") == 0 ? 1
                                                                           : -1;
      if (at < 0 || given[at] != nullptr) {
        PyErr_Format(PyExc_TypeError,
                     at < 0 ? "unexpected argument %R; expected key and cost"
                            : "the argument %R was given twice",
                     name);
        return false;
      }
      given[at] = args[count + i];
    }
    if (given[0] == nullptr) {
      PyErr_SetString(PyExc_TypeError, "the argument 'key' is missing");
      return false;
    }
    return key.Read(given[0]) && (given[1] == nullptr || ReadCost(given[1], &cost));
  }
};

PyObject* FastHit(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return Guarded([&]() -> PyObject* {
    KeyAndCost call;
    Limiter* limiter = LimiterOf(self);
    if (limiter == nullptr || !call.Read(args, count, names)) return nullptr;
    Decision* room = nullptr;
    auto object = py::reinterpret_steal<py::object>(NewDecisionIn(self, &room));
    if (!object) return nullptr;
    // The GIL is released only if the call has to wait.
    if (limiter->blocks() && limiter->HitWithoutWaiting(call.key.view(), call.cost, room)) {
      return object.release().ptr();
    }
    new (room) Decision(Run(*limiter, [&] { return limiter->Hit(call.key.view(), call.cost); }));
    return object.release().ptr();
  });
}

}  // namespace

py::dict DictOf(const LimiterStats& stats) {
  const StoreStats& store = stats.store;
  return py::dict(
      py::arg("allowed") = stats.allowed, py::arg("denied") = stats.denied,
      py::arg("denied_in_shadow") = stats.denied_in_shadow,
      py::arg("written_off") = stats.written_off, py::arg("degraded") = store.degraded,
      py::arg("errors") = store.errors, py::arg("keys") = store.keys,
      py::arg("evictions") = store.evictions, py::arg("evicted_live") = store.evicted_live,
      py::arg("script_errors") = store.script_errors,
      py::arg("denied_locally") = store.denied_locally, py::arg("leased") = store.leased,
      py::arg("lease_questions") = store.lease_questions, py::arg("held_units") = store.held_units,
      py::arg("wasted_units") = store.wasted_units, py::arg("held_keys") = store.held_keys,
      py::arg("dry_keys") = store.dry_keys, py::arg("breaker_opened") = store.breaker_opened,
      py::arg("breaker_open") = store.breaker_open);
}

// Not by FastHit(), which is inline in the interpreter's call only as long as nothing else calls
// it.
PyObject* HitLimiter(PyObject* self, PyObject* key, PyObject* cost) {
  return Guarded([&]() -> PyObject* {
    Limiter* limiter = LimiterOf(self);
    KeyView view;
    int64_t units = 1;
    if (limiter == nullptr || !view.Read(key) || !ReadCost(cost, &units)) return nullptr;
    return NewDecision(Run(*limiter, [&] { return limiter->Hit(view.view(), units); }), self);
  });
}

namespace {

PyObject* FastAllow(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return Guarded([&]() -> PyObject* {
    KeyAndCost call;
    Limiter* limiter = LimiterOf(self);
    if (limiter == nullptr || !call.Read(args, count, names)) return nullptr;
    Decision early;
    const bool allowed =
        limiter->blocks() && limiter->HitWithoutWaiting(call.key.view(), call.cost, &early)
            ? early.allowed
            : Run(*limiter, [&] { return limiter->Allow(call.key.view(), call.cost); });
    PyObject* answer = allowed ? Py_True : Py_False;
    Py_INCREF(answer);
    return answer;
  });
}

PyObject* FastPeek(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return Guarded([&]() -> PyObject* {
    KeyAndCost call;
    Limiter* limiter = LimiterOf(self);
    if (limiter == nullptr || !call.Read(args, count, names)) return nullptr;
    return NewDecision(Run(*limiter, [&] { return limiter->Peek(call.key.view(), call.cost); }),
                       self);
  });
}

PyObject* FastChargeUpTo(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return Guarded([&]() -> PyObject* {
    KeyAndCost call;
    Limiter* limiter = LimiterOf(self);
    if (limiter == nullptr || !call.Read(args, count, names)) return nullptr;
    if (count + (names == nullptr ? 0 : PyTuple_GET_SIZE(names)) < 2) {
      PyErr_SetString(PyExc_TypeError, "the argument 'cost' is missing");
      return nullptr;
    }
    return NewDecision(
        Run(*limiter, [&] { return limiter->ChargeUpTo(call.key.view(), call.cost); }), self);
  });
}

// (op, key, cost, hit, loop, channel): begins a call for which an event loop must not wait. Returns
// the decision or None if there is no need to wait, else a future of the loop. `hit` is the
// decision that a refund or a release gives back, else None.
PyObject* FastBegin(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject*) {
  return Guarded([&]() -> PyObject* {
    if (count != 6) {
      PyErr_Format(PyExc_TypeError, "takes 6 arguments, but %zd were given", count);
      return nullptr;
    }
    const auto op = static_cast<Op>(PyLong_AsLong(args[0]));
    Limiter* limiter = op == Op::kRelease ? LimiterToReleaseOf(self) : LimiterOf(self);
    if (limiter == nullptr) return nullptr;
    KeyView key;
    int64_t cost = 1;
    if (PyErr_Occurred() != nullptr || !key.Read(args[1]) || !ReadCost(args[2], &cost)) {
      return nullptr;
    }
    const Decision* hit = DecisionOrNone(args[3]);
    if (op == Op::kRelease && hit == nullptr) {
      Throw(Error::kArgumentType, "the decision of a release is None; expected a Decision");
    }
    const auto submit = [&](Store::Done done) {
      return limiter->Submit(op, key.view(), cost, hit, std::move(done));
    };
    return BeginOn(args[4], args[5], self, limiter->store(), op, nullptr, submit).release().ptr();
  });
}

PyObject* FastNow(PyObject* self, PyObject*) {
  return Guarded([&]() -> PyObject* {
    Limiter* limiter = LimiterOf(self);
    return limiter == nullptr ? nullptr : PyLong_FromLongLong(limiter->NowNs());
  });
}

PyMethodDef fast_methods[] = {
    {"hit", AsMethod(FastHit), METH_FASTCALL | METH_KEYWORDS,
     "hit($self, key, cost=1)\n--\n\n"
     "Charges `cost` to `key` if the call may pass. A refusal charges nothing."},
    {"allow", AsMethod(FastAllow), METH_FASTCALL | METH_KEYWORDS,
     "allow($self, key, cost=1)\n--\n\n"
     "Like hit(), but returns only whether the call may pass: the fastest call."},
    {"peek", AsMethod(FastPeek), METH_FASTCALL | METH_KEYWORDS,
     "peek($self, key, cost=1)\n--\n\n"
     "The decision that a hit of `cost` would get now, with `remaining` and `reset_after`\n"
     "as they are without it. Charges nothing."},
    {"charge_up_to", AsMethod(FastChargeUpTo), METH_FASTCALL | METH_KEYWORDS,
     "charge_up_to($self, key, cost)\n--\n\n"
     "Like charge(), but charges only as much of `cost` as there is room for.\n\n"
     "Of several limits each is charged as much as it has room for itself, and `charged` is\n"
     "the smallest of these charges."},
    {"_begin", AsMethod(FastBegin), METH_FASTCALL | METH_KEYWORDS,
     "_begin($self, op, key, cost, admitted, loop, channel, /)\n--\n\nBegins a call."},
    {"_now_ns", FastNow, METH_NOARGS,
     "_now_ns($self, /)\n--\n\nThe limiter's clock, in nanoseconds."},
    {nullptr, nullptr, 0, nullptr},
};

Limiter& Checked(PyLimiter& self) {
  if (self.open == nullptr) Throw(Error::kClosed, "the limiter is closed");
  return *self.open;
}

int64_t CostFrom(const py::object& cost) {
  int64_t value = 1;
  if (!ReadCost(cost.ptr(), &value)) throw py::error_already_set();
  return value;
}

KeyView KeyFrom(const py::object& key) {
  KeyView view;
  if (!view.Read(key.ptr())) throw py::error_already_set();
  return view;
}

py::object ChargeInFull(const py::object& self, const py::object& key, const py::object& cost) {
  Limiter& limiter = Checked(self.cast<PyLimiter&>());
  const KeyView view = KeyFrom(key);
  const int64_t units = CostFrom(cost);
  const Decision decision = Run(limiter, [&] { return limiter.ChargeInFull(view.view(), units); });
  return py::reinterpret_steal<py::object>(NewDecision(decision, self.ptr()));
}

py::object PyHitMany(PyLimiter& self, const py::object& keys, const py::object& costs) {
  return HitMany(Checked(self), keys, costs);
}

template <void (Limiter::*kCall)(std::string_view)>
void OfKey(PyLimiter& self, const py::object& key) {
  Limiter& l = Checked(self);
  const KeyView view = KeyFrom(key);
  Run(l, [&] { (l.*kCall)(view.view()); });
}

std::unique_ptr<PyLimiter> Make(const std::vector<Limit>& limits,
                                const std::shared_ptr<Store>& store, const py::object& clock,
                                const std::string& scope) {
  auto result = std::make_unique<PyLimiter>();
  GivenClock given = ClockFrom(clock);
  result->limiter = ValueOrThrow(Limiter::Create(limits, store, std::move(given.clock), scope));
  result->clock_function = std::move(given.function);
  result->open = result->limiter.get();
  return result;
}

// Places of concurrency limits that a hit took.
struct Places {
  Limiter* limiter;
  KeyView key;
  int64_t count;
  const Decision& admitted;  // of that hit
};

Places PlacesFrom(const py::object& self, const py::object& key, const py::object& count,
                  const py::object& decision) {
  const Decision& admitted = ExpectDecision(decision.ptr());
  Limiter* const limiter = LimiterToReleaseOf(self.ptr());
  if (limiter == nullptr) throw py::error_already_set();
  return {limiter, KeyFrom(key), CostFrom(count), admitted};
}

}  // namespace

void RegisterLimiter(py::module_& m) {
  // The operations of Limiter._begin() and of call_reserved().
  m.attr("HIT") = static_cast<int>(Op::kHit);
  m.attr("PEEK") = static_cast<int>(Op::kPeek);
  m.attr("REFUND") = static_cast<int>(Op::kRefund);
  m.attr("RELEASE") = static_cast<int>(Op::kRelease);
  m.attr("RESET") = static_cast<int>(Op::kReset);
  m.attr("FORGET") = static_cast<int>(Op::kForget);
  m.attr("CHARGE") = static_cast<int>(Op::kCharge);
  m.attr("CHARGE_UP_TO") = static_cast<int>(Op::kChargeUpTo);
  m.attr("RESERVE") = static_cast<int>(Op::kReserve);
  m.attr("SETTLE") = static_cast<int>(Op::kSettle);
  m.attr("RAISE") = static_cast<int>(Op::kRaise);
  py::options options;
  options.disable_function_signatures();  // those below are read by inspect.signature()
  py::class_<PyLimiter> limiter(m, "Limiter", Collected<PyLimiter>());
  limiter_type = reinterpret_cast<PyTypeObject*>(limiter.ptr());
  limiter
      .def(py::init(&Make), py::arg("limits"), py::arg("store"), py::arg("clock"), py::arg("scope"))
      .def("charge", &ChargeInFull, py::arg("key"), py::arg("cost"),
           "charge(self, key, cost)\n--\n\n"
           "Charges all of `cost` to `key`, and refuses nothing: what finds no room is owed.")
      .def("reset", &OfKey<&Limiter::Reset>, py::arg("key"))
      .def("forget", &OfKey<&Limiter::Forget>, py::arg("key"))
      .def(
          "refund",
          [](PyLimiter& self, const py::object& key, const py::object& cost,
             const py::object& decision) {
            Limiter& l = Checked(self);
            const KeyView view = KeyFrom(key);
            const int64_t units = CostFrom(cost);
            const Decision* hit = DecisionOrNone(decision.ptr());
            Run(l, [&] { l.Refund(view.view(), units, hit); });
          },
          py::arg("key"), py::arg("cost") = 1, py::kw_only(), py::arg("decision") = py::none())
      .def(
          "_peek_fallback",
          [](PyLimiter& self, const py::object& key) {
            Limiter& l = Checked(self);
            const KeyView view = KeyFrom(key);
            const Decision standing = l.PeekFallback(view.view());
            return std::make_pair(*standing.limit, standing.reset_after_ns);
          },
          py::arg("key"))
      .def(
          "_check",
          [](PyLimiter& self, const py::object& key, const py::object& cost) {
            Checked(self);
            KeyFrom(key);
            CostFrom(cost);
          },
          py::arg("key"), py::arg("cost"))
      .def(
          "_release",
          [](const py::object& self, const py::object& key, const py::object& cost,
             const py::object& decision) {
            const Places places = PlacesFrom(self, key, cost, decision);
            Limiter& l = *places.limiter;
            Run(l, [&] { l.Release(places.key.view(), places.count, places.admitted); });
          },
          py::arg("key"), py::arg("cost"), py::arg("decision"))
      .def(
          "_extend",
          [](const py::object& self, const py::object& key, const py::object& cost,
             const py::object& decision) -> py::object {
            const Places places = PlacesFrom(self, key, cost, decision);
            Limiter& l = *places.limiter;
            const auto extended =
                Run(l, [&] { return l.Extend(places.key.view(), places.count, places.admitted); });
            if (!extended.has_value()) return py::none();
            return py::reinterpret_steal<py::object>(NewDecision(*extended, self.ptr()));
          },
          py::arg("key"), py::arg("cost"), py::arg("decision"))
      .def("hit_many", &PyHitMany, py::arg("keys"), py::arg("costs") = py::none(),
           "hit_many(self, keys, costs=None)\n--\n\n"
           "Hits each key in order; returns which of them may pass.\n\n"
           "The result is a list of bool for a sequence, a flat NumPy array of bool for a NumPy "
           "array\n"
           "of keys. `costs` has one for each key, 1 each by default. All keys and costs are read\n"
           "before the first is charged: if one is invalid, nothing is charged.")
      .def("_stats", [](PyLimiter& self) { return DictOf(Checked(self).stats()); })
      .def("_refused", [](PyLimiter& self) { return Checked(self).refused(); })
      .def("_refused_in_shadow", [](PyLimiter& self) { return Checked(self).refused_in_shadow(); })
      .def_property(
          "_lines", [](const PyLimiter& self) { return self.upkeep.lines; },
          [](PyLimiter& self, const py::dict& lines) { self.upkeep.lines = lines; })
      .def_property(
          "_is_expiring", [](const PyLimiter& self) { return self.upkeep.is_expiring; },
          [](PyLimiter& self, bool is_expiring) { self.upkeep.is_expiring = is_expiring; })
      .def("_close", [](PyLimiter& self) {
        if (std::exchange(self.open, nullptr) == nullptr) return;
        const std::shared_ptr<Limiter> closed = self.limiter;
        WithoutGil([&] { closed->store().GiveLeasesBack(); });
      });
  limiter.def_static(
      "_add_fast_methods",
      [](const py::type& type) {
        // The methods would read invalid memory if called with another class.
        if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()),
                              reinterpret_cast<PyTypeObject*>(py::type::of<PyLimiter>().ptr()))) {
          throw py::type_error("the class is another; expected a subclass of Limiter");
        }
        AddFastMethods(type, fast_methods);
      },
      py::arg("type"));
  AddFastMethods(limiter, fast_methods);
}

}  // namespace tidegate::python
