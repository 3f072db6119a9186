// tidegate.server._native: the service that answers checks by rules, and the recorder.
#include "server/checks/check_service.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "limiter/convert.h"
#include "limiter/gil.h"
#include "server/capsules.h"
#include "server/classes.h"

namespace tidegate::python {
namespace {

using server::CheckOptions;
using server::CheckService;
using server::Recorder;
using server::Tiers;
using server::TiersBuilder;
using server::Tokens;

// The endpoint of the row that sums all decisions without a free row.
constexpr const char* kRest = "(other)";

// Returns bytes of a caller as text that a database can hold, or None for no bytes.
py::object TextOrNone(const std::string& bytes) {
  if (bytes.empty()) return py::none();
  PyObject* const text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

py::list Drain(Recorder& recorder) {
  const std::vector<Recorder::Row> rows = WithoutGil([&] { return recorder.Drain(); });
  py::list drained(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Recorder::Row& row = rows[i];
    drained[i] = py::make_tuple(
        TextOrNone(row.user), TextOrNone(row.is_rest ? std::string(kRest) : row.endpoint),
        TextOrNone(row.tier), TextOrNone(row.rule), TextOrNone(row.caller_ip), row.sums.allowed,
        row.sums.refused, row.sums.refused_in_shadow, row.sums.degraded, row.sums.cost);
  }
  return drained;
}

std::string BytesOf(const py::handle& value, const char* what) {
  KeyView view;
  if (!PyUnicode_Check(value.ptr()) && !PyBytes_Check(value.ptr())) {
    Throw(Error::kArgumentType,
          std::string(what) + " is " + Shown(value.ptr()) + "; expected str or bytes");
  }
  if (PyObject_Size(value.ptr()) == 0) return "";
  if (!view.Read(value.ptr())) throw py::error_already_set();
  return std::string(view.view());
}

void AddRows(TiersBuilder& builder, const py::object& rows) {
  const py::object pairs = PyDict_Check(rows.ptr()) ? rows.attr("items")() : rows;
  for (const py::handle row : pairs) {
    if (!PyTuple_Check(row.ptr()) || PyTuple_GET_SIZE(row.ptr()) != 2) {
      Throw(Error::kArgumentType,
            "a row of tiers is " + Shown(row.ptr()) + "; expected a tuple (user, tier)");
    }
    ThrowUnlessOk(builder.Add(BytesOf(PyTuple_GET_ITEM(row.ptr(), 0), "the user"),
                              BytesOf(PyTuple_GET_ITEM(row.ptr(), 1), "the tier")));
  }
}

std::shared_ptr<const Tiers> Finish(TiersBuilder& builder) {
  return WithoutGil([&] { return std::exchange(builder, TiersBuilder()).Finish(); });
}

void SetTiers(CheckService& service, const py::object& tiers) {
  std::shared_ptr<const Tiers> table;
  if (py::isinstance<Tiers>(tiers)) {
    table = tiers.cast<std::shared_ptr<Tiers>>();
  } else if (!tiers.is_none()) {
    TiersBuilder builder;
    AddRows(builder, tiers);
    table = Finish(builder);
  }
  service.SetTiers(std::move(table));
}

void SetTokens(CheckService& service, const py::iterable& tokens) {
  std::vector<Tokens::Entry> entries;
  for (const py::handle token : tokens) {
    // The message does not show the digest.
    if (!PyTuple_Check(token.ptr()) || PyTuple_GET_SIZE(token.ptr()) != 2 ||
        !PyBytes_Check(PyTuple_GET_ITEM(token.ptr(), 0)) ||
        PyBytes_GET_SIZE(PyTuple_GET_ITEM(token.ptr(), 0)) != server::kDigestBytes) {
      Throw(Error::kArgumentType,
            "a token is malformed; expected a tuple of the 32 bytes of its SHA-256 and a role");
    }
    const std::string role = BytesOf(PyTuple_GET_ITEM(token.ptr(), 1), "the role");
    const auto known = server::ParseRole(role);
    if (!known.has_value()) {
      Throw(Error::kConfiguration, "the role of a token is " +
                                       Shown(PyTuple_GET_ITEM(token.ptr(), 1)) +
                                       "; expected viewer, check, operator or admin");
    }
    Tokens::Entry& entry = entries.emplace_back();
    const char* const digest = PyBytes_AS_STRING(PyTuple_GET_ITEM(token.ptr(), 0));
    std::copy_n(reinterpret_cast<const unsigned char*>(digest), entry.digest.size(),
                entry.digest.begin());
    entry.role = *known;
  }
  service.SetTokens(std::make_shared<const Tokens>(std::move(entries)));
}

void CheckStatus(const char* name, int status, std::initializer_list<int> allowed) {
  if (std::find(allowed.begin(), allowed.end(), status) != allowed.end()) return;
  std::string expected;
  for (const int each : allowed) {
    expected += (expected.empty() ? "" : " or ") + std::to_string(each);
  }
  Throw(Error::kConfiguration,
        std::string(name) + " is " + std::to_string(status) + "; expected " + expected);
}

std::shared_ptr<CheckService> Make(
    const py::object& capsule, std::shared_ptr<Recorder> recorder, bool require_token,
    int refused_status, int auth_refused_status,
    const std::optional<std::vector<std::pair<std::string, std::string>>>& auth_headers,
    bool openai_fields) {
  CheckStatus("refused_status", refused_status, {200, 429});
  CheckStatus("auth_refused_status", auth_refused_status, {401, 403, 429});
  CheckOptions options;
  options.requires_token = require_token;
  options.refused_status = refused_status;
  options.auth_refused_status = auth_refused_status;
  if (openai_fields) options.more_fields = kOpenAiFields;
  if (auth_headers.has_value()) options.auth_headers = *auth_headers;
  for (auto& [header, attribute] : options.auth_headers) {
    if (header.empty() || attribute.empty()) {
      Throw(Error::kConfiguration,
            "auth_headers have an empty name; expected pairs of a header and an attribute");
    }
    for (char& c : header) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
  }
  return std::make_shared<CheckService>(FromCapsule<RuleLimiter>(capsule, kRuleLimiterCapsule),
                                        std::move(options), std::move(recorder));
}

py::dict StatsOf(const CheckService& service) {
  const server::CheckCounters& counters = service.counters();
  return py::dict(
      py::arg("allowed") = counters.allowed.load(), py::arg("refused") = counters.refused.load(),
      py::arg("degraded") = counters.degraded.load(), py::arg("blocked") = counters.blocked.load(),
      py::arg("throttled") = counters.throttled.load(),
      py::arg("malformed") = counters.malformed.load(),
      py::arg("unauthorized") = counters.unauthorized.load(),
      py::arg("forbidden") = counters.forbidden.load());
}

void RegisterRecorder(py::module_& m) {
  py::class_<Recorder, std::shared_ptr<Recorder>>(m, "Recorder")
      .def(py::init([](int64_t capacity) {
             if (capacity < 1) {
               Throw(Error::kConfiguration,
                     "the capacity is " + std::to_string(capacity) + "; expected 1 or more rows");
             }
             return std::make_shared<Recorder>(capacity);
           }),
           py::arg("capacity") = Recorder::kDefaultCapacity)
      .def("drain", &Drain)
      .def(
          "set_known",
          [](Recorder& recorder, std::vector<std::string> users) {
            WithoutGil([&] { recorder.SetKnown(std::move(users)); });
          },
          py::arg("users"))
      .def_property_readonly("dropped", &Recorder::dropped)
      .def("__len__", &Recorder::rows);
}

void RegisterTiers(py::module_& m) {
  py::class_<Tiers, std::shared_ptr<Tiers>>(m, "Tiers")
      .def(
          "of",
          [](const Tiers& tiers, const py::object& user) {
            return TextOrNone(std::string(tiers.Of(BytesOf(user, "the user"))));
          },
          py::arg("user"))
      .def_property_readonly("bytes", &Tiers::bytes)
      .def("__len__", &Tiers::size);
  py::class_<TiersBuilder>(m, "TiersBuilder")
      .def(py::init<>())
      .def("add", &AddRows, py::arg("rows"))
      .def("finish",
           [](TiersBuilder& builder) { return std::const_pointer_cast<Tiers>(Finish(builder)); });
}

}  // namespace

void RegisterChecks(py::module_& m) {
  RegisterRecorder(m);
  RegisterTiers(m);
  py::class_<CheckService, server::RoutedService, std::shared_ptr<CheckService>>(m, "CheckService")
      .def(py::init(&Make), py::arg("rule_limiter"), py::kw_only(),
           py::arg("recorder").none(true) = py::none(), py::arg("require_token") = true,
           py::arg("refused_status") = 200, py::arg("auth_refused_status") = 429,
           py::arg("auth_headers") = py::none(), py::arg("openai_fields") = false)
      .def(
          "use",
          [](CheckService& service, const py::object& capsule) {
            service.Use(FromCapsule<RuleLimiter>(capsule, kRuleLimiterCapsule));
          },
          py::arg("rule_limiter"))
      .def("set_tokens", &SetTokens, py::arg("tokens"))
      .def("set_tiers", &SetTiers, py::arg("tiers").none(true))
      .def(
          "set_penalties",
          [](CheckService& service, std::shared_ptr<server::Penalties> penalties) {
            service.SetPenalties(std::move(penalties));
          },
          py::arg("penalties").none(true))
      .def("stats", &StatsOf);
}

}  // namespace tidegate::python
