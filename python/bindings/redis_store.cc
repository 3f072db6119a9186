// tidegate._core.RedisStore. What its URI and options mean is told by
// tidegate/_storage/redis_uri.py, which hands over values of the right types.
#include "tidegate/redis_store.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "classes.h"
#include "convert.h"
#include "gil.h"
#include "redis/client.h"

namespace tidegate::python {
namespace {

OnError OnErrorFrom(const std::string& text) {
  if (text == "fallback") return OnError::kFallback;
  if (text == "open") return OnError::kOpen;
  if (text == "closed") return OnError::kClosed;
  Throw(Error::kConfiguration, "the storage option on_error is " + Shown(py::str(text).ptr()) +
                                   "; accepted are fallback, open and closed");
}

// A function that may be let go of by any thread.
std::shared_ptr<py::object> Keep(const py::object& function) {
  return {new py::object(function), [](py::object* object) {
            if (!WithGil([&] { *object = py::object(); })) (void)object->release();
            delete object;
          }};
}

template <typename... Arguments>
std::function<void(Arguments...)> HookFrom(const py::object& hook, const char* name) {
  return [kept = Keep(hook), name](Arguments... arguments) {
    if (IsEnding()) return;
    (void)WithGil([&] {
      try {
        (void)CallPython(*kept, arguments...);
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable(name);
      }
    });
  };
}

// What goes wrong is told by its type alone: a message might hold the secret.
std::function<absl::StatusOr<std::string>()> SourceFrom(const py::object& source) {
  return [kept = Keep(source)] {
    absl::StatusOr<std::string> given = absl::UnavailableError("the interpreter is ending");
    (void)WithGil([&] {
      try {
        const py::object password = CallPython(*kept);
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

// As redis-py has it: str, int, None, lists; bytes that are no UTF-8 stay bytes.
py::object ObjectFrom(const redisReply& reply) {
  switch (reply.type) {
    case REDIS_REPLY_INTEGER:
      return py::int_(reply.integer);
    case REDIS_REPLY_NIL:
      return py::none();
    case REDIS_REPLY_ARRAY: {
      py::list list;
      for (size_t i = 0; i < reply.elements; ++i) list.append(ObjectFrom(*reply.element[i]));
      return list;
    }
    default:
      break;
  }
  PyObject* text =
      PyUnicode_DecodeUTF8(reply.str, static_cast<Py_ssize_t>(reply.len), "surrogateescape");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

py::object Command(RedisStore& store, const std::vector<std::string>& words, double timeout) {
  const absl::StatusOr<redis::Reply> reply =
      WithoutGil([&] { return store.Command(words, absl::Seconds(timeout)); });
  ThrowUnlessOk(reply.status());
  if ((*reply)->type == REDIS_REPLY_ERROR) {
    Throw(Error::kStorage, std::string((*reply)->str, (*reply)->len));
  }
  return ObjectFrom(**reply);
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
  take("max_queue", &o.max_queue);
  take("fallback", &o.fallback);
  if (given.contains("on_breaker")) {
    o.on_breaker = HookFrom<bool, const std::string&>(given["on_breaker"], "on_breaker");
  }
  if (given.contains("on_script_error")) {
    o.on_script_error = HookFrom<const std::string&>(given["on_script_error"], "on_script_error");
  }
  return ValueOrThrow(RedisStore::Create(std::move(o)));
}

}  // namespace

void RegisterRedisStore(py::module_& m) {
  py::class_<RedisStore, Store, std::shared_ptr<RedisStore>>(m, "RedisStore")
      .def(py::init(&Make))
      .def_property_readonly("client_clock", &RedisStore::client_clock)
      .def_property_readonly("server",
                             [](const RedisStore& store) {
                               // A path may be of any bytes.
                               const std::string uri = store.server();
                               return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
                                   uri.data(), static_cast<Py_ssize_t>(uri.size()), "replace"));
                             })
      .def("command", &Command, py::arg("words"), py::arg("timeout") = 1.0)
      .def("_forget_refusals", &RedisStore::ForgetRefusals)
      // None, or what is wrong.
      .def("ping", [](RedisStore& store) -> py::object {
        const absl::Status status = WithoutGil([&] { return store.Ping(); });
        if (status.ok()) return py::none();
        return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
            status.message().data(), static_cast<Py_ssize_t>(status.message().size()), "replace"));
      });
}

}  // namespace tidegate::python
