// tidegate._core.Store, the base class of all stores, and the stores of this process and host.
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/functions.h"
#include "limiter/gil.h"
#include "server/capsules.h"
#include "tidegate/local_stores.h"
#include "tidegate/shm_store.h"

namespace tidegate::python {

void RegisterLocalStores(py::module_& m) {
  py::class_<Store, std::shared_ptr<Store>>(m, "Store")
      .def_property_readonly("kind", &Store::kind)
      .def_property_readonly("name",
                             [](const Store& store) {
                               // A path in the name may have any bytes.
                               const std::string name = store.name();
                               return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
                                   name.data(), static_cast<Py_ssize_t>(name.size()), "replace"));
                             })
      .def_property_readonly("blocks", &Store::blocks)
      .def_property_readonly("spans_processes", &Store::spans_processes)
      .def_property_readonly("reads_clock", &Store::reads_clock)
      .def("_clear", &Store::Clear)
      .def("_native",
           [](const py::object& self) {
             return ToCapsule(KeptBy(self, self.cast<std::shared_ptr<Store>>()), kStoreCapsule);
           })
      .def("ping", [](Store& store) -> py::object {
        const absl::Status status = WithoutGil([&] { return store.Ping(); });
        if (status.ok()) return py::none();
        return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
            status.message().data(), static_cast<Py_ssize_t>(status.message().size()), "replace"));
      });
  py::class_<LocalStore>(m, "LocalStore")
      .def_readonly("uris", &LocalStore::uris)
      .def_readonly("has_place", &LocalStore::has_place)
      .def_readonly("place", &LocalStore::place)
      .def(
          "open",
          [](const LocalStore& kind, const std::string& place, std::optional<int64_t> capacity) {
            const auto store = ValueOrThrow(WithoutGil([&] { return kind.open(place, capacity); }));
            // Its own class is not registered, so that pybind11 would make it a Store.
            const auto shm = std::dynamic_pointer_cast<ShmStore>(store);
            return shm == nullptr ? py::cast(store) : py::cast(shm);
          },
          py::arg("place"), py::arg("capacity") = py::none());
  py::dict local_stores;
  for (const LocalStore& kind : LocalStores()) {
    local_stores[py::str(kind.scheme)] = py::cast(&kind, py::return_value_policy::reference);
  }
  m.attr("LOCAL_STORES") = local_stores;
  // Making a file may take a while (its memory is allocated at once), so only that releases the
  // GIL.
  py::class_<ShmStore, Store, std::shared_ptr<ShmStore>>(m, "ShmStore")
      .def(py::init([](const std::string& name, std::optional<int64_t> capacity) {
             return ValueOrThrow(
                 WithoutGil([&] { return ShmStore::Open(name, {.capacity = capacity}); }));
           }),
           py::arg("name"), py::arg("capacity") = py::none())
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
