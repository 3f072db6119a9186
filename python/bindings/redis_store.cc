// tidegate._core.RedisStore. What its URI and options mean is told by
// tidegate/_redis.py, which hands over values of the right types.
#include "tidegate/redis_store.h"

#include <pthread.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "classes.h"
#include "convert.h"
#include "redis/connection.h"

namespace tidegate::python {
namespace {

OnError OnErrorFrom(const std::string& text) {
  if (text == "fallback") return OnError::kFallback;
  if (text == "open") return OnError::kOpen;
  if (text == "closed") return OnError::kClosed;
  Throw(Error::kConfiguration, "the storage option on_error is " + Shown(py::str(text).ptr()) +
                                   "; accepted are fallback, open and closed");
}

// Set by atexit, before the interpreter begins to end: from then on a thread that asks
// for the GIL may be ended in the middle of C++, which ends the process.
std::atomic<bool> ending{false};
// Threads of the core that are in Python, or wait for the GIL.
std::atomic<int> visitors{0};

// One of them, where it may come in at all.
class Visit {
 public:
  Visit() {
    if (!IsFinalizing()) gil_.emplace();
  }
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;
  explicit operator bool() const { return gil_.has_value(); }

 private:
  struct Counted {
    Counted() { visitors.fetch_add(1); }
    ~Counted() { visitors.fetch_sub(1); }
  };
  // Before the GIL is asked for, and until it was let go of.
  const Counted counted_;
  std::optional<py::gil_scoped_acquire> gil_;
};

// Lets nobody in any more, and waits until those who are in have left.
void End() {
  ending.store(true);
  const py::gil_scoped_release release;
  const absl::Time deadline = absl::Now() + absl::Seconds(2);
  while (visitors.load() > 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
}

}  // namespace

bool IsFinalizing() {
  if (ending.load(std::memory_order_acquire)) return true;
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

namespace {

// A function that may be let go of by any thread.
std::shared_ptr<py::object> Keep(const py::object& function) {
  return {new py::object(function), [](py::object* object) {
            const Visit visit;
            if (visit) {
              *object = py::object();
            } else {
              object->release();
            }
            delete object;
          }};
}

std::function<void(bool, const std::string&)> HookFrom(const py::object& hook) {
  return [kept = Keep(hook)](bool open, const std::string& why) {
    const Visit visit;
    if (!visit) return;
    try {
      (*kept)(open, why);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("a hook of the breaker");
    }
  };
}

// What goes wrong is told by its type alone: a message might hold the secret.
std::function<absl::StatusOr<std::string>()> SourceFrom(const py::object& source) {
  return [kept = Keep(source)]() -> absl::StatusOr<std::string> {
    const Visit visit;
    if (!visit) return absl::UnavailableError("the interpreter ends");
    try {
      const py::object password = (*kept)();
      if (!py::isinstance<py::str>(password) && !py::isinstance<py::bytes>(password)) {
        return absl::UnavailableError("the password function returned no str");
      }
      return password.cast<std::string>();
    } catch (py::error_already_set& error) {
      return absl::UnavailableError("the password function raised " +
                                    error.type().attr("__name__").cast<std::string>());
    }
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
  absl::StatusOr<redis::Reply> reply = absl::UnknownError("");
  {
    const py::gil_scoped_release release;
    reply = store.Command(words, absl::Seconds(timeout));
  }
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
  if (given.contains("on_breaker")) o.on_breaker = HookFrom(given["on_breaker"]);
  return ValueOrThrow(RedisStore::Create(std::move(o)));
}

}  // namespace

void RegisterRedisStore(py::module_& m) {
  py::module_::import("atexit").attr("register")(py::cpp_function(&End));
  // Those who were in are not in the child.
  pthread_atfork(nullptr, nullptr, [] { visitors.store(0); });
  py::class_<RedisStore, Store, std::shared_ptr<RedisStore>>(m, "RedisStore")
      .def(py::init(&Make))
      .def_property_readonly("client_clock", &RedisStore::client_clock)
      .def("command", &Command, py::arg("words"), py::arg("timeout") = 1.0)
      // None, or what is wrong.
      .def("ping", [](RedisStore& store) -> py::object {
        absl::Status status;
        {
          const py::gil_scoped_release release;
          status = store.Ping();
        }
        if (status.ok()) return py::none();
        return py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
            status.message().data(), static_cast<Py_ssize_t>(status.message().size()), "replace"));
      });
}

}  // namespace tidegate::python
