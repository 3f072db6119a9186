// Passes objects of _core to another extension. Each extension has its own copy of the core's code
// and of Abseil, whose hashes differ between copies, so the other extension may only call virtual
// functions of these objects and read their plain members.
#ifndef TIDEGATE_BINDINGS_SERVER_CAPSULES_H_
#define TIDEGATE_BINDINGS_SERVER_CAPSULES_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

namespace tidegate::python {

inline constexpr const char* kStoreCapsule = "tidegate.Store";
inline constexpr const char* kClockCapsule = "tidegate.Clock";
inline constexpr const char* kRuleLimiterCapsule = "tidegate.RuleLimiter";

template <typename T>
pybind11::capsule ToCapsule(std::shared_ptr<T> object, const char* name) {
  auto held = std::make_unique<std::shared_ptr<T>>(std::move(object));
  pybind11::capsule capsule(held.get(), name, [](PyObject* dying) {
    const char* const its_name = PyCapsule_GetName(dying);
    delete static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(dying, its_name));
  });
  held.release();  // NOLINT(bugprone-unused-return-value): the capsule owns it
  return capsule;
}

// Raises TypeError for any other object.
template <typename T>
std::shared_ptr<T> FromCapsule(const pybind11::object& capsule, const char* name) {
  if (PyCapsule_IsValid(capsule.ptr(), name) == 0) {
    throw pybind11::type_error("the capsule is " + pybind11::repr(capsule).cast<std::string>() +
                               "; expected one of " + std::string(name));
  }
  return *static_cast<std::shared_ptr<T>*>(PyCapsule_GetPointer(capsule.ptr(), name));
}

}  // namespace tidegate::python

#endif  // TIDEGATE_BINDINGS_SERVER_CAPSULES_H_
