// One rule set with its limiter, as Python's limiters with rules hold it.
#ifndef TIDEGATE_PYTHON_BINDINGS_BOUND_RULES_H_
#define TIDEGATE_PYTHON_BINDINGS_BOUND_RULES_H_

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "limiter/convert.h"
#include "rules/odd_values.h"
#include "tidegate/rule_limiter.h"

namespace tidegate::python {

// Decisions keep it alive. Guarded by the GIL.
class BoundRules {
 public:
  explicit BoundRules(std::shared_ptr<RuleLimiter> limiter)
      : limiter_(std::move(limiter)), values_(limiter_->rules()) {}

  RuleLimiter& limiter() const { return *limiter_; }
  const std::shared_ptr<RuleLimiter>& shared() const { return limiter_; }

  static constexpr int kCost = -2;

  // Like RuleSet::AttributeNumber(), or kCost. Names come from keyword arguments, which are mostly
  // the same few objects.
  int AttributeNumber(PyObject* name) {
    for (const auto& [known, number] : known_) {
      if (known.ptr() == name) return number;
    }
    if (PyUnicode_CompareWithASCIIString(name, "cost") == 0) return kCost;
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == nullptr) {
      PyErr_Clear();
      Throw(Error::kConfiguration,
            "an attribute is named " + Shown(name) + "; expected a name without surrogates");
    }
    const int number = limiter_->rules().AttributeNumber({text, static_cast<size_t>(size)});
    if (known_.size() < kMostKnown && PyUnicode_CHECK_INTERNED(name) != 0) {
      known_.emplace_back(py::reinterpret_borrow<py::object>(name), number);
      if (number < 0) Say("attribute", py::reinterpret_borrow<py::object>(name));
    }
    return number;
  }

  // Has the package look at values that are likely not what was meant.
  void LookAt(const Request& request) {
    if (values_.IsDue()) SayOdd(request);
  }

 private:
  void SayOdd(const Request& request) {
    for (const auto& [attribute, value] : values_.In(request)) {
      const std::string& name = limiter_->rules().attribute_names()[attribute];
      Say("value", py::str(name), py::bytes(value.data(), value.size()));
    }
  }
  // A log handler may raise: no request fails for that.
  template <typename... Args>
  void Say(const char* what, const Args&... args) {
    try {
      const py::object self = py::cast(this, py::return_value_policy::reference);
      const py::object slips = py::getattr(self, "slips", py::none());
      if (!slips.is_none()) slips.attr(what)(args...);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("what a request was given and no rule reads");
    }
  }

  static constexpr size_t kMostKnown = 16;

  const std::shared_ptr<RuleLimiter> limiter_;
  OddValues values_;
  std::vector<std::pair<py::object, int>> known_;
};

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_BOUND_RULES_H_
