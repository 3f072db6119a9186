// The calls of a limiter with rules on reservations.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>

#include "limiter/decision.h"
#include "limiter/live_reservation.h"
#include "limiter/reservations.h"
#include "rules/asked.h"
#include "rules/bound_rules.h"

namespace tidegate::python {
namespace {

// A call of a reservation, by the rules that decided `decision`, or those in force. Without units
// all is given back.
py::object Reserved(const py::object& self, int op_number, const py::dict& attributes,
                    const py::object& units, const std::shared_ptr<Reservation>& reservation,
                    const py::object& decision, const py::object& loop, const py::object& channel) {
  const PyRuleLimiter& owner = Checked(self.ptr());
  const auto op = static_cast<Op>(op_number);
  const py::object bound = RulesOf(owner, decision);
  const RuleLimiter& limiter = bound.cast<BoundRules&>().limiter();
  Asked asked(bound.cast<BoundRules&>());
  asked.ReadAll(attributes);
  std::optional<int64_t> cost;
  if (!units.is_none()) cost = ReservedUnits(op, units);
  absl::Status status;  // it cannot be thrown where the GIL is released
  const auto submit = [&](Store::Done done) -> std::optional<Decision> {
    auto begun = limiter.SubmitReserved(op, asked.request(), cost, reservation, std::move(done));
    if (begun.ok()) return *std::move(begun);
    status = begun.status();
    return Decision();
  };
  py::object answer = CallReserved(bound, limiter.store().store(), op, loop, channel, submit);
  ThrowUnlessOk(status);
  return answer;
}

// When the check of a decision was made, and what it has charged to each limit: units, and until
// when they count.
py::tuple ChargedBy(const py::object& self, const py::dict& attributes,
                    const py::object& decision) {
  const Decision* const hit = DecisionOrNone(decision.ptr());
  if (hit == nullptr) throw py::type_error("the decision is None; expected a Decision");
  const py::object bound = RulesOf(Checked(self.ptr()), decision);
  Asked asked(bound.cast<BoundRules&>());
  asked.ReadAll(attributes);
  const Reservation reservation = bound.cast<BoundRules&>().limiter().ReservationOf(
      asked.request(), asked.cost(), *hit, OutcomesOf(decision.ptr()));
  py::list parts;
  for (const Reservation::Part& part : reservation.parts) {
    parts.append(py::make_tuple(part.units, part.until_ns));
  }
  return py::make_tuple(reservation.admitted_ns, std::move(parts));
}

// What a request costs: the UsageCost, None if it has none; what is charged at first where there is
// one, else 0; whether a list has the request, which then costs nothing.
py::tuple UsageCostBy(const py::object& bound, const RuleSet::Matched& matched) {
  return py::make_tuple(bound.attr("usage_costs").attr("get")(matched.cost_number),
                        matched.is_estimate ? matched.cost : 0, matched.listed != nullptr);
}

// The same by the rules of a decision, or those in force.
py::tuple UsageCostOf(const py::object& self, const py::dict& attributes, const py::object& hit) {
  const py::object bound = RulesOf(Checked(self.ptr()), hit);
  Asked asked(bound.cast<BoundRules&>());
  asked.ReadAll(attributes);
  RuleSet::Matched matched;
  const RuleLimiter& limiter = bound.cast<BoundRules&>().limiter();
  limiter.rules().Match(asked.request(), limiter.store().NowNs(), &matched);
  return UsageCostBy(bound, matched);
}

// What a reservation holds, which keeps its limiter alive.
class HeldByRules final : public Holding {
 public:
  HeldByRules(const PyRuleLimiter& owner, py::object bound, const py::dict& attributes,
              const Decision* hit)
      : owner_(owner), bound_(std::move(bound)) {
    Asked asked(bound_.cast<BoundRules&>());
    asked.ReadAll(attributes);
    cost_ = asked.cost();
    held_ = bound_.cast<BoundRules&>().limiter().Hold(asked.request(), hit);
  }

  Reservation ReservationOf(const Decision& hit, absl::Span<const Decision> outcomes) {
    return held_->ReservationOf(cost_, hit, outcomes);
  }

  Units Read(Op op, py::handle units) const override {
    return units ? Units{ReservedUnits(op, units)} : Units();
  }
  void Expect(Op) const override {
    if (!owner_.is_open) Throw(Error::kClosed, "the limiter is closed");
  }
  Decision Call(Op op, const Units& units, Reservation* reservation) override {
    const auto cost = units.empty() ? std::nullopt : std::optional<int64_t>(units[0]);
    return ValueOrThrow(held_->Call(op, cost, reservation));
  }
  void Record(Reservation* reservation) override {
    Expect(Op::kSettle);
    held_->Record(reservation);
  }
  bool spans_processes() const override { return owner_.store->store().spans_processes(); }
  bool is_expiring() const override { return owner_.is_expiring; }
  bool is_awaited() const override { return false; }
  PyObject* decides() const override { return bound_.ptr(); }
  py::object UsageCost() const override { return UsageCostBy(bound_, held_->matched()); }

 private:
  const PyRuleLimiter& owner_;
  const py::object bound_;  // the rules that made it
  int64_t cost_ = 1;
  std::unique_ptr<RuleLimiter::Held> held_;
};

// Whether reservations need no records: nothing is waited for, and no Python code runs in a call.
bool IsSettledHere(const PyRuleLimiter& limiter) {
  return !limiter.store->blocks() && !limiter.clock_function;
}

// Reserves what is settled without a record; None if that needs one, or the storage waited for.
py::object ReserveByRulesAtOnce(const py::object& self, const py::object& type,
                                const py::object& whose, const py::object& units, int64_t ttl_ns) {
  const PyRuleLimiter& owner = Checked(self.ptr());
  if (!IsSettledHere(owner)) return py::none();
  auto held = std::make_unique<HeldByRules>(owner, owner.bound, py::dict(whose.attr("attributes")),
                                            nullptr);
  return ReserveTogether(type, self, whose, std::move(held), units, ttl_ns);
}

// What the check of a decision has charged to a request with these attributes, as a reservation;
// None as above.
py::object ReservationOfCheck(const py::object& self, const py::object& type,
                              const py::object& whose, const py::dict& attributes,
                              const py::object& decision) {
  const PyRuleLimiter& owner = Checked(self.ptr());
  if (!IsSettledHere(owner)) return py::none();
  const Decision& hit = ExpectDecision(decision.ptr());
  auto held = std::make_unique<HeldByRules>(owner, RulesOf(owner, decision), attributes, &hit);
  Reservation charged = held->ReservationOf(hit, OutcomesOf(decision.ptr()));
  return TakenOver(type, self, whose, std::move(held), std::move(charged), decision);
}

}  // namespace

void AddReservations(py::class_<PyRuleLimiter>& limiter) {
  limiter
      .def("_call_reserved", &Reserved, py::arg("op"), py::arg("attributes"), py::arg("units"),
           py::arg("reservation"), py::arg("decision"), py::arg("loop"), py::arg("channel"))
      .def_readwrite("_is_expiring", &PyRuleLimiter::is_expiring)
      .def("_reserve_at_once", &ReserveByRulesAtOnce, py::arg("kind"), py::arg("whose"),
           py::arg("units"), py::arg("ttl_ns"))
      .def("_reservation_of_check", &ReservationOfCheck, py::arg("kind"), py::arg("whose"),
           py::arg("attributes"), py::arg("decision"))
      .def("_charged_by", &ChargedBy, py::arg("attributes"), py::arg("decision"))
      .def("_usage_cost", &UsageCostOf, py::arg("attributes"), py::arg("decision"));
}

}  // namespace tidegate::python
