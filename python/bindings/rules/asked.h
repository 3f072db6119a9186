// A Python limiter with rules, and requests as calls of it ask about them.
#ifndef TIDEGATE_PYTHON_BINDINGS_ASKED_H_
#define TIDEGATE_PYTHON_BINDINGS_ASKED_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "limiter/convert.h"
#include "limiter/decision.h"
#include "limiter/fast_call.h"
#include "limiter/gil.h"
#include "rules/bound_rules.h"
#include "tidegate/rule_limiter.h"

namespace tidegate::python {

struct PyRuleLimiter {
  std::shared_ptr<TimedStore> store;
  std::string scope;
  py::object bound;  // the BoundRules in force
  BoundRules* rules = nullptr;
  bool is_open = true;
  // Whether check() and peek() are those of the package, which finds tiers and records refusals.
  bool in_python = false;
  py::object clock_function;
  bool is_expiring =
      false;  // whether a reservation may have to be given back at the end of its life

  int Traverse(visitproc visit, void* arg) const {
    Py_VISIT(bound.ptr());
    Py_VISIT(clock_function.ptr());
    return 0;
  }
  void Clear() {
    clock_function = py::object();
  }  // calls need `bound`, whose attributes are cleared
};

inline PyRuleLimiter& Checked(PyObject* self) {
  auto* const limiter = HeldBy<PyRuleLimiter>(self);
  if (limiter == nullptr || !limiter->is_open) Throw(Error::kClosed, "the limiter is closed");
  return *limiter;
}

// The rules that decided `hit`, by which a refund must give back.
inline py::object RulesOf(const PyRuleLimiter& limiter, const py::object& hit) {
  if (hit.is_none()) return limiter.bound;
  py::object owner = DecisionOwner(hit.ptr());
  return py::isinstance<BoundRules>(owner) ? owner : limiter.bound;
}

// A request, read from keyword arguments. It points into them, so they must outlive it.
class Asked {
 public:
  explicit Asked(BoundRules& rules)
      : rules_(rules), request_(rules.limiter().rules().attributes()) {}

  void Read(PyObject* name, PyObject* value) {
    const int number = rules_.AttributeNumber(name);
    if (number == BoundRules::kCost) {
      if (!ReadCost(value, &cost_)) throw py::error_already_set();
      return;
    }
    if (value == Py_None) return;
    std::string_view& place = number < 0 ? unknown_ : request_[static_cast<size_t>(number)];
    if (PyUnicode_Check(value) && PyUnicode_IS_COMPACT_ASCII(value)) [[likely]] {
      place = {static_cast<const char*>(PyUnicode_DATA(value)),
               static_cast<size_t>(PyUnicode_GET_LENGTH(value))};
      return;
    }
    if (PyBytes_Check(value)) {
      place = {PyBytes_AS_STRING(value), static_cast<size_t>(PyBytes_GET_SIZE(value))};
      return;
    }
    if (!PyUnicode_Check(value)) {
      Throw(Error::kArgumentType, "the attribute " + py::str(name).cast<std::string>() + " is " +
                                      Shown(value) + "; expected str, bytes or None");
    }
    KeyView view;
    if (!view.Read(value)) throw py::error_already_set();
    place = view.view();
    encoded_.push_back(view.TakeEncoded());
  }
  void ReadAll(const py::dict& attributes) {
    for (const auto& [name, value] : attributes) Read(name.ptr(), value.ptr());
    rules_.LookAt(request_);
  }

  const Request& request() const { return request_; }
  int64_t cost() const { return cost_; }

 private:
  BoundRules& rules_;
  Request request_;
  int64_t cost_ = 1;
  std::string_view unknown_;
  std::vector<py::object> encoded_;
};

template <typename Call>
auto Run(const RuleLimiter& limiter, Call call) {
  if (!limiter.store().blocks()) [[likely]]
    return call();
  return WithoutGil(call);
}

// Adds the calls of reservations to the class of limiters with rules.
void AddReservations(py::class_<PyRuleLimiter>& limiter);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_ASKED_H_
