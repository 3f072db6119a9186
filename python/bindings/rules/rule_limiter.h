// The core's limiter inside a Python limiter with rules.
#ifndef TIDEGATE_PYTHON_BINDINGS_RULE_LIMITER_H_
#define TIDEGATE_PYTHON_BINDINGS_RULE_LIMITER_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "tidegate/timed_store.h"

namespace tidegate::python {

bool IsRuleLimiter(PyObject* object);

using NamedAttribute = std::pair<PyObject*, PyObject*>;

// The decision of check() on a request with these attributes, which may include `cost`: a new
// reference, or nullptr with an exception set. `limiter` must be a tidegate._core.RuleLimiter.
PyObject* CheckRules(PyObject* limiter, absl::Span<const NamedAttribute> attributes);

// The store and the clock of a limiter with rules. Throws py::type_error if `limiter` is not a
// tidegate._core.RuleLimiter.
std::shared_ptr<TimedStore> TimedStoreOf(const pybind11::object& limiter);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_RULE_LIMITER_H_
