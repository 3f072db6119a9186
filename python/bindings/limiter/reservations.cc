// tidegate._core.Reservation, what one call of a reservation knows, and the calls of a Limiter.
#include "limiter/reservations.h"

#include <pybind11/stl.h>

#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "limiter/channel.h"
#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/decision.h"
#include "limiter/gil.h"
#include "limiter/limiter.h"

namespace tidegate::python {

py::object CallReserved(py::handle owner, Store& store, Op op, py::handle loop, py::handle channel,
                        absl::FunctionRef<std::optional<Decision>(Store::Done)> submit) {
  if (!loop.is_none()) return BeginOn(loop, channel, owner, store, op, nullptr, submit);
  const auto call = [&] {
    absl::Notification over;
    Decision decision;
    const std::optional<Decision> early = submit([&](const Decision& late) {
      decision = late;
      over.Notify();
    });
    if (early.has_value()) return *early;
    store.Flush();
    over.WaitForNotification();
    return decision;
  };
  const Decision decision = store.blocks() ? WithoutGil(call) : call();
  return py::reinterpret_steal<py::object>(NewDecision(decision, owner.ptr()));
}

int64_t ReservedUnits(Op op, py::handle units) {
  int64_t value = 0;
  if (op != Op::kSettle) {
    if (!ReadCost(units.ptr(), &value)) throw py::error_already_set();
    if (value > Reservation::kMostUnits) {
      Throw(Error::kConfiguration, "the cost of a reservation is " + Shown(units.ptr()) +
                                       "; expected at most 9007199254740991");
    }
    return value;
  }
  constexpr const char* kExpected = "an int from 0 up";
  const py::object number = IntFrom(units.ptr(), "the actual cost", kExpected);
  if (!number) throw py::error_already_set();
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow > 0) return std::numeric_limits<int64_t>::max();
  if (overflow < 0 || value < 0) {
    Throw(Error::kConfiguration,
          "the actual cost is " + Shown(units.ptr()) + "; expected " + kExpected);
  }
  return value;
}

void SetReservationId(const py::bytes& id, Reservation* reservation) {
  const auto bytes = static_cast<std::string>(id);
  if (bytes.size() != sizeof reservation->id) throw py::value_error("an id has 16 bytes");
  std::memcpy(reservation->id.data(), bytes.data(), bytes.size());
}

void TakeOverHit(py::handle decision, size_t first, size_t count, int64_t cost,
                 Reservation* reservation) {
  const Decision& hit = ExpectDecision(decision.ptr());
  absl::Span<const Decision> outcomes = OutcomesOf(decision.ptr());
  outcomes = outcomes.empty() ? absl::MakeConstSpan(&hit, 1) : outcomes.subspan(first, count);
  if (outcomes.size() != count) throw py::value_error("the decision lacks outcomes");
  reservation->admitted_ns = hit.at_ns;
  for (const Decision& each : outcomes) {
    reservation->parts.push_back(
        {each.allowed ? cost : Reservation::kNone, hit.at_ns + each.reset_after_ns});
  }
}

void ExpectReservable(const Store& store, absl::Span<const BoundLimit> limits, Op op) {
  if (op == Op::kSettle) return;
  for (const BoundLimit& bound : limits) ThrowUnlessOk(Reservable(store, bound.limit, op));
}

namespace {

using PartTuple = std::tuple<int64_t, int64_t>;

std::shared_ptr<Reservation> NewReservation(const py::bytes& id, int64_t ttl_ns,
                                            int64_t admitted_ns,
                                            const std::vector<PartTuple>& parts, bool gives_back,
                                            bool unrecorded) {
  auto reservation = std::make_shared<Reservation>();
  SetReservationId(id, reservation.get());
  reservation->ttl_ns = ttl_ns;
  reservation->admitted_ns = admitted_ns;
  reservation->gives_back = gives_back;
  reservation->unrecorded = unrecorded;
  for (const auto& [units, until_ns] : parts) reservation->parts.push_back({units, until_ns});
  return reservation;
}

std::tuple<int64_t, std::vector<PartTuple>> ChargedBy(const py::object& decision, size_t first,
                                                      size_t count, int64_t cost) {
  Reservation reservation;
  TakeOverHit(decision, first, count, cost, &reservation);
  std::vector<PartTuple> parts;
  for (const Reservation::Part& part : reservation.parts) {
    parts.emplace_back(part.units, part.until_ns);
  }
  return {reservation.admitted_ns, parts};
}

py::object CallLimiter(const py::object& limiter, int op_number, const py::object& key,
                       const py::object& units, const std::shared_ptr<Reservation>& reservation,
                       const py::object& loop, const py::object& channel) {
  const auto op = static_cast<Op>(op_number);
  if (!IsLimiter(limiter.ptr()))
    throw py::type_error("the limiter is another object; expected a Limiter");
  Limiter* core = LimiterOf(limiter.ptr());
  if (core == nullptr) throw py::error_already_set();
  KeyView view;
  if (!view.Read(key.ptr())) throw py::error_already_set();
  const int64_t cost = ReservedUnits(op, units);
  ExpectReservable(core->store(), core->limits(), op);
  return CallReserved(limiter, core->store(), op, loop, channel, [&](Store::Done done) {
    return core->SubmitReserved(op, view.view(), cost, reservation, std::move(done));
  });
}

}  // namespace

void RegisterReservations(py::module_& m) {
  constexpr std::pair<const char*, Found> kFound[] = {
      {"FOUND_NOTHING", Found::kNothing}, {"FOUND_OPEN", Found::kOpen},
      {"FOUND_AGAIN", Found::kAgain},     {"FOUND_SETTLED", Found::kSettled},
      {"FOUND_OTHER", Found::kOther},     {"FOUND_NO_ANSWER", Found::kNoAnswer}};
  for (const auto& [name, found] : kFound) m.attr(name) = static_cast<int>(found);
  py::class_<Reservation, std::shared_ptr<Reservation>>(m, "Reservation")
      .def(py::init(&NewReservation), py::arg("id"), py::arg("ttl_ns") = 0,
           py::arg("admitted_ns") = 0, py::arg("parts") = std::vector<PartTuple>(),
           py::arg("gives_back") = false, py::arg("unrecorded") = false)
      .def_readonly("admitted_ns", &Reservation::admitted_ns)
      // (units, until, found, found units) of each limit.
      .def_property_readonly("parts", [](const Reservation& self) {
        py::list parts;
        for (const Reservation::Part& part : self.parts) {
          parts.append(py::make_tuple(part.units, part.until_ns, static_cast<int>(part.found),
                                      part.found_units));
        }
        return parts;
      });
  m.def("charged_by", &ChargedBy, py::arg("decision"), py::arg("first"), py::arg("count"),
        py::arg("cost"));
  m.def("call_reserved", &CallLimiter, py::arg("limiter"), py::arg("op"), py::arg("key"),
        py::arg("units"), py::arg("reservation"), py::arg("loop") = py::none(),
        py::arg("channel") = py::none());
}

}  // namespace tidegate::python
