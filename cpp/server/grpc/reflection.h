// gRPC server reflection, v1 and v1alpha: describes methods and messages to clients such as
// grpcurl.
#ifndef TIDEGATE_SERVER_GRPC_REFLECTION_H_
#define TIDEGATE_SERVER_GRPC_REFLECTION_H_

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/front/routes.h"
#include "server/grpc/descriptor_index.h"
#include "server/grpc/streaming.h"

namespace tidegate::server {

// Thread-safe. `routes` must not change after the first call.
class Reflection final : public RoutedService, private StreamingMethod {
 public:
  explicit Reflection(const Routes* routes) : routes_(routes) {}

  std::vector<Route> routes() const override { return {}; }
  std::vector<std::pair<std::string, StreamingMethod*>> streaming_methods() override;
  std::vector<std::string_view> descriptors() const override;
  bool Handle(const Request& request, Answer* answer, const Later& later) override;

  // Answers a ServerReflectionRequest with a ServerReflectionResponse; empty if it is malformed.
  std::string Respond(std::string_view request);

 private:
  class Call;

  std::unique_ptr<StreamingCall> Start(StreamWriter writer) override;

  const Routes* const routes_;
  std::once_flag indexed_;
  DescriptorIndex index_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_REFLECTION_H_
