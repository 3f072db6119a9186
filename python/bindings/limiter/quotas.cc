// The calls of a limiter on its quotas, as functions of the module: few programs need them.
#include "limiter/quotas.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/limiter.h"

namespace tidegate::python {
namespace {

Limiter& OpenLimiter(const py::object& object) {
  if (!IsLimiter(object.ptr())) {
    Throw(Error::kArgumentType, "the limiter is " + Shown(object.ptr()) + "; expected a Limiter");
  }
  Limiter* limiter = LimiterOf(object.ptr());
  if (limiter == nullptr) throw py::error_already_set();
  return *limiter;
}

int64_t IntOf(const py::object& value, const char* what, const char* accepted) {
  const py::object number = IntFrom(value.ptr(), what, accepted);
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const int64_t result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  return overflow == 0  ? result
         : overflow < 0 ? std::numeric_limits<int64_t>::min()
                        : std::numeric_limits<int64_t>::max();
}

const char* NameOf(QuotaStatus::Kind kind) {
  return kind == QuotaStatus::Kind::kBase      ? "base"
         : kind == QuotaStatus::Kind::kCarried ? "carried"
                                               : "top-up";
}

py::object ExpiryOf(int64_t expires_s) {
  if (expires_s == QuotaTopUp::kNoExpiry) return py::none();
  return py::int_(expires_s);
}

}  // namespace

py::tuple TupleOf(const QuotaStatus& status) {
  py::list grants;
  for (const QuotaStatus::Grant& grant : status.grants) {
    grants.append(py::make_tuple(NameOf(grant.kind), grant.units, grant.left,
                                 ExpiryOf(grant.expires_s), grant.priority));
  }
  return py::make_tuple(status.base, status.carried, status.topped_up, status.used,
                        status.available, status.resets_s, grants);
}

QuotaTopUp TopUpFrom(const py::object& units, const py::object& expires_s,
                     const py::object& priority) {
  QuotaTopUp top_up;
  top_up.units = IntOf(units, "the number of units", "an int from 1 up");
  if (!expires_s.is_none()) {
    top_up.expires_s =
        std::min(QuotaTopUp::kNoExpiry - 1, IntOf(expires_s, "the expiry", "an int of seconds"));
  }
  const int64_t given = IntOf(priority, "the priority", "an int from -100 to 100");
  if (given < -QuotaTopUp::kMostPriority || given > QuotaTopUp::kMostPriority) {
    Throw(Error::kConfiguration,
          "the priority is " + Shown(priority.ptr()) + "; expected an int from -100 to 100");
  }
  top_up.priority = static_cast<int>(given);
  return top_up;
}

namespace {

py::tuple StatusOf(const py::object& object, size_t quota, const py::object& key) {
  Limiter& limiter = OpenLimiter(object);
  KeyView view;
  if (!view.Read(key.ptr())) throw py::error_already_set();
  return TupleOf(ValueOrThrow(Run(limiter, [&] { return limiter.StatusOf(quota, view.view()); })));
}

void TopUp(const py::object& object, size_t quota, const py::object& key, const py::object& units,
           const py::object& expires_s, const py::object& priority) {
  Limiter& limiter = OpenLimiter(object);
  KeyView view;
  if (!view.Read(key.ptr())) throw py::error_already_set();
  const QuotaTopUp top_up = TopUpFrom(units, expires_s, priority);
  ThrowUnlessOk(Run(limiter, [&] { return limiter.TopUp(quota, view.view(), top_up); }));
}

void BringForward(const py::object& object, const py::object& key) {
  Limiter& limiter = OpenLimiter(object);
  KeyView view;
  if (!view.Read(key.ptr())) throw py::error_already_set();
  ThrowUnlessOk(Run(limiter, [&] { return limiter.BringForward(view.view()); }));
}

// (index of the limit, key, percent, used, available, resets) of each event.
py::list TakeEvents(const py::object& object) {
  py::list result;
  for (const auto& [index, event] : SharedLimiter(object)->TakeEvents()) {
    result.append(py::make_tuple(index, py::bytes(event.key), event.percent, event.used,
                                 event.available, event.resets_s));
  }
  return result;
}

}  // namespace

void RegisterQuotas(py::module_& m) {
  m.def("quota_status", &StatusOf, py::arg("limiter"), py::arg("quota"), py::arg("key"));
  m.def("quota_top_up", &TopUp, py::arg("limiter"), py::arg("quota"), py::arg("key"),
        py::arg("units"), py::arg("expires_s"), py::arg("priority"));
  m.def("quota_bring_forward", &BringForward, py::arg("limiter"), py::arg("key"));
  m.def("take_quota_events", &TakeEvents, py::arg("limiter"));
}

}  // namespace tidegate::python
