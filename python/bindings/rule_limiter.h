// The store and the clock behind a limiter with rules of Python's.
#ifndef TIDEGATE_PYTHON_BINDINGS_RULE_LIMITER_H_
#define TIDEGATE_PYTHON_BINDINGS_RULE_LIMITER_H_

#include <pybind11/pybind11.h>

#include <memory>

#include "tidegate/timed_store.h"

namespace tidegate::python {

// Throws py::type_error where `limiter` is no tidegate._core.RuleLimiter.
std::shared_ptr<TimedStore> TimedStoreOf(const pybind11::object& limiter);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_RULE_LIMITER_H_
