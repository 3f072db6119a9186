// tidegate.Limit and the parsers.
#include "tidegate/limit.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "limiter/classes.h"
#include "limiter/convert.h"

namespace tidegate::python {
namespace {

std::string_view TextOf(const py::handle& text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) {
    PyErr_Clear();
    Throw(Error::kConfiguration,
          Shown(text.ptr()) + " has lone surrogates; expected text that UTF-8 can carry");
  }
  return {data, static_cast<size_t>(size)};
}

int64_t WholeNumber(const py::handle& value, const char* what) {
  const py::object number = IntFrom(value.ptr(), what, "an int from 1 up");
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const int64_t result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) {
    Throw(Error::kConfiguration, std::string(what) + " is " + Shown(value.ptr()) +
                                     "; expected 1 to " + std::to_string(Limit::kMaxCount));
  }
  return result;
}

// Converts seconds as int or float, or a timedelta, to nanoseconds.
int64_t PeriodNs(const py::handle& period) {
  if (py::hasattr(period, "total_seconds") && py::hasattr(period, "microseconds")) {
    const auto days = period.attr("days").cast<int64_t>();
    const auto rest = period.attr("seconds").cast<int64_t>();
    const auto micros = period.attr("microseconds").cast<int64_t>();
    if (days >= 0 && days <= 36525) {
      return ((days * 86'400 + rest) * 1'000'000 + micros) * 1'000;
    }
  } else if (PyBool_Check(period.ptr()) ||
             !(PyFloat_Check(period.ptr()) || PyIndex_Check(period.ptr()))) {
    Throw(Error::kArgumentType,
          "the period is " + Shown(period.ptr()) +
              "; expected seconds as int or float, a timedelta, or a unit such as 'minute'");
  } else {
    const double value = PyFloat_AsDouble(period.ptr());
    if (value == -1.0 && PyErr_Occurred() != nullptr) PyErr_Clear();
    const double nanos = value * 1e9;
    if (std::isfinite(nanos) && nanos >= 1.0 && nanos <= static_cast<double>(Limit::kMaxPeriodNs)) {
      return PyFloat_Check(period.ptr()) ? std::llround(nanos)
                                         : period.cast<int64_t>() * 1'000'000'000;
    }
  }
  Throw(Error::kConfiguration,
        "the period is " + Shown(period.ptr()) + "; expected 1 nanosecond to 100 years");
}

// Names are sent in header fields, which can carry only printable ASCII.
std::string NameFrom(const py::handle& name, const std::string& what) {
  if (!PyUnicode_Check(name.ptr())) {
    Throw(Error::kArgumentType, what + " is " + Shown(name.ptr()) + "; expected a str");
  }
  std::string text(TextOf(name));
  const auto printable = [](char c) { return c >= 0x20 && c < 0x7f; };
  if (text.empty() || text.size() > 200 || !std::all_of(text.begin(), text.end(), printable)) {
    Throw(Error::kConfiguration,
          what + " is " + Shown(name.ptr()) + "; expected 1 to 200 printable ASCII characters");
  }
  return text;
}

LimitSpec Defaults(const py::handle& burst, const py::handle& algorithm, const py::handle& name) {
  LimitSpec spec;
  if (!burst.is_none()) spec.burst = WholeNumber(burst, "the burst");
  if (!PyUnicode_Check(algorithm.ptr())) {
    Throw(Error::kArgumentType, "the algorithm is " + Shown(algorithm.ptr()) +
                                    "; expected a name such as 'token-bucket'");
  }
  spec.algorithm = ValueOrThrow(ParseAlgorithm(TextOf(algorithm)));
  if (!name.is_none()) spec.name = NameFrom(name, "the name");
  return spec;
}

// Units, or math.inf for no bound.
int64_t MaxDebtFrom(const py::handle& debt) {
  if (PyFloat_Check(debt.ptr()) && std::isinf(PyFloat_AS_DOUBLE(debt.ptr())) &&
      PyFloat_AS_DOUBLE(debt.ptr()) > 0) {
    return LimitSpec::kNoBound;
  }
  const py::object number = IntFrom(debt.ptr(), "the max_debt", "an int from 0 up, or math.inf");
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const int64_t units = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  return overflow > 0 ? LimitSpec::kNoBound : overflow < 0 ? -1 : units;
}

// Whether a cost beyond the capacity may owe the rest.
bool OversizeFrom(const py::handle& oversize) {
  if (PyUnicode_Check(oversize.ptr())) {
    const std::string_view text = TextOf(oversize);
    if (text == "refuse") return false;
    if (text == "debt") return true;
  }
  Throw(PyUnicode_Check(oversize.ptr()) ? Error::kConfiguration : Error::kArgumentType,
        "oversize is " + Shown(oversize.ptr()) + "; expected 'refuse' or 'debt'");
}

[[noreturn]] void ThrowUnknown(const py::kwargs& unknown) {
  const py::str name = py::str(unknown.begin()->first);
  py::list options;
  for (const char* option :
       {"limit", "period", "burst", "algorithm", "name", "shadow", "id", "max_debt", "oversize"}) {
    options.append(option);
  }
  const py::list near =
      py::module_::import("difflib").attr("get_close_matches")(name, options, 1, 0.7);
  const std::string meant =
      near.empty() ? "" : " (here it is " + std::string(py::str(near[0])) + "=)";
  Throw(Error::kArgumentType,
        "Limit() got the unknown option " + std::string(name) + meant +
            "; expected limit=, period=, burst=, algorithm=, name=, shadow=, id=, max_debt= and "
            "oversize=");
}

Limit Make(const py::object& limit, const py::object& period, const py::object& burst,
           const py::object& algorithm, const py::object& name, const py::object& shadow,
           const py::object& id, const py::object& max_debt, const py::object& oversize,
           const py::kwargs& unknown) {
  if (!unknown.empty()) ThrowUnknown(unknown);
  LimitSpec spec = Defaults(burst, algorithm, name);
  if (!id.is_none()) spec.id = NameFrom(id, "the id");
  if (!PyBool_Check(shadow.ptr())) {
    Throw(Error::kArgumentType, "shadow is " + Shown(shadow.ptr()) + "; expected True or False");
  }
  spec.shadow = shadow.ptr() == Py_True;
  if (!max_debt.is_none()) spec.max_debt = MaxDebtFrom(max_debt);
  spec.oversize_owes = OversizeFrom(oversize);
  if (PyUnicode_Check(limit.ptr())) {
    if (!period.is_none()) {
      Throw(Error::kConfiguration, "the limit " + Shown(limit.ptr()) +
                                       " was given with the period " + Shown(period.ptr()) +
                                       "; expected a text alone, or a count and a period");
    }
    return ValueOrThrow(Limit::Parse(TextOf(limit), spec));
  }
  if (PyBool_Check(limit.ptr()) || !PyIndex_Check(limit.ptr())) {
    Throw(Error::kArgumentType,
          "the limit is " + Shown(limit.ptr()) +
              "; expected a text such as '100/minute', or a count and a period");
  }
  spec.count = WholeNumber(limit, "the count");
  if (period.is_none()) {
    Throw(Error::kConfiguration,
          "the limit is the count " + Shown(limit.ptr()) +
              " without a period; expected a text such as '100/minute', or a count and a period");
  }
  if (PyUnicode_Check(period.ptr())) {
    const std::string text = std::to_string(spec.count) + "/" + std::string(TextOf(period));
    return ValueOrThrow(Limit::Parse(text, spec));
  }
  spec.period_ns = PeriodNs(period);
  return ValueOrThrow(Limit::Create(std::move(spec)));
}

// Whether a name was given that is not the limit's text.
bool HasName(const Limit& limit) {
  return !limit.spec().name.empty() && limit.name() != limit.ToString();
}

// The argument max_debt that makes an equal limit.
py::object GivenMaxDebt(const Limit& limit) {
  const std::optional<int64_t>& given = limit.spec().max_debt;
  if (!given.has_value()) return py::none();
  if (*given == LimitSpec::kNoBound) return py::float_(HUGE_VAL);
  return py::int_(*given);
}

// Raises the error for arguments that Make() does not accept.
std::shared_ptr<Limit> RefuseArguments(const py::args& args, const py::kwargs& options) {
  std::string given = py::repr(args).cast<std::string>();
  if (!options.empty()) given += " and " + py::repr(options).cast<std::string>();
  Throw(Error::kArgumentType,
        "Limit() was given " + given +
            "; expected Limit('100/minute') or Limit(100, 60.0), with burst=, algorithm=, name=, "
            "shadow=, id=, max_debt= and oversize=");
}

constexpr const char* kAboutLimits = R"(How many units may pass in what time, by which algorithm.

``Limit("100/minute")``, ``Limit("10/second burst 40")``, ``Limit(100, 60.0)`` or
``Limit(100, "minute")``. The grammar is ``COUNT (/|per) [N] UNIT [burst COUNT]``, with units
ns, us, ms, s, m, h, d, w, month and year. A period is given in seconds or as a timedelta.
`burst` (token-bucket and leaky-bucket only) defaults to `count`. Algorithms: token-bucket (or
gcra), leaky-bucket, fixed-window, sliding-window, sliding-log, concurrency. A text that begins
with ``quota`` is a quota: see ``tidegate.quotas.Quota``. `name`: 1 to 200 printable ASCII.
A limit in `shadow` is counted but not enforced: it refuses nothing, and what it would have
refused is in ``Stats.denied_in_shadow`` and in ``Decision.outcomes``. `id` identifies its usage
instead of its text: when the number of such a limit changes, what was used stays.
`max_debt`: the most units that a key may owe, math.inf for any; else ten times the capacity.
A cost beyond the capacity is refused for ever, or with ``oversize="debt"`` passes when nothing
of the key is used, and owes the rest, up to `max_debt`; not for concurrency and quotas.

Immutable; equal and hashed by value. Raises ConfigurationError for invalid arguments.)";

}  // namespace

void RegisterLimit(py::module_& m) {
  const py::str token_bucket("token-bucket");
  py::options options;
  options.disable_function_signatures();  // those below are read by inspect.signature()
  py::class_<Limit, std::shared_ptr<Limit>>(m, "Limit", kAboutLimits)
      .def(py::init(&Make), py::arg("limit") = py::none(), py::arg("period") = py::none(),
           py::kw_only(), py::arg("burst") = py::none(), py::arg("algorithm") = token_bucket,
           py::arg("name") = py::none(), py::arg("shadow") = false, py::arg("id") = py::none(),
           py::arg("max_debt") = py::none(), py::arg("oversize") = "refuse",
           "__init__(self, limit, period=None, *, burst=None, algorithm='token-bucket', "
           "name=None, shadow=False, id=None, max_debt=None, oversize='refuse')\n--\n\nSee the "
           "class.")
      .def(py::init(&RefuseArguments))
      .def_property_readonly("count", &Limit::count, "Units in a period.")
      .def_property_readonly(
          "period", [](const Limit& l) { return static_cast<double>(l.period_ns()) / 1e9; },
          "The period in seconds; the lease of a concurrency limit.")
      .def_property_readonly("period_ns", &Limit::period_ns, "The period in nanoseconds.")
      .def_property_readonly("burst", &Limit::burst,
                             "Units that a bucket holds; `count` for the other algorithms.")
      .def_property_readonly("capacity", &Limit::capacity,
                             "The most that can pass at once: `burst` of a bucket, else `count`.")
      .def_property_readonly(
          "algorithm", [](const Limit& l) { return AlgorithmName(l.algorithm()); },
          "The canonical name of the algorithm.")
      .def_property_readonly(
          "name", [](const Limit& l) { return l.name(); }, "The given name, else the limit's text.")
      .def_property_readonly(
          "id",
          [](const Limit& l) -> py::object {
            if (l.id().empty()) return py::none();
            return py::str(l.id());
          },
          "The id that identifies the limit's usage; None if its text does.")
      .def_property_readonly("shadow", &Limit::shadow,
                             "Whether the limit is counted but not enforced.")
      .def_property_readonly("max_debt", &Limit::max_debt,
                             "The most units that a key may owe beyond the capacity.")
      .def_property_readonly(
          "oversize", [](const Limit& l) { return l.spec().oversize_owes ? "debt" : "refuse"; },
          "What becomes of a cost beyond the capacity: ``refuse`` or ``debt``.")
      .def("__str__", &Limit::ToString)
      .def("__repr__",
           [](const Limit& l) {
             std::string text = "Limit('" + l.ToString() + "'";
             if (l.algorithm() != Algorithm::kTokenBucket && l.quota() == nullptr) {
               text += ", algorithm='" + std::string(AlgorithmName(l.algorithm())) + "'";
             }
             if (HasName(l)) {
               text += ", name=" + py::repr(py::str(l.name())).cast<std::string>();
             }
             if (!l.id().empty()) text += ", id=" + py::repr(py::str(l.id())).cast<std::string>();
             if (l.shadow()) text += ", shadow=True";
             if (const auto& debt = l.spec().max_debt; debt.has_value()) {
               const bool bound = *debt != LimitSpec::kNoBound;
               text += ", max_debt=" + (bound ? std::to_string(*debt) : "math.inf");
             }
             if (l.spec().oversize_owes) text += ", oversize='debt'";
             return text + ")";
           })
      .def("__eq__",
           [](const Limit& a, const py::object& b) -> py::object {
             if (!py::isinstance<Limit>(b))
               return py::reinterpret_borrow<py::object>(Py_NotImplemented);
             return py::bool_(a == b.cast<const Limit&>());
           })
      .def("__hash__",
           [](const Limit& l) {
             return py::hash(py::make_tuple(l.ToString(), l.name(), l.rule(),
                                            static_cast<int>(l.algorithm()), l.shadow(), l.id(),
                                            l.max_debt(), l.spec().oversize_owes));
           })
      .def("__reduce__", [](const py::object& self) {
        const auto& l = self.cast<const Limit&>();
        py::object name = py::none();
        if (HasName(l)) name = py::str(l.name());
        py::object rule = py::none();
        if (l.rule() != l.name()) rule = py::str(l.rule());
        return py::make_tuple(
            py::module_::import("tidegate.limiter.limit").attr("_restore"),
            py::make_tuple(l.ToString(), AlgorithmName(l.algorithm()), name, l.shadow(),
                           self.attr("id"), rule, GivenMaxDebt(l), self.attr("oversize")));
      });
  m.def("limit_of_rule", &Limit::WithRule, py::arg("limit"), py::arg("rule"));
  m.def(
      "parse_many",
      [](const py::object& text, const py::object& algorithm) {
        if (!PyUnicode_Check(text.ptr())) {
          Throw(Error::kArgumentType, "the limits are " + Shown(text.ptr()) +
                                          "; expected a text such as '5/second; 100/hour'");
        }
        return ValueOrThrow(
            Limit::ParseMany(TextOf(text), Defaults(py::none(), algorithm, py::none())));
      },
      py::arg("text"), py::kw_only(), py::arg("algorithm") = token_bucket);
}

}  // namespace tidegate::python
