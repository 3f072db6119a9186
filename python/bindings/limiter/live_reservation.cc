// tidegate._core.LiveReservation, the base class of tidegate.Reservation: what was reserved in
// memory, and only this object knows. It is settled here, without a record in the store. All
// others are settled by methods of the subclass. Written against the C API, since commit() is
// called as often as hit().
#include "limiter/live_reservation.h"

#include <structmember.h>

#include <algorithm>
#include <new>
#include <utility>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/decision.h"
#include "limiter/fast_call.h"
#include "limiter/limiter.h"
#include "limiter/reservations.h"
#include "tidegate/process.h"

namespace tidegate::python {
namespace {

constexpr int64_t kNowhere = -1;

struct LiveReservation {
  PyObject_HEAD PyObject* owner;  // the limiter, or the plan
  PyObject* whose;                // the key, or the keys, or a request
  PyObject* decision;             // on the estimate
  PyObject* weak_references;
  char is_live;  // settled here; else by the subclass
  char is_refused;
  char is_settled;
  int64_t made_in;     // the process, as ForkGeneration() numbers it
  int64_t open_in;     // the same while it is settled here and open; then kNowhere
  int64_t settled_at;  // so many units
  int64_t settled_ns;  // the instant of it
  Reservation reservation;
  std::unique_ptr<Holding> holding;  // of a plan or of rules; null for a limiter
};

PyTypeObject reservation_type{};  // filled in by RegisterLiveReservation()
PyNumberMethods reservation_as_number{};

LiveReservation& Self(PyObject* self) { return *reinterpret_cast<LiveReservation*>(self); }

PyObject* New(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* const self = type->tp_alloc(type, 0);
  if (self != nullptr) {
    new (&Self(self).reservation) Reservation;
    new (&Self(self).holding) std::unique_ptr<Holding>;
    Self(self).made_in = ForkGeneration();
    Self(self).open_in = kNowhere;
  }
  return self;
}

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Self(self).owner);
  Py_VISIT(Self(self).whose);
  Py_VISIT(Self(self).decision);
  return 0;
}

int Clear(PyObject* self) {
  Self(self).is_live = 0;
  Self(self).open_in = kNowhere;
  Self(self).holding.reset();
  Py_CLEAR(Self(self).owner);
  Py_CLEAR(Self(self).whose);
  Py_CLEAR(Self(self).decision);
  return 0;
}

void Dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  if (Self(self).weak_references != nullptr) PyObject_ClearWeakRefs(self);
  Clear(self);
  Self(self).reservation.~Reservation();
  std::destroy_at(&Self(self).holding);
  Py_TYPE(self)->tp_free(self);
}

int IsTrue(PyObject* self) { return Self(self).is_refused == 0; }

py::object CallMethod(PyObject* self, PyObject* name, PyObject* argument = nullptr) {
  PyObject* const answer = PyObject_CallMethodObjArgs(self, name, argument, nullptr);
  if (answer == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(answer);
}

// Gives back what other reservations of the owner hold beyond the end of their lives.
void GiveBackDue(const LiveReservation& self) {
  static PyObject* const give_back_due = Interned("_give_back_due");
  const bool is_expiring =
      self.holding == nullptr ? UpkeepOf(self.owner).is_expiring : self.holding->is_expiring();
  if (is_expiring) CallMethod(self.owner, give_back_due);
}

void TellOwner(const LiveReservation& self, PyObject* units, PyObject* decision) {
  static PyObject* const after_settling = Interned("_after_settling");
  const auto done = py::reinterpret_steal<py::object>(
      PyObject_CallMethodObjArgs(self.owner, after_settling, self.whose, units, decision, nullptr));
  if (!done) throw py::error_already_set();
}

// What a call needs of the limiter. Throws if it is closed.
struct Use {
  Limiter* limiter;
  KeyView key;

  explicit Use(const LiveReservation& self) : limiter(LimiterOf(self.owner)) {
    if (limiter == nullptr || !key.Read(self.whose)) throw py::error_already_set();
  }
};

// Whether this process has but a copy of it, while the process that it was forked from may settle
// it in the same counts.
bool IsInherited(const LiveReservation& self, bool spans_processes) {
  return self.made_in != ForkGeneration() && spans_processes;
}
bool IsInherited(const LiveReservation& self, const Limiter& limiter) {
  return IsInherited(self, limiter.store().spans_processes());
}

int64_t Reserved(const Reservation& reservation) {
  int64_t most = 0;
  for (const Reservation::Part& part : reservation.parts) most = std::max(most, part.units);
  return most;
}

// A part of which that was found; null if there is none.
const Reservation::Part* PartThat(const Reservation& reservation, Found found) {
  const auto part = std::find_if(reservation.parts.begin(), reservation.parts.end(),
                                 [found](const Reservation::Part& each) {
                                   return each.units != Reservation::kNone && each.found == found;
                                 });
  return part == reservation.parts.end() ? nullptr : &*part;
}

bool IsOver(const Reservation& reservation) {
  return PartThat(reservation, Found::kNothing) != nullptr;
}

// SettleAt() for a reservation of a plan or of rules. Null units are those of a release, which
// `shown` shows.
PyObject* SettleTogether(PyObject* object, PyObject* units, PyObject* shown) {
  static PyObject* const refuse = Interned("_refuse_commit");
  LiveReservation& self = Self(object);
  const Holding::Units actual = self.holding->Read(Op::kSettle, units);
  GiveBackDue(self);
  self.holding->Expect(Op::kSettle);
  const bool is_first = self.is_settled == 0;
  if (self.is_refused != 0 || (is_first && IsInherited(self, self.holding->spans_processes()))) {
    return CallMethod(object, refuse, shown).release().ptr();
  }
  const Decision settled = self.holding->Call(Op::kSettle, actual, &self.reservation);
  if (IsOver(self.reservation)) return CallMethod(object, refuse, shown).release().ptr();
  if (const Reservation::Part* const other = PartThat(self.reservation, Found::kSettled)) {
    self.settled_at = other->found_units;
    return CallMethod(object, refuse, shown).release().ptr();
  }
  self.open_in = kNowhere;
  self.is_settled = 1;
  if (is_first) self.settled_ns = settled.at_ns;
  auto decision = py::reinterpret_steal<py::object>(NewDecision(settled, self.holding->decides()));
  if (!decision) return nullptr;
  const auto least = std::min_element(actual.begin(), actual.end());
  const bool is_written_off = least != actual.end() && settled.charged < *least;
  if (PartThat(self.reservation, Found::kOpen) != nullptr &&
      (is_written_off || self.holding->is_awaited())) {
    TellOwner(self, shown, decision.ptr());
  }
  return decision.release().ptr();
}

PyObject* ExtendTogether(PyObject* object, PyObject* more) {
  static PyObject* const refuse = Interned("_refuse_extend");
  LiveReservation& self = Self(object);
  const Holding::Units units = self.holding->Read(Op::kRaise, more);
  GiveBackDue(self);
  self.holding->Expect(Op::kRaise);
  if (self.is_refused != 0 || self.is_settled != 0 ||
      IsInherited(self, self.holding->spans_processes())) {
    return CallMethod(object, refuse).release().ptr();
  }
  const Decision decision = self.holding->Call(Op::kRaise, units, &self.reservation);
  if (IsOver(self.reservation)) return CallMethod(object, refuse).release().ptr();
  return NewDecision(decision, self.holding->decides());
}

PyObject* SettleAt(PyObject* object, PyObject* units) {
  static PyObject* const refuse = Interned("_refuse_commit");
  LiveReservation& self = Self(object);
  if (self.holding != nullptr) return SettleTogether(object, units, units);
  const int64_t actual = ReservedUnits(Op::kSettle, units);
  GiveBackDue(self);
  const Use use(self);
  if (self.is_settled != 0 && self.settled_at == actual) {
    Decision standing = use.limiter->Peek(use.key.view());
    standing.SetCharged(actual);
    return NewDecision(standing, self.owner);
  }
  if (self.is_refused != 0 || self.is_settled != 0 || IsInherited(self, *use.limiter)) {
    return CallMethod(object, refuse, units).release().ptr();
  }
  const int64_t reserved = Reserved(self.reservation);
  const Decision settled =
      use.limiter->CallReserved(Op::kSettle, use.key.view(), actual, &self.reservation);
  if (IsOver(self.reservation)) return CallMethod(object, refuse, units).release().ptr();
  self.open_in = kNowhere;
  self.is_settled = 1;
  self.settled_at = actual;
  self.settled_ns = settled.at_ns;
  auto decision = py::reinterpret_steal<py::object>(NewDecision(settled, self.owner));
  if (!decision) return nullptr;
  if (settled.charged < actual || (actual < reserved && UpkeepOf(self.owner).is_awaited())) {
    TellOwner(self, units, decision.ptr());
  }
  return decision.release().ptr();
}

// The same for the usual commit, in one straight line: of one limit, of units that an int of Python
// has in one digit, in the process that it is open in, while nobody waits and nothing is due. Null
// without an error where SettleAt() must do it.
PyObject* SettleQuickly(LiveReservation& self, PyObject* units) {
  if (!PyLong_CheckExact(units)) [[unlikely]]
    return nullptr;
  const Upkeep& upkeep = UpkeepOf(self.owner);
  if (upkeep.is_expiring || upkeep.is_awaited()) [[unlikely]]
    return nullptr;
  int overflow = 0;
  const int64_t actual = PyLong_AsLongLongAndOverflow(units, &overflow);
  const Use use(self);
  if (overflow != 0 || actual < 0) [[unlikely]]
    return nullptr;
  Decision* room = nullptr;
  PyObject* const decision = NewDecisionIn(self.owner, &room);
  if (decision == nullptr) throw py::error_already_set();
  // A collection of garbage, which the new object may begin, may settle it.
  const bool is_open = self.open_in != kNowhere;
  if (!is_open || !use.limiter->SettleQuickly(use.key.view(), actual, self.reservation, room))
      [[unlikely]] {
    Py_DECREF(decision);
    return nullptr;
  }
  self.open_in = kNowhere;
  self.is_settled = 1;
  self.settled_at = actual;
  self.settled_ns = room->at_ns;
  return decision;
}

// The only argument of a call, which may be given by its name.
PyObject* OnlyArgument(const char* name, PyObject* const* args, Py_ssize_t count, PyObject* names,
                       const char* expected) {
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (count + named == 1 &&
      (named == 0 || PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), name) == 0)) {
    return args[0];
  }
  PyErr_Format(PyExc_TypeError, "%zd arguments were given, or one of another name; expected %s",
               count + named, expected);
  return nullptr;
}

PyObject* Commit(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static PyObject* const settle = Interned("_commit");
  static PyObject* const settle_usage = Interned("_commit_usage");
  if (count == 1 && names == nullptr && Self(self).open_in == ForkGeneration()) [[likely]] {
    return Guarded([&]() -> PyObject* {
      PyObject* const decision =
          Self(self).holding == nullptr ? SettleQuickly(Self(self), args[0]) : nullptr;
      return decision != nullptr ? decision : SettleAt(self, args[0]);
    });
  }
  if (count == 0 && names != nullptr && PyTuple_GET_SIZE(names) == 1 &&
      PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "usage") == 0) {
    return PyObject_CallMethodObjArgs(self, settle_usage, args[0], nullptr);
  }
  PyObject* const actual =
      OnlyArgument("actual", args, count, names, "actual, or usage by its name");
  if (actual == nullptr) return nullptr;
  return Guarded([&]() -> PyObject* {
    if (Self(self).is_live != 0) return SettleAt(self, actual);
    return CallMethod(self, settle, actual).release().ptr();
  });
}

PyObject* Release(PyObject* self, PyObject*) {
  static PyObject* const release = Interned("_release");
  static PyObject* const units_of_release = Interned("_units_of_release");
  static PyObject* const nothing = PyLong_FromLong(0);
  return Guarded([&]() -> PyObject* {
    if (Self(self).is_live != 0 && Self(self).holding != nullptr) {
      const py::object units = CallMethod(Self(self).owner, units_of_release);
      return SettleTogether(self, nullptr, units.ptr());
    }
    if (Self(self).is_live != 0) return SettleAt(self, nothing);
    return CallMethod(self, release).release().ptr();
  });
}

PyObject* Extend(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static PyObject* const extend = Interned("_extend");
  static PyObject* const refuse = Interned("_refuse_extend");
  PyObject* const more = OnlyArgument("more", args, count, names, "more");
  if (more == nullptr) return nullptr;
  return Guarded([&]() -> PyObject* {
    LiveReservation& self = Self(object);
    if (self.is_live == 0) return CallMethod(object, extend, more).release().ptr();
    if (self.holding != nullptr) return ExtendTogether(object, more);
    const int64_t units = ReservedUnits(Op::kRaise, more);
    GiveBackDue(self);
    const Use use(self);
    if (self.is_refused != 0 || self.is_settled != 0 || IsInherited(self, *use.limiter)) {
      return CallMethod(object, refuse).release().ptr();
    }
    ExpectReservable(use.limiter->store(), use.limiter->limits(), Op::kRaise);
    const Decision decision =
        use.limiter->CallReserved(Op::kRaise, use.key.view(), units, &self.reservation);
    if (IsOver(self.reservation)) return CallMethod(object, refuse).release().ptr();
    return NewDecision(decision, self.owner);
  });
}

// (id): makes the records by which another process can settle it; from then on the subclass settles
// it. Does nothing if another thread has made them. No Python code runs between the look at the
// state and its end.
PyObject* Record(PyObject* object, PyObject* id) {
  return Guarded([&]() -> PyObject* {
    LiveReservation& self = Self(object);
    if (!PyBytes_Check(id)) throw py::type_error("the id is another object; expected bytes");
    if (self.is_live == 0) Py_RETURN_NONE;
    SetReservationId(py::reinterpret_borrow<py::bytes>(id), &self.reservation);
    if (self.is_settled != 0) {
      if (self.holding == nullptr) {
        self.reservation.is_settled = true;
        for (Reservation::Part& part : self.reservation.parts) {
          if (part.units == Reservation::kNone) continue;
          part.units = std::min(self.settled_at, Reservation::kMostUnits);
        }
      }
      // As long as a record is kept that was settled in the store.
      const int64_t ends_ns = self.settled_ns + Reservation::kSettledNs;
      self.reservation.ttl_ns =
          std::min(self.reservation.ttl_ns, ends_ns - self.reservation.admitted_ns);
    }
    if (self.holding == nullptr) {
      const Use use(self);
      use.limiter->RecordReserved(use.key.view(), &self.reservation);
    } else {
      self.holding->Record(&self.reservation);
    }
    self.is_live = 0;
    self.open_in = kNowhere;
    Py_RETURN_NONE;
  });
}

// What the records have: the id, when the estimate was charged, and the units of each limit with
// the instant until which they count, as call_reserved() takes them.
PyObject* Recorded(PyObject* object, void*) {
  return Guarded([&]() -> PyObject* {
    const Reservation& reservation = Self(object).reservation;
    py::list parts;
    for (const Reservation::Part& part : reservation.parts) {
      parts.append(py::make_tuple(part.units, part.until_ns));
    }
    const py::bytes id(reinterpret_cast<const char*>(reservation.id.data()), sizeof reservation.id);
    return py::make_tuple(id, reservation.admitted_ns, py::tuple(parts)).release().ptr();
  });
}

// What a request by rules costs, as RuleLimiter._usage_cost() returns it, without another match;
// None where that must be asked.
PyObject* UsageCost(PyObject* object, PyObject*) {
  return Guarded([&]() -> PyObject* {
    const Holding* const holding = Self(object).holding.get();
    return (holding == nullptr ? py::none() : holding->UsageCost()).release().ptr();
  });
}

void ExpectSubclass(PyObject* type) {
  if (!PyType_Check(type) ||
      !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type), &reservation_type)) {
    throw py::type_error("the class is another; expected a subclass of LiveReservation");
  }
}

// An object of `type` for the key of a limiter, or what several have charged.
py::object Opened(PyObject* type, PyObject* owner, PyObject* whose) {
  ExpectSubclass(type);
  auto* const kind = reinterpret_cast<PyTypeObject*>(type);
  auto object = py::reinterpret_steal<py::object>(New(kind, nullptr, nullptr));
  if (!object) throw py::error_already_set();
  LiveReservation& self = Self(object.ptr());
  Py_INCREF(owner);
  self.owner = owner;
  Py_INCREF(whose);
  self.whose = whose;
  self.is_live = 1;
  self.open_in = self.made_in;
  self.reservation.unrecorded = true;
  return object;
}

// The limiter in `object` if its reservations can be settled here; null if they cannot.
Limiter* SettledHere(PyObject* object) {
  if (!IsLimiter(object)) {
    throw py::type_error("the limiter is another object; expected a Limiter");
  }
  Limiter* const limiter = LimiterOf(object);
  if (limiter == nullptr) throw py::error_already_set();
  return limiter->blocks() || HasPythonClock(object) ? nullptr : limiter;
}

void ExpectArguments(Py_ssize_t count, Py_ssize_t expected) {
  if (count != expected) throw py::type_error("the arguments are too few or too many");
}

void TakeOver(LiveReservation& self, const Decision& decision, PyObject* owner) {
  self.is_refused = decision.allowed ? 0 : 1;
  if (!decision.allowed) self.open_in = kNowhere;
  self.decision = NewDecision(decision, owner);
  if (self.decision == nullptr) throw py::error_already_set();
}

// (type, owner, key, units, ttl_ns): reserves, and returns the reservation; None if that is to be
// made by call_reserved(). Owners that are no limiters have a method of their own.
PyObject* ReserveAtOnce(PyObject*, PyObject* const* args, Py_ssize_t count) {
  static PyObject* const reserve = Interned("_reserve_at_once");
  return Guarded([&]() -> PyObject* {
    ExpectArguments(count, 5);
    if (!IsLimiter(args[1])) {
      PyObject* const arguments[] = {args[1], args[0], args[2], args[3], args[4]};
      return PyObject_VectorcallMethod(reserve, arguments, 5, nullptr);
    }
    Limiter* const limiter = SettledHere(args[1]);
    if (limiter == nullptr) Py_RETURN_NONE;
    KeyView key;
    if (!key.Read(args[2])) return nullptr;
    const int64_t units = ReservedUnits(Op::kReserve, args[3]);
    ExpectReservable(limiter->store(), limiter->limits(), Op::kReserve);
    py::object object = Opened(args[0], args[1], args[2]);
    LiveReservation& self = Self(object.ptr());
    self.reservation.ttl_ns = PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred() != nullptr) return nullptr;
    const Decision decision =
        limiter->CallReserved(Op::kReserve, key.view(), units, &self.reservation);
    TakeOver(self, decision, self.owner);
    return object.release().ptr();
  });
}

// (type, limiter, key, units, decision, first): what the hit of a decision has charged, as a
// reservation, whose life has no end; None if the limiter is not one of memory.
PyObject* ReservationOfHit(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return Guarded([&]() -> PyObject* {
    ExpectArguments(count, 6);
    Limiter* const limiter = SettledHere(args[1]);
    if (limiter == nullptr) Py_RETURN_NONE;
    const size_t first = PyLong_AsSize_t(args[5]);
    const int64_t units = PyLong_AsLongLong(args[3]);
    if (PyErr_Occurred() != nullptr) return nullptr;
    py::object object = Opened(args[0], args[1], args[2]);
    LiveReservation& self = Self(object.ptr());
    TakeOverHit(args[4], first, limiter->limits().size(), units, &self.reservation);
    Py_INCREF(args[4]);
    self.decision = args[4];
    return object.release().ptr();
  });
}

PyMethodDef live_methods[] = {
    {"commit", AsMethod(Commit), METH_FASTCALL | METH_KEYWORDS,
     "commit($self, actual=None, *, usage=None)\n--\n\n"
     "Makes `actual` what the reservation has charged: charges the difference in full, as\n"
     "charge() does, or gives it back as far as it still counts. By rules with a `usage`, what\n"
     "that costs: ``commit(usage={\"input\": 300, \"output\": 20})``.\n\n"
     "Of a plan, `actual` is a list with one for each limiter. Returns the decision of the limits\n"
     "afterwards, whose `charged` is the least that a limit has charged in all; it is `degraded`\n"
     "if the storage did not answer: then call it again, as leaving the ``with`` block does. A\n"
     "second commit of the same number changes nothing. Raises ReservationError if the\n"
     "reservation was refused, was settled at another number, or is not known (any more):\n"
     "nothing is changed."},
    {"release", Release, METH_NOARGS,
     "release($self)\n--\n\n"
     "Gives the estimate back, like a commit of 0; rules that count requests forget it too."},
    {"extend", AsMethod(Extend), METH_FASTCALL | METH_KEYWORDS,
     "extend($self, more)\n--\n\n"
     "Reserves `more` units in addition, all or none.\n\n"
     "Returns the decision: refused if there is no room, so that a stream can stop; the\n"
     "reservation is then as it was. Raises ReservationError if it is not open, and\n"
     "ConfigurationError for a sliding log."},
    {"_usage_cost", UsageCost, METH_NOARGS, nullptr},
    {"_record", Record, METH_O, "_record($self, id, /)\n--\n\nMakes its records."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef members[] = {
    {const_cast<char*>("decision"), T_OBJECT_EX, offsetof(LiveReservation, decision), 0,
     const_cast<char*>("The decision on the estimate.")},
    {const_cast<char*>("_owner"), T_OBJECT_EX, offsetof(LiveReservation, owner), 0, nullptr},
    {const_cast<char*>("_whose"), T_OBJECT_EX, offsetof(LiveReservation, whose), 0, nullptr},
    {const_cast<char*>("_is_live"), T_BOOL, offsetof(LiveReservation, is_live), READONLY, nullptr},
    {const_cast<char*>("_is_refused"), T_BOOL, offsetof(LiveReservation, is_refused), 0, nullptr},
    {const_cast<char*>("_is_settled"), T_BOOL, offsetof(LiveReservation, is_settled), 0, nullptr},
    {const_cast<char*>("_settled_at"), T_LONGLONG, offsetof(LiveReservation, settled_at), READONLY,
     nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyObject* IsOfAnotherProcess(PyObject* self, void*) {
  return PyBool_FromLong(Self(self).made_in != ForkGeneration());
}

PyGetSetDef properties[] = {
    {"_is_of_another_process", IsOfAnotherProcess, nullptr, nullptr, nullptr},
    {"_recorded", Recorded, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

// (type): adds the methods to a subclass, which calls them without a detour then.
PyObject* AddLiveMethods(PyObject*, PyObject* type) {
  return Guarded([&]() -> PyObject* {
    ExpectSubclass(type);
    AddFastMethods(py::reinterpret_borrow<py::type>(type), live_methods);
    Py_RETURN_NONE;
  });
}

PyMethodDef functions[] = {
    {"add_live_methods", AddLiveMethods, METH_O, nullptr},
    {"reserve_at_once", AsMethod(ReserveAtOnce), METH_FASTCALL, nullptr},
    {"reservation_of_hit", AsMethod(ReservationOfHit), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

py::object ReserveTogether(py::handle type, py::handle owner, py::handle whose,
                           std::unique_ptr<Holding> holding, py::handle units, int64_t ttl_ns) {
  const Holding::Units estimate = holding->Read(Op::kReserve, units);
  holding->Expect(Op::kReserve);
  py::object object = Opened(type.ptr(), owner.ptr(), whose.ptr());
  LiveReservation& self = Self(object.ptr());
  self.holding = std::move(holding);
  self.reservation.ttl_ns = ttl_ns;
  const Decision decision = self.holding->Call(Op::kReserve, estimate, &self.reservation);
  TakeOver(self, decision, self.holding->decides());
  return object;
}

py::object TakenOver(py::handle type, py::handle owner, py::handle whose,
                     std::unique_ptr<Holding> holding, Reservation charged, py::handle decision) {
  py::object object = Opened(type.ptr(), owner.ptr(), whose.ptr());
  LiveReservation& self = Self(object.ptr());
  self.holding = std::move(holding);
  self.reservation = std::move(charged);
  self.decision = decision.inc_ref().ptr();
  return object;
}

void RegisterLiveReservation(py::module_& m) {
  PyTypeObject& type = reservation_type;
  reservation_as_number.nb_bool = IsTrue;
  type.tp_name = "tidegate._core.LiveReservation";
  type.tp_basicsize = sizeof(LiveReservation);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC;
  type.tp_new = New;
  type.tp_traverse = Traverse;
  type.tp_clear = Clear;
  type.tp_dealloc = Dealloc;
  type.tp_weaklistoffset = offsetof(LiveReservation, weak_references);
  type.tp_as_number = &reservation_as_number;
  type.tp_methods = live_methods;
  type.tp_members = members;
  type.tp_getset = properties;
  type.tp_doc = "What was reserved in memory, and only this object knows.";
  AddType(m, "LiveReservation", type);
  if (PyModule_AddFunctions(m.ptr(), functions) < 0) throw py::error_already_set();
}

}  // namespace tidegate::python
