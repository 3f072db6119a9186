// tidegate._core.replay.
#include "tidegate/replay.h"

#include <pybind11/stl.h>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/decision.h"

namespace tidegate::python {
namespace {

py::list PyReplay(const std::vector<Limit>& limits, const py::list& keys, const py::list& times_ns,
                  const py::object& costs, const py::object& used) {
  std::vector<KeyView> views(keys.size());
  std::vector<ReplayEvent> events(keys.size());
  if (times_ns.size() != events.size()) {
    Throw(Error::kConfiguration, std::to_string(events.size()) + " keys were given with " +
                                     std::to_string(times_ns.size()) +
                                     " times; expected a time for each key");
  }
  const py::list cost_list = costs.is_none() ? py::list() : py::list(costs);
  if (!costs.is_none() && cost_list.size() != events.size()) {
    Throw(Error::kConfiguration, std::to_string(events.size()) + " keys were given with " +
                                     std::to_string(cost_list.size()) +
                                     " costs; expected a cost for each key");
  }
  const py::list used_list = used.is_none() ? py::list() : py::list(used);
  if (!used.is_none() && used_list.size() != events.size()) {
    Throw(Error::kConfiguration, std::to_string(events.size()) + " keys were given with " +
                                     std::to_string(used_list.size()) +
                                     " used costs; expected one for each key");
  }
  for (size_t i = 0; i < events.size(); ++i) {
    if (!views[i].Read(keys[i].ptr())) throw py::error_already_set();
    events[i] = {views[i].view(), NsFrom(times_ns[i], "the time"), 1};
    if (!costs.is_none() && !ReadCost(cost_list[i].ptr(), &events[i].cost)) {
      throw py::error_already_set();
    }
    if (!used.is_none()) events[i].used = used_list[i].cast<int64_t>();
  }
  // The decisions point into the limits, which a capsule keeps alive.
  auto* kept = new std::vector<Limit>(limits);
  const py::capsule capsule(kept, [](void* p) { delete static_cast<std::vector<Limit>*>(p); });
  py::list result;
  for (const Decision& decision : Replay(*kept, events)) {
    result.append(py::reinterpret_steal<py::object>(NewDecision(decision, capsule.ptr())));
  }
  return result;
}

}  // namespace

void RegisterReplay(py::module_& m) {
  m.def("replay", &PyReplay, py::arg("limits"), py::arg("keys"), py::arg("times_ns"),
        py::arg("costs"), py::arg("used") = py::none());
}

}  // namespace tidegate::python
