// tidegate.server._native: Envoy's rate limit service.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "limiter/convert.h"
#include "limiter/gil.h"
#include "server/capsules.h"
#include "server/classes.h"
#include "server/envoy/envoy_service.h"

namespace tidegate::python {
namespace {

using server::envoy::DescriptorSpec;
using server::envoy::DescriptorTree;
using server::envoy::EnvoyService;

// A tree that grows until a service uses it.
class TreeMaker {
 public:
  DescriptorTree::Id AddDomain(std::string name, std::optional<bool> all_or_none) {
    const auto id = Growing().AddDomain({std::move(name), all_or_none});
    ThrowUnlessOk(id.status());
    return *id;
  }

  DescriptorTree::Id Add(DescriptorTree::Id parent, DescriptorSpec spec,
                         const std::string& algorithm) {
    const auto parsed = ParseAlgorithm(algorithm);
    ThrowUnlessOk(parsed.status());
    spec.algorithm = *parsed;
    const auto id = Growing().AddDescriptor(parent, std::move(spec));
    ThrowUnlessOk(id.status());
    return *id;
  }

  // The tree does not change from now on.
  std::shared_ptr<const DescriptorTree> Complete() {
    is_complete_ = true;
    return tree_;
  }

  const DescriptorTree& tree() const { return *tree_; }

 private:
  DescriptorTree& Growing() {
    if (is_complete_) Throw(Error::kConfiguration, "the tree is in use; expected a new one");
    return *tree_;
  }

  const std::shared_ptr<DescriptorTree> tree_ = std::make_shared<DescriptorTree>();
  bool is_complete_ = false;
};

// Names of metrics contain bytes of requests.
py::object Text(const std::string& bytes) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

py::dict Stats(const EnvoyService& service) {
  const auto& counters = service.counters();
  py::list descriptors;
  for (const auto& row : service.metrics().rows()) {
    py::dict each;
    each["domain"] = Text(row.domain);
    each["path"] = Text(row.path);
    each["total_hits"] = row.counters->total_hits.load();
    each["within_limit"] = row.counters->within_limit.load();
    each["near_limit"] = row.counters->near_limit.load();
    each["over_limit"] = row.counters->over_limit.load();
    each["shadow_mode"] = row.counters->shadow_mode.load();
    descriptors.append(std::move(each));
  }
  py::dict stats;
  stats["requests"] = counters.requests.load();
  stats["over_limit"] = counters.over_limit.load();
  stats["invalid"] = counters.invalid.load();
  stats["unknown_domain"] = counters.unknown_domain.load();
  stats["no_limit"] = counters.no_limit.load();
  stats["degraded"] = counters.degraded.load();
  stats["shadow_mode"] = counters.shadow_mode.load();
  stats["blocked"] = counters.blocked.load();
  stats["throttled"] = counters.throttled.load();
  stats["written_off"] = counters.written_off.load();
  stats["descriptors"] = std::move(descriptors);
  return stats;
}

void RegisterTree(py::module_& m) {
  py::class_<TreeMaker, std::shared_ptr<TreeMaker>>(m, "DescriptorTree")
      .def(py::init<>())
      .def("add_domain", &TreeMaker::AddDomain, py::arg("name"),
           py::arg("all_or_none") = std::nullopt)
      .def(
          "add_descriptor",
          [](TreeMaker& self, DescriptorTree::Id parent, std::string key,
             std::optional<std::string> value, std::vector<std::string> limits,
             const std::string& algorithm, bool unlimited, std::string name,
             std::vector<std::string> replaces, bool shadow, bool quota, bool share_threshold,
             bool detailed_metric, bool value_to_metric, const std::string& metadata,
             std::optional<bool> reports) {
            DescriptorSpec spec;
            spec.key = std::move(key);
            spec.value = std::move(value);
            spec.limits = std::move(limits);
            spec.unlimited = unlimited;
            spec.name = std::move(name);
            spec.replaces = std::move(replaces);
            spec.shadow = shadow;
            spec.quota = quota;
            spec.reports = reports;
            spec.share_threshold = share_threshold;
            spec.detailed_metric = detailed_metric;
            spec.value_to_metric = value_to_metric;
            auto parsed = server::envoy::Metadata::Parse(metadata);
            ThrowUnlessOk(parsed.status());
            spec.metadata = *std::move(parsed);
            return self.Add(parent, std::move(spec), algorithm);
          },
          py::arg("parent"), py::arg("key"), py::arg("value") = std::nullopt, py::kw_only(),
          py::arg("limits") = std::vector<std::string>(), py::arg("algorithm") = "fixed-window",
          py::arg("unlimited") = false, py::arg("name") = "",
          py::arg("replaces") = std::vector<std::string>(), py::arg("shadow") = false,
          py::arg("quota") = false, py::arg("share_threshold") = false,
          py::arg("detailed_metric") = false, py::arg("value_to_metric") = false,
          py::arg("metadata") = "{}", py::arg("reports") = std::nullopt)
      .def_property_readonly("limits", [](const TreeMaker& self) { return self.tree().limits(); });
}

}  // namespace

void RegisterEnvoy(py::module_& m) {
  RegisterTree(m);
  py::class_<EnvoyService, server::RoutedService, std::shared_ptr<EnvoyService>>(m, "EnvoyService")
      .def(py::init([](const py::object& store, const py::object& clock, std::string scope,
                       bool all_or_none, bool shadow_mode, bool response_headers, double near_ratio,
                       std::shared_ptr<server::Recorder> recorder, std::string user_key,
                       bool request_metadata) {
             server::envoy::ServiceOptions options;
             options.all_or_none = all_or_none;
             options.shadow_mode = shadow_mode;
             options.response_headers = response_headers;
             options.near_ratio = near_ratio;
             options.user_key = std::move(user_key);
             options.request_metadata = request_metadata;
             return std::make_shared<EnvoyService>(
                 FromCapsule<Store>(store, kStoreCapsule),
                 clock.is_none() ? nullptr : FromCapsule<Clock>(clock, kClockCapsule),
                 std::move(scope), options, std::move(recorder));
           }),
           py::arg("store"), py::arg("clock") = py::none(), py::arg("scope") = "", py::kw_only(),
           py::arg("all_or_none") = true, py::arg("shadow_mode") = false,
           py::arg("response_headers") = false, py::arg("near_ratio") = 0.8,
           py::arg("recorder").none(true) = py::none(), py::arg("user_key") = "user",
           py::arg("request_metadata") = false)
      .def(
          "use",
          [](EnvoyService& self, TreeMaker& tree) { ThrowUnlessOk(self.Use(tree.Complete())); },
          py::arg("tree"))
      .def(
          "set_penalties",
          [](EnvoyService& self, std::shared_ptr<server::Penalties> penalties) {
            self.SetPenalties(std::move(penalties));
          },
          py::arg("penalties").none(true))
      .def_property_readonly(
          "written_off",
          [](const EnvoyService& self) { return self.counters().written_off.load(); })
      .def("stats", &Stats);
}

}  // namespace tidegate::python
