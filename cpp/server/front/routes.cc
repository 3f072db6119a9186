#include "server/front/routes.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tidegate::server {
namespace {

// Returns "package.Service" of "/package.Service/Method"; empty for any other path.
std::string_view ServiceOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  if (path.empty() || path[0] != '/' || slash < 2 || slash + 1 == path.size()) return {};
  const std::string_view service = path.substr(1, slash - 1);
  return service.find('/') == std::string_view::npos ? service : std::string_view();
}

absl::Status Taken(std::string_view what) {
  return absl::AlreadyExistsError(absl::StrCat(
      "the route ", Absl(what), " is given twice; expected one that no other service answers"));
}

absl::Status CheckGrpcPath(std::string_view path) {
  if (!ServiceOf(path).empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the gRPC method is \"", Absl(path), "\"; expected one such as \"/package.Service/Method\""));
}

}  // namespace

absl::Status Routes::Add(const Route& route, Service* service) {
  if (std::find(services_.begin(), services_.end(), service) == services_.end()) {
    services_.push_back(service);
  }
  if (!route.method.empty()) return AddHttp(route, service);
  if (absl::Status status = CheckGrpcPath(route.path); !status.ok()) return status;
  const bool is_new = grpc_.try_emplace(route.path, Grpc{service, nullptr}).second;
  return is_new ? absl::OkStatus() : Taken(route.path);
}

absl::Status Routes::AddHttp(const Route& route, Service* service) {
  if (route.path.empty() || route.path[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("the path is \"", route.path, "\"; expected one that begins with \"/\""));
  }
  Methods* methods = nullptr;
  if (route.path.back() != '/') {
    methods = &exact_[route.path];
  } else {
    auto place = std::find_if(prefixes_.begin(), prefixes_.end(),
                              [&](const auto& known) { return known.first == route.path; });
    if (place == prefixes_.end()) {
      place = std::find_if(prefixes_.begin(), prefixes_.end(), [&](const auto& known) {
        return known.first.size() < route.path.size();
      });
      place = prefixes_.insert(place, {route.path, Methods()});
    }
    methods = &place->second;
  }
  for (const auto& [method, other] : *methods) {
    if (method == route.method) return Taken(absl::StrCat(method, " ", route.path));
  }
  methods->emplace_back(route.method, service);
  return absl::OkStatus();
}

absl::Status Routes::AddStreaming(const std::string& path, StreamingMethod* method) {
  if (absl::Status status = CheckGrpcPath(path); !status.ok()) return status;
  const bool is_new = grpc_.try_emplace(path, Grpc{nullptr, method}).second;
  return is_new ? absl::OkStatus() : Taken(path);
}

absl::Status Routes::Add(std::shared_ptr<RoutedService> service) {
  for (const Route& route : service->routes()) {
    if (absl::Status status = Add(route, service.get()); !status.ok()) return status;
  }
  for (const auto& [path, method] : service->streaming_methods()) {
    if (absl::Status status = AddStreaming(path, method); !status.ok()) return status;
  }
  routed_.push_back(std::move(service));
  return absl::OkStatus();
}

const Routes::Methods* Routes::FindPath(std::string_view path) const {
  if (const auto exact = exact_.find(Absl(path)); exact != exact_.end()) return &exact->second;
  for (const auto& [prefix, methods] : prefixes_) {
    if (path.starts_with(prefix)) return &methods;
  }
  return nullptr;
}

Routes::Http Routes::FindHttp(std::string_view method, std::string_view path) const {
  const Methods* const methods = FindPath(path);
  if (methods == nullptr) return {};
  for (const auto& [name, service] : *methods) {
    if (name == method) return {service, true};
  }
  return {nullptr, true};
}

std::string Routes::MethodsOf(std::string_view path) const {
  std::string names;
  for (const auto& [name, service] : *FindPath(path)) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    if (name == "GET") names += ", HEAD";
  }
  return names;
}

Routes::Grpc Routes::FindGrpc(std::string_view path) const {
  const auto found = grpc_.find(Absl(path));
  return found == grpc_.end() ? Grpc() : found->second;
}

std::vector<std::string> Routes::GrpcServices() const {
  std::set<std::string> names;
  for (const auto& [path, grpc] : grpc_) names.emplace(ServiceOf(path));
  return {names.begin(), names.end()};
}

}  // namespace tidegate::server
