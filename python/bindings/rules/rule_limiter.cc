// tidegate._core.RuleLimiter: the base class of tidegate's limiter with rules. check() and peek()
// are CPython fast-call methods: no Python code runs between a request's attributes and its
// decision.
#include "tidegate/rule_limiter.h"

#include <absl/container/inlined_vector.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "limiter/channel.h"
#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/decision.h"
#include "limiter/fast_call.h"
#include "limiter/functions.h"
#include "limiter/gil.h"
#include "limiter/limiter.h"
#include "limiter/quotas.h"
#include "rules/asked.h"
#include "rules/bound_rules.h"
#include "rules/rule_limiter.h"
#include "server/capsules.h"

namespace tidegate::python {
namespace {

py::object Bind(const PyRuleLimiter& limiter, const std::shared_ptr<RuleSet>& set) {
  const std::shared_ptr<RuleLimiter> before =
      limiter.rules == nullptr ? nullptr : limiter.rules->shared();
  // A large set takes long to bind; requests go on meanwhile.
  auto made = WithoutGil([&, store = limiter.store, scope = limiter.scope] {
    return RuleLimiter::Create(set, store, scope, before.get());
  });
  return py::cast(std::make_unique<BoundRules>(ValueOrThrow(std::move(made))));
}

void Use(PyRuleLimiter& limiter, const std::shared_ptr<RuleSet>& set, const py::object& hidden,
         const py::dict& usage_costs) {
  if (!limiter.is_open) Throw(Error::kClosed, "the limiter is closed");
  py::object bound = Bind(limiter, set);
  // Set before the limiter has the rules: from then on a request may read it.
  bound.attr("hidden") = hidden;
  bound.attr("usage_costs") = usage_costs;
  bound.attr("plans") = py::dict();  // of the web room
  limiter.rules = bound.cast<BoundRules*>();
  limiter.bound = std::move(bound);
}

std::unique_ptr<PyRuleLimiter> Make(const std::shared_ptr<RuleSet>& set,
                                    const std::shared_ptr<Store>& store, const py::object& clock,
                                    const std::string& scope, const py::object& hidden,
                                    const py::dict& usage_costs) {
  auto limiter = std::make_unique<PyRuleLimiter>();
  GivenClock given = ClockFrom(clock);
  limiter->store = std::make_shared<TimedStore>(store, std::move(given.clock));
  limiter->clock_function = std::move(given.function);
  limiter->scope = scope;
  Use(*limiter, set, hidden, usage_costs);
  return limiter;
}

PyTypeObject* rule_limiter_type = nullptr;  // set by RegisterRuleLimiter()

// Like Checked(), but also once closed: a place that was taken can always be given back.
const PyRuleLimiter& Held(PyObject* self) {
  const auto* const limiter = HeldBy<PyRuleLimiter>(self);
  return limiter != nullptr && limiter->rules != nullptr ? *limiter : Checked(self);
}

enum class Asking : uint8_t { kHit, kPeek };

// Decides the request that `read` fills into an Asked.
template <Asking kAsking, typename Read>
PyObject* Ask(PyObject* self, Read read) {
  return Guarded([&]() -> PyObject* {
    PyRuleLimiter& owner = Checked(self);
    // Kept alive: another rule set may replace it while the GIL is released.
    const py::object bound = owner.bound;
    BoundRules& rules = *owner.rules;
    const RuleLimiter& limiter = rules.limiter();
    Asked asked(rules);
    read(asked);
    rules.LookAt(asked.request());
    Outcomes outcomes;
    if (kAsking == Asking::kHit && limiter.store().blocks()) {
      const auto early = limiter.HitWithoutWaiting(asked.request(), asked.cost(), &outcomes);
      if (early.has_value()) return NewDecision(*early, bound.ptr(), &outcomes);
    }
    const Decision decision = Run(limiter, [&] {
      return kAsking == Asking::kHit ? limiter.Hit(asked.request(), asked.cost(), &outcomes)
                                     : limiter.Peek(asked.request(), asked.cost(), &outcomes);
    });
    return NewDecision(decision, bound.ptr(), &outcomes);
  });
}

template <Asking kAsking>
PyObject* FastAsk(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return Ask<kAsking>(self, [=](Asked& asked) {
    if (count != 0) {
      Throw(Error::kArgumentType,
            "the attributes of a request were given by position; expected names, such as "
            "check(user='42', endpoint='/api/posts')");
    }
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < named; ++i) asked.Read(PyTuple_GET_ITEM(names, i), args[i]);
  });
}

// FastAsk(), or the package's method, which finds tiers and records refusals.
template <Asking kAsking>
PyObject* FastAskWhole(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const auto* const limiter = HeldBy<PyRuleLimiter>(self);
  if (limiter == nullptr || !limiter->in_python || count != 0) [[likely]] {
    return FastAsk<kAsking>(self, args, count, names);
  }
  static PyObject* const method =
      PyUnicode_InternFromString(kAsking == Asking::kHit ? "_check_in_python" : "_peek_in_python");
  if (method == nullptr) return PyErr_NoMemory();
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  absl::InlinedVector<PyObject*, 16> all = {self};
  all.insert(all.end(), args, args + named);
  return PyObject_VectorcallMethod(method, all.data(), 1, names);
}

PyMethodDef fast_methods[] = {
    {"check", AsMethod(FastAskWhole<Asking::kHit>), METH_FASTCALL | METH_KEYWORDS,
     "check($self, /, *, cost=1, **attributes)\n--\n\n"
     "Charges all limits of the rules that apply to a request with these attributes, or none."},
    {"peek", AsMethod(FastAskWhole<Asking::kPeek>), METH_FASTCALL | METH_KEYWORDS,
     "peek($self, /, *, cost=1, **attributes)\n--\n\n"
     "Returns the decision that check() would return now. Charges nothing."},
    {"_check", AsMethod(FastAsk<Asking::kHit>), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"_peek", AsMethod(FastAsk<Asking::kPeek>), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

void Refund(const py::object& self, const py::dict& attributes, const py::object& decision) {
  const PyRuleLimiter& owner = Checked(self.ptr());
  const Decision* const hit = DecisionOrNone(decision.ptr());
  const py::object bound = RulesOf(owner, decision);
  auto& rules = bound.cast<BoundRules&>();
  Asked asked(rules);
  asked.ReadAll(attributes);
  Run(rules.limiter(), [&] { rules.limiter().Refund(asked.request(), asked.cost(), hit); });
}

// Calls `use` with the rules that decided `decision`, the request and the decision.
template <typename Use>
auto OfPlaces(const py::object& self, const py::dict& attributes, const py::object& decision,
              Use use) {
  const Decision* const hit = DecisionOrNone(decision.ptr());
  if (hit == nullptr) {
    Throw(Error::kArgumentType, "the decision of a release is None; expected a Decision");
  }
  const py::object bound = RulesOf(Held(self.ptr()), decision);
  auto& rules = bound.cast<BoundRules&>();
  Asked asked(rules);
  asked.ReadAll(attributes);
  return use(bound, rules.limiter(), asked, *hit);
}

void Release(const py::object& self, const py::dict& attributes, const py::object& decision) {
  OfPlaces(self, attributes, decision,
           [](const py::object&, RuleLimiter& limiter, const Asked& asked, const Decision& hit) {
             Run(limiter, [&] { limiter.Release(asked.request(), asked.cost(), hit); });
           });
}

// The decision that identifies the places from now on, or None if the store did not answer.
py::object Extend(const py::object& self, const py::dict& attributes, const py::object& decision) {
  return OfPlaces(
      self, attributes, decision,
      [](const py::object& bound, RuleLimiter& limiter, const Asked& asked, const Decision& hit) {
        const auto extended =
            Run(limiter, [&] { return limiter.Extend(asked.request(), asked.cost(), hit); });
        if (!extended.has_value()) return py::object(py::none());
        return py::reinterpret_steal<py::object>(NewDecision(*extended, bound.ptr()));
      });
}

py::object ChargeInFull(const py::object& self, const py::dict& attributes) {
  const py::object bound = Checked(self.ptr()).bound;
  auto& rules = bound.cast<BoundRules&>();
  Asked asked(rules);
  asked.ReadAll(attributes);
  const Decision decision = Run(
      rules.limiter(), [&] { return rules.limiter().ChargeInFull(asked.request(), asked.cost()); });
  return py::reinterpret_steal<py::object>(NewDecision(decision, bound.ptr()));
}

// Gives back a part of what a request cost, which is not given back itself.
void RefundCost(const py::object& self, const py::dict& attributes) {
  const py::object bound = Checked(self.ptr()).bound;
  auto& rules = bound.cast<BoundRules&>();
  Asked asked(rules);
  asked.ReadAll(attributes);
  Run(rules.limiter(), [&] { rules.limiter().RefundCost(asked.request(), asked.cost()); });
}

void Reset(const py::object& self, const py::dict& attributes, int op,
           const std::optional<RuleLimiter::Ids>& rules_named) {
  const PyRuleLimiter& owner = Checked(self.ptr());
  const py::object bound = owner.bound;
  auto& rules = bound.cast<BoundRules&>();
  Asked asked(rules);
  asked.ReadAll(attributes);
  const bool keeps_bought = static_cast<Op>(op) == Op::kReset;
  const RuleLimiter::Ids* const only = rules_named.has_value() ? &*rules_named : nullptr;
  Run(rules.limiter(), [&] {
    keeps_bought ? rules.limiter().Reset(asked.request(), only)
                 : rules.limiter().Forget(asked.request(), only);
  });
}

void BringForward(const py::object& self, const py::dict& attributes) {
  const py::object bound = Checked(self.ptr()).bound;
  auto& rules = bound.cast<BoundRules&>();
  Asked asked(rules);
  asked.ReadAll(attributes);
  ThrowUnlessOk(
      Run(rules.limiter(), [&] { return rules.limiter().BringForward(asked.request()); }));
}

// See BeginOn(). The rules keep the limits and the store alive.
py::object Begin(const py::object& self, int op_number, const py::dict& attributes,
                 const py::object& decision, const py::object& loop, const py::object& channel) {
  const auto op = static_cast<Op>(op_number);
  const PyRuleLimiter& owner = op == Op::kRelease ? Held(self.ptr()) : Checked(self.ptr());
  const Decision* const hit = DecisionOrNone(decision.ptr());
  const bool gives_back = op == Op::kRefund || op == Op::kRelease;
  const py::object bound = gives_back ? RulesOf(owner, decision) : owner.bound;
  const RuleLimiter& limiter = bound.cast<BoundRules&>().limiter();
  Asked asked(bound.cast<BoundRules&>());
  asked.ReadAll(attributes);
  const bool has_outcomes = op == Op::kHit || op == Op::kPeek;
  const auto outcomes = has_outcomes ? std::make_shared<Outcomes>() : nullptr;
  const auto submit = [&](Store::Done done) {
    return limiter.Submit(op, asked.request(), asked.cost(), hit, outcomes.get(), std::move(done));
  };
  return BeginOn(loop, channel, bound, limiter.store().store(), op, outcomes, submit);
}

// What the request's keys have of the quotas that apply to it: the name and the count of each
// quota, and its TupleOf().
py::list Quotas(const py::object& self, const py::dict& attributes) {
  const py::object bound = Checked(self.ptr()).bound;
  auto& rules = bound.cast<BoundRules&>();
  Asked asked(rules);
  asked.ReadAll(attributes);
  const auto all =
      ValueOrThrow(Run(rules.limiter(), [&] { return rules.limiter().StatusOf(asked.request()); }));
  py::list quotas;
  for (const auto& [limit, status] : all) {
    quotas.append(py::make_tuple(limit->name(), limit->count(), TupleOf(status)));
  }
  return quotas;
}

void TopUp(const py::object& self, const py::dict& attributes, const std::string& quota,
           const py::object& units, const py::object& expires_s, const py::object& priority) {
  const py::object bound = Checked(self.ptr()).bound;
  auto& rules = bound.cast<BoundRules&>();
  Asked asked(rules);
  asked.ReadAll(attributes);
  const QuotaTopUp top_up = TopUpFrom(units, expires_s, priority);
  ThrowUnlessOk(
      Run(rules.limiter(), [&] { return rules.limiter().TopUp(asked.request(), quota, top_up); }));
}

// (name of the quota, key, percent, used, available, resets) of each event.
py::list TakeEvents(const py::object& self) {
  py::list result;
  const auto* const owner = HeldBy<PyRuleLimiter>(self.ptr());  // which may be closed
  if (owner == nullptr || owner->rules == nullptr) return result;
  for (const auto& [limit, event] : owner->rules->limiter().TakeEvents()) {
    result.append(py::make_tuple(limit->name(), py::bytes(event.key), event.percent, event.used,
                                 event.available, event.resets_s));
  }
  return result;
}

py::list Explain(const py::object& self, const py::dict& attributes) {
  const PyRuleLimiter& owner = Checked(self.ptr());
  const py::object bound = owner.bound;
  auto& rules = bound.cast<BoundRules&>();
  Asked asked(rules);
  asked.ReadAll(attributes);
  const RuleSet& set = rules.limiter().rules();
  const int64_t now_ns = rules.limiter().store().NowNs();
  RuleSet::Matched matched;
  set.Match(asked.request(), now_ns, &matched);
  py::list reasons;
  for (const RuleSet::Reason& reason : set.Explain(asked.request(), now_ns)) {
    py::object key = py::none();
    py::list limits;
    for (const RuleSet::Applied& applied : matched.rules) {
      if (applied.rule != reason.rule) continue;
      key = py::bytes(applied.key.data(), applied.key.size());
      for (uint32_t i = 0; i < applied.limits.count; ++i) {
        limits.append(py::cast(set.limits()[applied.limits.first + i]));
      }
    }
    reasons.append(py::make_tuple(set.rules()[reason.rule].id, reason.applies, reason.why, key,
                                  std::move(limits)));
  }
  return reasons;
}

// The entry of a list, the rules with their keys, the cost and the priority of a request, without a
// charge. Matches it `times` times, for benchmarks.
py::tuple Match(const py::object& self, const py::dict& attributes, int times) {
  const PyRuleLimiter& owner = Checked(self.ptr());
  Asked asked(*owner.rules);
  asked.ReadAll(attributes);
  const RuleSet& set = owner.rules->limiter().rules();
  RuleSet::Matched matched;
  const int64_t now_ns = owner.store->NowNs();
  for (int i = 0; i < times; ++i) set.Match(asked.request(), now_ns, &matched);
  py::list rules;
  for (const RuleSet::Applied& applied : matched.rules) {
    rules.append(py::make_tuple(set.rules()[applied.rule].id,
                                py::bytes(applied.key.data(), applied.key.size())));
  }
  return py::make_tuple(matched.listed == nullptr ? py::none() : py::cast(matched.listed->name),
                        rules, matched.cost, PriorityName(matched.priority));
}

py::list RuleStatsOf(const py::object& self) {
  const RuleLimiter& limiter = Checked(self.ptr()).rules->limiter();
  const auto stats = limiter.rule_stats();
  py::list result;
  for (size_t i = 0; i < stats.size(); ++i) {
    result.append(py::make_tuple(limiter.rules().rules()[i].id, stats[i].allowed, stats[i].refused,
                                 stats[i].refused_in_shadow));
  }
  return result;
}

}  // namespace

PyObject* CheckRules(PyObject* limiter, absl::Span<const NamedAttribute> attributes) {
  return Ask<Asking::kHit>(limiter, [&](Asked& asked) {
    for (const auto& [name, value] : attributes) asked.Read(name, value);
  });
}

bool IsRuleLimiter(PyObject* object) { return PyObject_TypeCheck(object, rule_limiter_type); }

std::shared_ptr<TimedStore> TimedStoreOf(const py::object& limiter) {
  if (!IsRuleLimiter(limiter.ptr()))
    throw py::type_error("the limiter is another object; expected a RuleLimiter");
  const auto* const held = HeldBy<PyRuleLimiter>(limiter.ptr());
  if (held == nullptr)
    throw py::type_error("the limiter is not initialized; expected one after its __init__");
  return held->store;
}

void RegisterRuleLimiter(py::module_& m) {
  // Takes attributes, in which the package keeps objects that belong to one rule set.
  py::class_<BoundRules>(m, "BoundRules", py::dynamic_attr());
  py::options options;
  options.disable_function_signatures();
  py::class_<PyRuleLimiter> limiter(m, "RuleLimiter", Collected<PyRuleLimiter>());
  rule_limiter_type = reinterpret_cast<PyTypeObject*>(limiter.ptr());
  AddFastMethods(limiter, fast_methods);
  AddReservations(limiter);
  limiter
      .def(py::init(&Make), py::arg("rules"), py::arg("store"), py::arg("clock"), py::arg("scope"),
           py::arg("hidden"), py::arg("usage_costs"))
      .def_readwrite("_in_python", &PyRuleLimiter::in_python)
      .def("_use", &Use, py::arg("rules"), py::arg("hidden"), py::arg("usage_costs"))
      .def_property_readonly("_bound", [](const PyRuleLimiter& self) { return self.bound; })
      .def("_charge", &ChargeInFull, py::arg("attributes"))
      .def("_refund", &Refund, py::arg("attributes"), py::arg("decision"))
      .def("_release", &Release, py::arg("attributes"), py::arg("decision"))
      .def("_extend", &Extend, py::arg("attributes"), py::arg("decision"))
      .def("_refund_cost", &RefundCost, py::arg("attributes"))
      .def("_reset", &Reset, py::arg("attributes"), py::arg("op"), py::arg("rules") = py::none())
      .def("_bring_forward", &BringForward, py::arg("attributes"))
      .def("_begin", &Begin, py::arg("op"), py::arg("attributes"), py::arg("decision"),
           py::arg("loop"), py::arg("channel"))
      .def("_explain", &Explain, py::arg("attributes"))
      .def("_quotas", &Quotas, py::arg("attributes"))
      .def("_top_up", &TopUp, py::arg("attributes"), py::arg("quota"), py::arg("units"),
           py::arg("expires_s"), py::arg("priority"))
      .def("_take_quota_events", &TakeEvents)
      .def("_match", &Match, py::arg("attributes"), py::arg("times") = 1)
      .def("_stats",
           [](const py::object& self) {
             return DictOf(Checked(self.ptr()).rules->limiter().stats());
           })
      .def("_rule_stats", &RuleStatsOf)
      .def("_native",
           [](const py::object& self) {
             return ToCapsule(KeptBy(self, self.cast<PyRuleLimiter&>().rules->shared()),
                              kRuleLimiterCapsule);
           })
      .def(
          "_set_load_factor",
          [](const py::object& self, const std::string& priority, double factor) {
            Checked(self.ptr()).rules->limiter().load().Set(*ParsePriority(priority), factor);
          },
          py::arg("priority"), py::arg("factor"))
      .def(
          "_load_factor",
          [](const py::object& self, const std::string& priority) {
            return Checked(self.ptr()).rules->limiter().load().Get(*ParsePriority(priority));
          },
          py::arg("priority"))
      .def("_now_ns", [](const py::object& self) { return Checked(self.ptr()).store->NowNs(); })
      .def("_close",
           [](PyRuleLimiter& self) {
             if (!std::exchange(self.is_open, false)) return;
             const std::shared_ptr<TimedStore> store = self.store;
             WithoutGil([&] { store->store().GiveLeasesBack(); });
           })
      .def_static("_add_fast_methods", [](const py::type& type) {
        if (!PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(type.ptr()), rule_limiter_type)) {
          throw py::type_error("the class is another; expected a subclass of RuleLimiter");
        }
        AddFastMethods(type, fast_methods);
      });
}

}  // namespace tidegate::python
