// tidegate._core.RedisStore. tidegate/limiter/storage/redis_uri.py reads the URI
// and the options, and passes values of the right types.
#include "tidegate/redis_store.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/functions.h"
#include "limiter/gil.h"

namespace tidegate::python {
namespace {

OnError OnErrorFrom(const std::string& text) {
  if (text == "fallback") return OnError::kFallback;
  if (text == "open") return OnError::kOpen;
  if (text == "closed") return OnError::kClosed;
  Throw(Error::kConfiguration, "the storage option on_error is " + Shown(py::str(text).ptr()) +
                                   "; expected fallback, open and closed");
}

// The store's Python object holds the functions; see redis_uri.py.
template <typename... Arguments>
std::function<void(Arguments...)> HookFrom(const py::object& hook, const char* name) {
  return [weak = WeakFunction(hook), name](Arguments... arguments) {
    if (IsEnding()) return;
    (void)WithGil([&] {
      try {
        const py::object function = weak.get();
        if (function) (void)CallPython(function, arguments...);
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable(name);
      }
    });
  };
}

// Errors show only the type of the exception: its message might hold the secret.
std::function<absl::StatusOr<std::string>()> SourceFrom(const py::object& source) {
  return [weak = WeakFunction(source)] {
    absl::StatusOr<std::string> given = absl::UnavailableError("the interpreter is ending");
    (void)WithGil([&] {
      try {
        const py::object function = weak.get();
        if (!function) {
          given = absl::UnavailableError("the password function was freed");
          return;
        }
        const py::object password = CallPython(function);
        if (!py::isinstance<py::str>(password) && !py::isinstance<py::bytes>(password)) {
          given = absl::UnavailableError("the password function returned no str");
        } else {
          given = password.cast<std::string>();
        }
      } catch (py::error_already_set& error) {
        given = absl::UnavailableError("the password function raised " +
                                       error.type().attr("__name__").cast<std::string>());
      }
    });
    return given;
  };
}

// Converts values as redis-py does: str, int, None, lists; bytes that are not UTF-8 stay bytes.
struct ToObject {
  py::object operator()(std::monostate) const { return py::none(); }
  py::object operator()(int64_t number) const { return py::int_(number); }
  py::object operator()(const std::string& text) const {
    PyObject* object =
        PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
    if (object == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(object);
  }
  py::object operator()(const std::vector<RedisValue>& values) const {
    py::list list;
    for (const RedisValue& each : values) list.append(std::visit(*this, each.value));
    return list;
  }
};

py::object Command(RedisStore& store, const std::vector<std::string>& words, double timeout) {
  const auto reply = WithoutGil([&] { return store.Command(words, absl::Seconds(timeout)); });
  return std::visit(ToObject(), ValueOrThrow(reply).value);
}

std::shared_ptr<RedisStore> Make(const py::kwargs& given) {
  RedisOptions o;
  const auto take = [&](const char* name, auto* value) {
    using T = std::remove_pointer_t<decltype(value)>;
    if (given.contains(name)) *value = given[name].cast<T>();
  };
  const auto take_duration = [&](const char* name, absl::Duration* value) {
    if (given.contains(name)) *value = absl::Seconds(given[name].cast<double>());
  };
  take("host", &o.host);
  take("port", &o.port);
  take("unix_path", &o.unix_path);
  take("username", &o.username);
  take("password", &o.password);
  if (given.contains("password_source")) o.password_source = SourceFrom(given["password_source"]);
  if (given.contains("topology")) {
    const auto name = given["topology"].cast<std::string>();
    o.topology = name == "cluster"    ? Topology::kCluster
                 : name == "sentinel" ? Topology::kSentinel
                                      : Topology::kStandalone;
  }
  if (given.contains("nodes")) {
    for (const auto& [host, port] :
         given["nodes"].cast<std::vector<std::pair<std::string, int>>>()) {
      o.nodes.push_back({host, port});
    }
  }
  take("service", &o.service);
  take("sentinel_username", &o.sentinel_username);
  take("sentinel_password", &o.sentinel_password);
  if (given.contains("tls")) {
    const auto tls = given["tls"].cast<py::dict>();
    o.tls.emplace();
    const auto take_tls = [&](const char* name, auto* value) {
      using T = std::remove_pointer_t<decltype(value)>;
      if (tls.contains(name)) *value = tls[name].template cast<T>();
    };
    take_tls("ca_file", &o.tls->ca_file);
    take_tls("ca_dir", &o.tls->ca_dir);
    take_tls("cert_file", &o.tls->cert_file);
    take_tls("key_file", &o.tls->key_file);
    take_tls("verify", &o.tls->verify);
    take_tls("check_hostname", &o.tls->check_hostname);
  }
  take("database", &o.database);
  take("client_name", &o.client_name);
  take_duration("timeout", &o.timeout);
  take_duration("connect_timeout", &o.connect_timeout);
  take("client_clock", &o.client_clock);
  take_duration("ttl_margin", &o.ttl_margin);
  if (given.contains("on_error")) o.on_error = OnErrorFrom(given["on_error"].cast<std::string>());
  take("fallback_share", &o.fallback_share);
  take_duration("breaker_open", &o.breaker_open);
  take("breaker_failures", &o.breaker_failures);
  take_duration("deny_cache_max", &o.deny_cache_max);
  take_duration("lease", &o.lease);
  take("max_queue", &o.max_queue);
  take("fallback", &o.fallback);
  if (given.contains("on_breaker")) {
    o.on_breaker = HookFrom<bool, const std::string&>(given["on_breaker"], "on_breaker");
  }
  if (given.contains("on_strict")) {
    o.on_strict = HookFrom<const std::string&, const std::string&>(given["on_strict"], "on_strict");
  }
  if (given.contains("on_failure")) {
    o.on_failure = HookFrom<const std::string&>(given["on_failure"], "on_failure");
  }
  if (given.contains("on_script_error")) {
    o.on_script_error = HookFrom<const std::string&>(given["on_script_error"], "on_script_error");
  }
  o.while_ending = LettingGoOfGil;
  return ValueOrThrow(RedisStore::Create(std::move(o)));
}

}  // namespace

void RegisterRedisStore(py::module_& m) {
  py::class_<RedisStore, Store, std::shared_ptr<RedisStore>>(m, "RedisStore", py::dynamic_attr())
      .def(py::init(&Make))
      .def("command", &Command, py::arg("words"), py::arg("timeout") = 1.0)
      .def_property_readonly("_leases", &RedisStore::leases)
      .def(
          "_lease_of",
          [](const RedisStore& store, const Limit& limit) {
            std::string why;
            const absl::Duration lease = store.LeaseOf(limit, &why);
            return std::make_pair(absl::ToDoubleSeconds(lease), why);
          },
          py::arg("limit"))
      .def("_forget_refusals", &RedisStore::ForgetRefusals);
}

}  // namespace tidegate::python
