// tidegate._core.ShmStore. Making a file may take a while (its memory is allocated at once), so
// only that releases the GIL.
#include "tidegate/shm_store.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/gil.h"

namespace tidegate::python {

void RegisterShmStore(py::module_& m) {
  py::class_<ShmStore, Store, std::shared_ptr<ShmStore>>(m, "ShmStore")
      .def(py::init([](const std::string& name, std::optional<int64_t> capacity) {
             return ValueOrThrow(
                 WithoutGil([&] { return ShmStore::Open(name, {.capacity = capacity}); }));
           }),
           py::arg("name"), py::arg("capacity") = py::none())
      .def_property_readonly_static("DEFAULT_CAPACITY",
                                    [](const py::object&) { return ShmOptions::kDefaultCapacity; })
      .def_static(
          "path_of", [](const std::string& name) { return ValueOrThrow(ShmStore::PathOf(name)); },
          py::arg("name"))
      .def_static(
          "remove", [](const std::string& name) { ThrowUnlessOk(ShmStore::Remove(name)); },
          py::arg("name"))
      .def_property_readonly("path", &ShmStore::path)
      .def_property_readonly("capacity", &ShmStore::capacity)
      .def_property_readonly("bytes", &ShmStore::bytes)
      .def("now_ns", &ShmStore::NowNs)
      .def("counters",
           [](const ShmStore& store) {
             const StoreStats stats = store.stats();
             return py::make_tuple(stats.keys, stats.evictions, stats.evicted_live);
           })
      .def(
          "census",
          [](const ShmStore& store, size_t busiest) {
            const ShmStore::Census census = store.Count(store.NowNs(), busiest);
            py::list top;
            for (const ShmStore::Busy& busy : census.busiest) {
              top.append(py::make_tuple(busy.key.hi, busy.key.lo, busy.new_in_ns));
            }
            return py::make_tuple(census.live, census.idle, census.claimed, top);
          },
          py::arg("busiest") = 0);
}

}  // namespace tidegate::python
