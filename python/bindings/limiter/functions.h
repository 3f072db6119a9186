// Python functions that the core calls, such as a clock or a hook.
//
// The collector of garbage sees only references between Python objects. So the Python object that
// was made with a function holds it where the collector sees it, and C++ refers to it weakly: an
// object with a method that is the hook of its own limiter is freed with that limiter.
#ifndef TIDEGATE_PYTHON_BINDINGS_FUNCTIONS_H_
#define TIDEGATE_PYTHON_BINDINGS_FUNCTIONS_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "limiter/fast_call.h"

namespace tidegate::python {

// Keeps `object` so that any thread may release it. Needs the GIL.
std::shared_ptr<pybind11::object> Keep(pybind11::object object);

// `pointer`, which `owner` keeps alive, for code that does not know Python. Needs the GIL.
template <typename T>
std::shared_ptr<T> KeptBy(const pybind11::object& owner, std::shared_ptr<T> pointer) {
  T* const bare = pointer.get();
  auto both = std::make_shared<std::pair<std::shared_ptr<pybind11::object>, std::shared_ptr<T>>>(
      Keep(owner), std::move(pointer));
  return {std::move(both), bare};
}

// `function`, or an equal one to which a weak reference can be made. Needs the GIL.
pybind11::object Referable(const pybind11::object& function);

class WeakFunction {
 public:
  // `function` must be one that Referable() returned. Needs the GIL.
  explicit WeakFunction(const pybind11::object& function);
  // The function; null once it was freed. Needs the GIL.
  pybind11::object get() const;

 private:
  std::shared_ptr<pybind11::object> reference_;
};

// What the collector sees of a T in a Python object: T::Traverse(visit, arg) visits its references,
// and T::Clear() drops those that may be missing from then on.
template <typename T>
pybind11::custom_type_setup Collected() {
  return pybind11::custom_type_setup([](PyHeapTypeObject* heap_type) {
    PyTypeObject& type = heap_type->ht_type;
    type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
      Py_VISIT(Py_TYPE(self));
      T* const held = HeldOrNull<T>(self);
      return held == nullptr ? 0 : held->Traverse(visit, arg);
    };
    type.tp_clear = [](PyObject* self) -> int {
      T* const held = HeldOrNull<T>(self);
      if (held != nullptr) held->Clear();
      return 0;
    };
  });
}

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_FUNCTIONS_H_
