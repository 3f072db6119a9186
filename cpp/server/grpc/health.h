// grpc.health.v1: reports whether services are ready for calls. Watch() sends each change.
#ifndef TIDEGATE_SERVER_GRPC_HEALTH_H_
#define TIDEGATE_SERVER_GRPC_HEALTH_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/front/routes.h"
#include "server/grpc/streaming.h"

namespace tidegate::server {

// Thread-safe. The name "", which is the whole server, is serving from the start.
class Health final : public RoutedService, private StreamingMethod {
 public:
  // Sets the state of a service. Names that were never set are unknown.
  void Set(const std::string& name, bool serving);

  std::vector<Route> routes() const override;
  std::vector<std::pair<std::string, StreamingMethod*>> streaming_methods() override;
  std::vector<std::string_view> descriptors() const override;
  bool Handle(const Request& request, Answer* answer, const Later& later) override;
  // Sets every service to not serving, even if Set() is called later.
  void OnDrain() override;

 private:
  class Watch;
  enum class Status : uint8_t { kServing = 1, kNotServing = 2, kUnknown = 3 };

  static std::string Encode(Status status);
  std::unique_ptr<StreamingCall> Start(StreamWriter writer) override;
  Status StatusOf(const std::string& name) const;
  void SetLocked(const std::string& name, Status status);

  std::mutex mu_;  // guards the members below
  std::map<std::string, Status> statuses_{{"", Status::kServing}};
  std::multimap<std::string, Watch*> watches_;
  bool draining_ = false;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_HEALTH_H_
