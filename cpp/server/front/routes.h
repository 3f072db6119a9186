// The routes from requests to services.
#ifndef TIDEGATE_SERVER_FRONT_ROUTES_H_
#define TIDEGATE_SERVER_FRONT_ROUTES_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/call.h"

namespace tidegate::server {

class StreamingMethod;

// `path` is exact, or a prefix if it ends in '/'. Without an HTTP method it is a gRPC method,
// "/package.Service/Method".
struct Route {
  std::string method;
  std::string path;
};

// A service that lists the routes that it answers.
class RoutedService : public Service {
 public:
  virtual std::vector<Route> routes() const = 0;
  // Serialized google.protobuf.FileDescriptorProto messages of its gRPC services and of the files
  // that they import, for reflection. They are in static storage.
  virtual std::vector<std::string_view> descriptors() const { return {}; }
  // gRPC methods with more than one message, by path.
  virtual std::vector<std::pair<std::string, StreamingMethod*>> streaming_methods() { return {}; }
  // Any thread calls this when the front begins to drain.
  virtual void OnDrain() {}
};

// Immutable once a loop reads it.
class Routes {
 public:
  // Returns AlreadyExists if a route is taken, InvalidArgument if its path is not valid.
  absl::Status Add(const Route& route, Service* service);
  // Keeps the service alive, and adds its routes.
  absl::Status Add(std::shared_ptr<RoutedService> service);

  struct Http {
    Service* service = nullptr;
    bool path_exists = false;  // whether the path exists for other methods
  };
  Http FindHttp(std::string_view method, std::string_view path) const;
  // The methods of a path that exists, as the header Allow lists them.
  std::string MethodsOf(std::string_view path) const;

  struct Grpc {
    Service* service = nullptr;
    StreamingMethod* streaming = nullptr;
  };
  Grpc FindGrpc(std::string_view path) const;
  // The sorted names "package.Service" of all gRPC methods.
  std::vector<std::string> GrpcServices() const;

  // All services, each once.
  const std::vector<Service*>& services() const { return services_; }
  const std::vector<std::shared_ptr<RoutedService>>& routed() const { return routed_; }

 private:
  using Methods = std::vector<std::pair<std::string, Service*>>;

  absl::Status AddStreaming(const std::string& path, StreamingMethod* method);
  absl::Status AddHttp(const Route& route, Service* service);
  const Methods* FindPath(std::string_view path) const;  // null if there is none

  absl::flat_hash_map<std::string, Grpc> grpc_;
  absl::flat_hash_map<std::string, Methods> exact_;
  std::vector<std::pair<std::string, Methods>> prefixes_;  // the longest first
  std::vector<Service*> services_;
  std::vector<std::shared_ptr<RoutedService>> routed_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_ROUTES_H_
