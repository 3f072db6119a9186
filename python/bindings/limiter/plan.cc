// tidegate._core.Plan, the base class of tidegate.Plan.
#include "tidegate/plan.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "limiter/channel.h"
#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/decision.h"
#include "limiter/functions.h"
#include "limiter/gil.h"
#include "limiter/limiter.h"
#include "limiter/live_reservation.h"
#include "limiter/reservations.h"

namespace tidegate::python {
namespace {

class PyPlan {
 public:
  explicit PyPlan(const py::tuple& limiters) : owners_(limiters) {
    std::vector<Limiter*> cores;
    for (const py::handle limiter : limiters) {
      if (!IsLimiter(limiter.ptr())) {
        Throw(Error::kArgumentType, "the plan has " + Shown(limiter.ptr()) + "; expected Limiters");
      }
      Limiter* core = LimiterOf(limiter.ptr());
      if (core == nullptr) throw py::error_already_set();
      cores.push_back(core);
    }
    first_ = cores.empty() ? nullptr : cores[0];
    plan_ = ValueOrThrow(Plan::Create(std::move(cores)));
  }

  // Plan::Hit() or Plan::Peek().
  template <Decision (Plan::*decide)(Plan::Keys, Plan::Costs, Outcomes*)>
  py::object Decided(const py::object& keys, const py::object& costs, bool outcomes) {
    const Call call(*this, keys, costs);
    Outcomes each;
    Outcomes* const wanted = outcomes ? &each : nullptr;
    const auto decided = [&] { return (*plan_.*decide)(call.keys, call.costs, wanted); };
    const Decision decision = plan_->blocks() ? WithoutGil(decided) : decided();
    return py::reinterpret_steal<py::object>(NewDecision(decision, owners_.ptr(), wanted));
  }

  py::object ChargeInFull(const py::object& keys, const py::object& costs) {
    const Call call(*this, keys, costs);
    const auto charge = [&] { return plan_->ChargeInFull(call.keys, call.costs); };
    const Decision decision = plan_->blocks() ? WithoutGil(charge) : charge();
    return py::reinterpret_steal<py::object>(NewDecision(decision, owners_.ptr()));
  }

  py::object Begin(const py::object& self, int op_number, const py::object& keys,
                   const py::object& costs, bool outcomes, const py::object& loop,
                   const py::object& channel) {
    const auto op = static_cast<Op>(op_number);
    const Call call(*this, keys, costs);
    const auto each = outcomes ? std::make_shared<Outcomes>() : nullptr;
    const auto submit = [&](Store::Done done) {
      return plan_->Submit(op, call.keys, call.costs, each.get(), std::move(done));
    };
    return BeginOn(loop, channel, self, first_->store(), op, each, submit);
  }

  py::object Reserved(const py::object& self, int op_number, const py::object& keys,
                      const py::object& costs, const std::shared_ptr<Reservation>& reservation,
                      const py::object& loop, const py::object& channel) {
    const auto op = static_cast<Op>(op_number);
    const Call call(*this, keys, py::none());
    const Holding::Units units = ReadUnits(op, costs);
    ExpectFor(op);
    return CallReserved(self, first_->store(), op, loop, channel, [&](Store::Done done) {
      return plan_->SubmitReserved(op, call.keys, units, reservation, std::move(done));
    });
  }

  // Reserves what is settled without a record; None if that needs one, or the storage waited for.
  py::object ReserveAtOnce(const py::object& self, const py::object& type, const py::object& keys,
                           const py::object& estimates, int64_t ttl_ns) {
    if (plan_->blocks() || HasPythonClock(py::object(owners_[0]).ptr())) return py::none();
    auto held = std::make_unique<Held>(*this, keys);
    const py::tuple whose = held->keys();
    return ReserveTogether(type, self, whose, std::move(held), estimates, ttl_ns);
  }

  bool is_expiring =
      false;  // whether a reservation may have to be given back at the end of its life

  int Traverse(visitproc visit, void* arg) const {
    Py_VISIT(owners_.ptr());
    return 0;
  }
  void Clear() {}  // a tuple cannot be missing: the limiters in it drop what they hold

 private:
  // The arguments of a call, read before anything is charged.
  struct Call {
    Call(const PyPlan& plan, const py::object& key_list, const py::object& cost_list)
        : objects(Items(key_list, "keys")) {
      const size_t size = plan.plan_->size();
      plan.ExpectOpen();
      Expect(size, objects.size(), "keys");
      views.resize(size);
      costs.assign(size, 1);
      for (size_t i = 0; i < size; ++i) {
        if (!views[i].Read(objects[i].ptr())) throw py::error_already_set();
        keys.push_back(views[i].view());
      }
      if (cost_list.is_none()) return;
      const py::tuple amounts = Items(cost_list, "costs");
      Expect(size, amounts.size(), "costs");
      for (size_t i = 0; i < size; ++i) {
        if (!ReadCost(py::object(amounts[i]).ptr(), &costs[i])) throw py::error_already_set();
      }
    }

    static py::tuple Items(const py::object& list, const char* what) {
      if (PyList_Check(list.ptr()) || PyTuple_Check(list.ptr())) return py::tuple(list);
      Throw(Error::kArgumentType, "the " + std::string(what) + " are " + Shown(list.ptr()) +
                                      "; expected a list with one for each limiter");
    }
    static void Expect(size_t size, size_t given, const char* what) {
      if (given == size) return;
      Throw(Error::kConfiguration, std::to_string(given) + " " + what + " were given for " +
                                       std::to_string(size) +
                                       " limiters; expected one for each limiter");
    }

    const py::tuple objects;
    std::vector<KeyView> views;
    std::vector<std::string_view> keys;
    std::vector<int64_t> costs;
  };

  // What a reservation holds. The reservation keeps the plan alive.
  class Held final : public Holding {
   public:
    Held(PyPlan& plan, const py::object& keys) : plan_(plan), call_(plan, keys, py::none()) {}

    const py::tuple& keys() const { return call_.objects; }

    Units Read(Op op, py::handle units) const override {
      return units ? plan_.ReadUnits(op, units) : Units(plan_.plan_->size());
    }
    void Expect(Op op) const override { plan_.ExpectFor(op); }
    Decision Call(Op op, const Units& units, Reservation* reservation) override {
      return plan_.plan_->CallReserved(op, call_.keys, units, reservation);
    }
    void Record(Reservation* reservation) override {
      plan_.ExpectOpen();
      plan_.plan_->RecordReserved(call_.keys, reservation);
    }
    bool spans_processes() const override { return plan_.first_->store().spans_processes(); }
    bool is_expiring() const override { return plan_.is_expiring; }
    bool is_awaited() const override {
      return std::any_of(plan_.owners_.begin(), plan_.owners_.end(), [](const py::handle limiter) {
        return UpkeepOf(limiter.ptr()).is_awaited();
      });
    }
    PyObject* decides() const override { return plan_.owners_.ptr(); }

   private:
    PyPlan& plan_;
    const PyPlan::Call call_;
  };

  // A closed limiter charges nothing.
  void ExpectOpen() const {
    for (const py::handle limiter : owners_) {
      if (LimiterOf(limiter.ptr()) == nullptr) throw py::error_already_set();
    }
  }
  void ExpectFor(Op op) const {
    ExpectOpen();
    for (const py::handle limiter : owners_) {
      ExpectReservable(first_->store(), LimiterOf(limiter.ptr())->limits(), op);
    }
  }
  Holding::Units ReadUnits(Op op, py::handle units) const {
    if (units.is_none()) ReservedUnits(op, units);  // raises
    const py::tuple amounts = Call::Items(py::reinterpret_borrow<py::object>(units), "costs");
    Call::Expect(plan_->size(), amounts.size(), "costs");
    Holding::Units read;
    for (const py::handle amount : amounts) read.push_back(ReservedUnits(op, amount));
    return read;
  }

  const py::tuple owners_;
  Limiter* first_ = nullptr;
  std::unique_ptr<Plan> plan_;
};

}  // namespace

void RegisterPlan(py::module_& m) {
  py::class_<PyPlan>(m, "Plan", Collected<PyPlan>())
      .def(py::init<const py::tuple&>(), py::arg("limiters"))
      .def("hit", &PyPlan::Decided<&Plan::Hit>, py::arg("keys"), py::arg("costs") = py::none(),
           py::arg("outcomes") = false)
      .def("peek", &PyPlan::Decided<&Plan::Peek>, py::arg("keys"), py::arg("costs") = py::none(),
           py::arg("outcomes") = false)
      .def_property(
          "_is_expiring", [](const PyPlan& self) { return self.is_expiring; },
          [](PyPlan& self, bool is_expiring) { self.is_expiring = is_expiring; })
      .def(
          "_reserve_at_once",
          [](const py::object& self, const py::object& type, const py::object& keys,
             const py::object& estimates, int64_t ttl_ns) {
            return self.cast<PyPlan&>().ReserveAtOnce(self, type, keys, estimates, ttl_ns);
          },
          py::arg("kind"), py::arg("keys"), py::arg("estimates"), py::arg("ttl_ns"))
      .def("charge", &PyPlan::ChargeInFull, py::arg("keys"), py::arg("costs"))
      .def(
          "_reserved",
          [](const py::object& self, int op, const py::object& keys, const py::object& costs,
             const std::shared_ptr<Reservation>& reservation, const py::object& loop,
             const py::object& channel) {
            return self.cast<PyPlan&>().Reserved(self, op, keys, costs, reservation, loop, channel);
          },
          py::arg("op"), py::arg("whose"), py::arg("units"), py::arg("reservation"),
          py::arg("loop") = py::none(), py::arg("channel") = py::none())
      .def(
          "_begin",
          [](const py::object& self, int op, const py::object& keys, const py::object& costs,
             bool outcomes, const py::object& loop, const py::object& channel) {
            return self.cast<PyPlan&>().Begin(self, op, keys, costs, outcomes, loop, channel);
          },
          py::arg("op"), py::arg("keys"), py::arg("costs"), py::arg("outcomes"), py::arg("loop"),
          py::arg("channel"));
}

}  // namespace tidegate::python
