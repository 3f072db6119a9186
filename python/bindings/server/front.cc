// tidegate.server._native: the front: HTTP/1.1 and HTTP/2.
#include "server/front/front.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "limiter/convert.h"
#include "limiter/gil.h"
#include "server/classes.h"
#include "server/grpc/framing.h"
#include "server/grpc/health.h"
#include "server/hosts.h"

namespace tidegate::python {
namespace {

using server::Front;
using server::FrontOptions;
using server::Health;
using server::RoutedService;
using server::Tls;

constexpr double kMostSeconds = 1e6;

[[noreturn]] void Refuse(const std::string& name, const std::string& expected, py::handle given) {
  Throw(Error::kConfiguration, name + " is " + Shown(given.ptr()) + "; expected " + expected);
}

double NumberOf(const std::string& name, py::handle given, double least, double most,
                const std::string& expected) {
  const bool is_number = PyFloat_Check(given.ptr()) != 0 || PyLong_Check(given.ptr()) != 0;
  if (!is_number || PyBool_Check(given.ptr()) != 0) Refuse(name, expected, given);
  const double number = PyFloat_AsDouble(given.ptr());
  PyErr_Clear();  // for an int that is too large, the function returns -1
  if (!(number >= least && number <= most)) Refuse(name, expected, given);
  return number;
}

Instant::duration SecondsOf(const std::string& name, py::handle given) {
  const double number =
      NumberOf(name, given, 0, kMostSeconds, "a number of seconds from 0 to 1,000,000");
  return std::chrono::duration_cast<Instant::duration>(std::chrono::duration<double>(number));
}

void Set(const std::string& name, py::handle given, Instant::duration* option) {
  *option = SecondsOf(name, given);
}

void Set(const std::string& name, py::handle given, double* option) {
  *option = NumberOf(name, given, 1e-3, 1e9, "a number from 0.001 to 1e9");
}

void Set(const std::string& name, py::handle given, bool* option) {
  if (PyBool_Check(given.ptr()) == 0) Refuse(name, "True or False", given);
  *option = given.ptr() == Py_True;
}

void Set(const std::string& name, py::handle given, std::vector<std::string>* option) {
  if (!py::isinstance<py::list>(given)) Refuse(name, "a list of texts", given);
  *option = given.cast<std::vector<std::string>>();
}

template <typename Count>
void Set(const std::string& name, py::handle given, Count* option) {
  constexpr double kMost = std::numeric_limits<int>::max();
  const std::string expected = "an int from 1 to 2147483647";
  if (PyLong_Check(given.ptr()) == 0) Refuse(name, expected, given);
  *option = static_cast<Count>(NumberOf(name, given, 1, kMost, expected));
}

FrontOptions OptionsFrom(const py::dict& given) {
  FrontOptions options;
  using Setter = std::function<void(const std::string&, py::handle)>;
  const auto into = [](auto* option) {
    return Setter(
        [option](const std::string& name, py::handle value) { Set(name, value, option); });
  };
  const absl::flat_hash_map<std::string, Setter> setters = {
      {"checks_hosts", into(&options.checks_hosts)},
      {"hosts", into(&options.hosts)},
      {"reflection", into(&options.reflection)},
      {"loops", into(&options.loops)},
      {"connections", into(&options.connections)},
      {"streams", into(&options.streams)},
      {"input_bytes", into(&options.input_bytes)},
      {"output_bytes", into(&options.output_bytes)},
      {"resets_per_second", into(&options.resets_per_second)},
      {"reset_burst", into(&options.reset_burst)},
      {"control_frames_per_second", into(&options.control_frames_per_second)},
      {"control_frame_burst", into(&options.control_frame_burst)},
      {"header_bytes", into(&options.header_bytes)},
      {"header_count", into(&options.header_count)},
      {"body_bytes", into(&options.body_bytes)},
      {"request_seconds", into(&options.request_time)},
      {"answer_seconds", into(&options.answer_time)},
      {"take_seconds", into(&options.take_time)},
      {"idle_seconds", into(&options.idle_time)},
      {"drain_idle_seconds", into(&options.drain_idle_time)},
      {"linger_seconds", into(&options.linger_time)},
  };
  for (const auto& [key, value] : given) {
    const auto name = py::str(key).cast<std::string>();
    const auto setter = setters.find(name);
    if (setter == setters.end()) {
      Throw(Error::kConfiguration, "the option is \"" + name + "\"; expected one of the front");
    }
    setter->second(name, value);
  }
  // A body as long as a request may have fits, with the head of a gRPC message.
  options.input_bytes = std::max(options.input_bytes, options.body_bytes + server::kGrpcFrameHead);
  return options;
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message().data(), status.message().size());
  if (absl::IsInvalidArgument(status) || absl::IsAlreadyExists(status)) {
    Throw(Error::kConfiguration, message);
  }
  PyErr_SetString(absl::IsFailedPrecondition(status) ? PyExc_RuntimeError : PyExc_OSError,
                  message.c_str());
  throw py::error_already_set();
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// The front's threads must not be inside OpenSSL, or inside a service, while the process ends.
std::shared_ptr<Front> MakeFront(const py::dict& options) {
  auto front = std::make_shared<Front>(OptionsFrom(options));
  const std::weak_ptr<Front> weak = front;
  py::module_::import("atexit").attr("register")(py::cpp_function([weak] {
    const std::shared_ptr<Front> left = weak.lock();
    if (left != nullptr) WithoutGil([&] { left->Stop(); });
  }));
  return front;
}

py::dict StatsOf(const Front& front) {
  py::dict stats;
  for (const auto& [name, count] : WithoutGil([&] { return front.Stats(); })) {
    stats[py::str(name)] = count;
  }
  return stats;
}

py::list TimesOf(const Front& front) {
  constexpr const char* kServices[] = {"checks", "envoy"};
  constexpr const char* kProtocols[] = {"http1", "http2", "grpc"};
  py::list all;
  for (const Front::TimesOfCalls& times : WithoutGil([&] { return front.CallTimes(); })) {
    py::list counts;
    for (size_t i = 0; i < times.counts.size(); ++i) {
      const bool is_last = i == server::Times::kBounds.size();
      const double bound = is_last ? std::numeric_limits<double>::infinity()
                                   : static_cast<double>(server::Times::kBounds[i].count()) / 1e6;
      counts.append(py::make_tuple(bound, times.counts[i]));
    }
    all.append(py::make_tuple(kServices[static_cast<size_t>(times.service)],
                              kProtocols[static_cast<size_t>(times.protocol)], times.seconds,
                              std::move(counts)));
  }
  return all;
}

void RegisterTls(py::module_& m) {
  py::class_<Tls, std::shared_ptr<Tls>>(m, "Tls", "A certificate, from files in PEM.")
      .def(py::init([](const std::string& certificate, const std::string& key,
                       const std::optional<std::string>& client_ca, bool only_1_3,
                       const std::optional<std::string>& ciphers) {
             server::TlsFiles files;
             files.certificate = certificate;
             files.key = key;
             files.client_authorities = client_ca.value_or("");
             files.only_1_3 = only_1_3;
             if (ciphers.has_value()) files.ciphers = *ciphers;
             return Value(Tls::Load(files));
           }),
           py::arg("certificate"), py::arg("key"), py::arg("client_ca") = py::none(), py::kw_only(),
           py::arg("only_1_3") = false, py::arg("ciphers") = py::none())
      .def("reload", [](Tls& tls) { Check(WithoutGil([&] { return tls.Reload(); })); });
}

void RegisterHealth(py::module_& m) {
  py::class_<Health, std::shared_ptr<Health>>(m, "Health", "grpc.health.v1 of a front.")
      .def(py::init([](Front& front) {
             auto health = std::make_shared<Health>();
             Check(front.Route(health));
             return health;
           }),
           py::arg("front"))
      .def(
          "set",
          [](Health& health, const std::string& name, bool serving) {
            WithoutGil([&] { health.Set(name, serving); });
          },
          py::arg("name"), py::arg("serving"));
}

}  // namespace

void RegisterFront(py::module_& m) {
  m.def(
      "accepts_host",
      [](const std::string& host, const std::vector<std::string>& names) {
        return server::AcceptsHost(host, names);
      },
      py::arg("host"), py::arg("names"));
  RegisterTls(m);
  py::class_<RoutedService, std::shared_ptr<RoutedService>>(m, "Service",
                                                            "Answers requests of a front.");
  py::class_<Front, std::shared_ptr<Front>>(m, "Front", "Speaks HTTP for services.")
      .def(py::init(&MakeFront), py::arg("options") = py::dict())
      .def(
          "listen",
          [](Front& front, const std::string& host, int port, const std::shared_ptr<Tls>& tls) {
            return Value(WithoutGil([&] { return front.Listen(host, port, tls); }));
          },
          py::arg("host"), py::arg("port"), py::kw_only(), py::arg("tls") = nullptr)
      .def(
          "listen_unix",
          [](Front& front, const std::string& path, unsigned mode, std::shared_ptr<Tls> tls) {
            Check(WithoutGil([&] { return front.ListenUnix(path, mode, std::move(tls)); }));
          },
          py::arg("path"), py::kw_only(), py::arg("mode") = 0600, py::arg("tls") = nullptr)
      .def(
          "adopt",
          [](Front& front, const std::vector<int>& sockets, const std::shared_ptr<Tls>& tls) {
            Check(WithoutGil([&] { return front.Adopt(sockets, tls); }));
          },
          py::arg("sockets"), py::kw_only(), py::arg("tls") = nullptr)
      .def("share_sockets", &Front::ShareSockets)
      .def("unshare_sockets", &Front::UnshareSockets)
      .def(
          "route",
          [](Front& front, std::shared_ptr<RoutedService> service) {
            Check(front.Route(std::move(service)));
          },
          py::arg("service").none(false))
      .def("start", [](Front& front) { Check(WithoutGil([&] { return front.Start(); })); })
      .def(
          "drain",
          [](Front& front, py::handle time) {
            const Instant::duration most = SecondsOf("seconds", time);
            return WithoutGil([&] { return front.Drain(most); });
          },
          py::arg("seconds"))
      .def("stop", [](Front& front) { WithoutGil([&] { front.Stop(); }); })
      .def_property_readonly("running", &Front::running)
      .def("stats", &StatsOf)
      .def("call_times", &TimesOf);
  RegisterHealth(m);
}

}  // namespace tidegate::python
