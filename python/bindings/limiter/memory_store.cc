// tidegate._core.Store, the base class of all stores, and MemoryStore.
#include "tidegate/memory_store.h"

#include <memory>
#include <string>
#include <utility>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/functions.h"
#include "limiter/gil.h"
#include "server/capsules.h"

namespace tidegate::python {

void RegisterMemoryStore(py::module_& m) {
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
  py::class_<MemoryStore, Store, std::shared_ptr<MemoryStore>>(m, "MemoryStore")
      .def(py::init([](int64_t capacity) {
             return ValueOrThrow(MemoryStore::Create({.capacity = capacity}));
           }),
           py::arg("capacity"))
      .def_property_readonly_static(
          "DEFAULT_CAPACITY", [](const py::object&) { return MemoryOptions::kDefaultCapacity; });
}

}  // namespace tidegate::python
