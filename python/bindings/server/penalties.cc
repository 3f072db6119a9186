// tidegate.server._native: the table of callers that are throttled or blocked.
#include "server/checks/penalties.h"

#include <pybind11/stl.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "limiter/convert.h"
#include "limiter/gil.h"
#include "server/capsules.h"
#include "server/classes.h"

namespace tidegate::python {
namespace {

using server::Penalties;

// The longest penalty, in seconds: one day.
constexpr double kLongest = 86'400;

Penalties::Entry EntryOf(const std::string& caller, const std::string& action, double seconds,
                         const std::string& reason) {
  Penalties::Entry entry;
  const size_t colon = caller.find(':');
  const std::string kind = caller.substr(0, colon);
  if (colon == std::string::npos || (kind != "user" && kind != "ip") ||
      colon + 1 == caller.size()) {
    Throw(Error::kConfiguration,
          "the caller is '" + caller + "'; expected user:NAME or ip:ADDRESS");
  }
  if (action != "throttle" && action != "block") {
    Throw(Error::kConfiguration, "the action is '" + action + "'; expected throttle or block");
  }
  if (!(seconds > 0 && seconds <= kLongest)) {
    Throw(Error::kConfiguration, "the penalty lasts " + std::to_string(seconds) +
                                     " s; expected more than 0 and at most 86400");
  }
  entry.is_ip = kind == "ip";
  entry.name = caller.substr(colon + 1);
  entry.blocks = action == "block";
  entry.length_ns = std::llround(seconds * 1e9);
  entry.reason = reason;
  return entry;
}

}  // namespace

void RegisterPenalties(py::module_& m) {
  py::class_<Penalties, std::shared_ptr<Penalties>>(m, "Penalties")
      .def(
          py::init(
              [](const std::vector<std::tuple<std::string, std::string, double, std::string>>& rows,
                 const py::object& clock) {
                std::vector<Penalties::Entry> entries;
                entries.reserve(rows.size());
                for (const auto& [caller, action, seconds, reason] : rows) {
                  entries.push_back(EntryOf(caller, action, seconds, reason));
                }
                return std::make_shared<Penalties>(
                    entries, clock.is_none() ? nullptr : FromCapsule<Clock>(clock, kClockCapsule));
              }),
          py::arg("rows"), py::arg("clock") = py::none())
      .def("__len__", &Penalties::size);
}

}  // namespace tidegate::python
