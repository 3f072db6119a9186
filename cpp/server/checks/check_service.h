// Answers checks by tidegate's own rules: over gRPC (proto/tidegate/v1/ratelimit.proto), over REST
// (docs/service/checks.md), and for gateways that ask before each request (nginx's auth_request).
#ifndef TIDEGATE_SERVER_CHECKS_CHECK_SERVICE_H_
#define TIDEGATE_SERVER_CHECKS_CHECK_SERVICE_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/call.h"
#include "server/checks/asked.h"
#include "server/checks/context.h"
#include "server/front/routes.h"
#include "server/problem.h"

namespace tidegate::server {

struct CheckMethod;

// Thread-safe.
class CheckService final : public RoutedService {
 public:
  // `recorder` may be null. No token is valid until SetTokens().
  CheckService(std::shared_ptr<RuleLimiter> limiter, CheckOptions options,
               std::shared_ptr<Recorder> recorder);

  std::vector<Route> routes() const override;
  std::vector<std::string_view> descriptors() const override;
  TimedAs timed_as() const override { return TimedAs::kChecks; }
  bool Handle(const Request& request, Answer* answer, const Later& later) override;
  bool Refuses(const Request& request, Answer* answer) override;
  void Flush() override;

  // These apply to calls from now on; calls in flight keep the configuration they began with.
  void Use(std::shared_ptr<RuleLimiter> limiter);
  void SetTokens(std::shared_ptr<const Tokens> tokens);
  void SetTiers(std::shared_ptr<const Tiers> tiers);              // null for no table
  void SetPenalties(std::shared_ptr<const Penalties> penalties);  // null for none

  const CheckCounters& counters() const { return context_->counters; }
  std::shared_ptr<const CheckConfig> config() const;

 private:
  bool HandleKnown(const Request& request, const CheckMethod& method,
                   const std::shared_ptr<const CheckConfig>& config, Answer* answer,
                   const Later& later);
  bool RefuseToRead(const Request& request, const Problem& problem, Answer* answer);
  // The problem of a caller who may not call this method.
  std::optional<Problem> Unauthorized(const Request& request, const CheckMethod& method,
                                      const CheckConfig& config, Answer* answer);
  // Replaces a part of the configuration.
  template <typename Set>
  void Exchange(Set set);

  const std::shared_ptr<CheckContext> context_;
  mutable std::mutex mutex_;  // guards config_; not absl::Mutex, for the reason that LogTable gives
  std::shared_ptr<const CheckConfig> config_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_CHECK_SERVICE_H_
