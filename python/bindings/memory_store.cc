// tidegate._core.Store, which all stores are, and MemoryStore.
#include "tidegate/memory_store.h"

#include <memory>

#include "classes.h"
#include "convert.h"

namespace tidegate::python {

void RegisterMemoryStore(py::module_& m) {
  py::class_<Store, std::shared_ptr<Store>>(m, "Store");
  py::class_<MemoryStore, Store, std::shared_ptr<MemoryStore>>(m, "MemoryStore")
      .def(py::init([](int64_t capacity) {
             return ValueOrThrow(MemoryStore::Create({.capacity = capacity}));
           }),
           py::arg("capacity"))
      .def_property_readonly_static(
          "DEFAULT_CAPACITY", [](const py::object&) { return MemoryOptions::kDefaultCapacity; });
}

}  // namespace tidegate::python
