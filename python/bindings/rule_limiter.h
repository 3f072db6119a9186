// The store and the clock of a tidegate._core.RuleLimiter.
#ifndef TIDEGATE_PYTHON_BINDINGS_RULE_LIMITER_H_
#define TIDEGATE_PYTHON_BINDINGS_RULE_LIMITER_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "tidegate/timed_store.h"

namespace tidegate::python {

// Throws py::type_error if `limiter` is not a tidegate._core.RuleLimiter.
std::shared_ptr<TimedStore> TimedStoreOf(const pybind11::object& limiter);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_RULE_LIMITER_H_
