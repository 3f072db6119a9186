// Envoy's rate limit service v3 over gRPC, and over HTTP with JSON like envoyproxy/ratelimit.
#ifndef TIDEGATE_SERVER_ENVOY_ENVOY_SERVICE_H_
#define TIDEGATE_SERVER_ENVOY_ENVOY_SERVICE_H_

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/call.h"
#include "server/envoy/bound_tree.h"
#include "server/envoy/metrics.h"
#include "server/envoy/rate_limit_call.h"
#include "server/front/routes.h"
#include "tidegate/clock.h"
#include "tidegate/store.h"

namespace tidegate::server::envoy {

class EnvoyService final : public RoutedService {
 public:
  static constexpr std::string_view kMethod =
      "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
  static constexpr std::string_view kJsonPath = "/json";

  // A null `clock` means the system's clock; `recorder` may be null. Until Use() every domain is
  // unknown.
  EnvoyService(std::shared_ptr<Store> store, std::shared_ptr<Clock> clock, std::string scope,
               const ServiceOptions& options, std::shared_ptr<Recorder> recorder = nullptr);

  // Decides by `tree` from now on; calls in flight keep the tree they began with. After an error
  // the previous tree stays in force.
  // Only one thread at a time may call this.
  absl::Status Use(std::shared_ptr<const DescriptorTree> tree);

  // Applies to calls from now on; null for no penalties.
  void SetPenalties(std::shared_ptr<const Penalties> penalties);

  std::vector<Route> routes() const override;
  TimedAs timed_as() const override { return TimedAs::kEnvoy; }
  bool Handle(const Request& request, Answer* answer, const Later& later) override;
  void Flush() override { state_->store.store().Flush(); }

  const ServiceCounters& counters() const { return state_->counters; }
  const Metrics& metrics() const { return state_->metrics; }

 private:
  enum class Encoding : uint8_t { kWire, kJson };

  __attribute__((cold)) static void Refuse(Encoding encoding, const absl::Status& status,
                                           Answer* answer);
  static void Write(Encoding encoding, const RateLimitResponse& response, Answer* answer);
  // The parts that may be replaced while the service runs.
  struct InForce {
    std::shared_ptr<const BoundTree> tree;
    std::shared_ptr<const Penalties> penalties;  // may be null
  };
  InForce in_force() const;

  const std::shared_ptr<ServiceState> state_;
  const std::string scope_;
  mutable std::mutex
      mutex_;  // guards in_force_; not absl::Mutex, for the reason that LogTable gives
  InForce in_force_;
};

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_ENVOY_SERVICE_H_
