// The options and the configuration that the calls of a check service use.
#ifndef TIDEGATE_SERVER_CHECKS_CONTEXT_H_
#define TIDEGATE_SERVER_CHECKS_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/checks/bound_rules.h"
#include "server/checks/penalties.h"
#include "server/checks/recorder.h"
#include "server/checks/tiers.h"
#include "server/checks/tokens.h"
#include "tidegate/rate_fields.h"

namespace tidegate::server {

struct CheckOptions {
  // Whether calls need a token. If not, everybody who can reach the service may call it.
  bool requires_token = true;
  // The status of a refused REST check: 200, since the check was answered, or 429.
  int refused_status = 200;
  // The status of a refused check of a gateway: 429, or 403 or 401, which nginx passes on.
  int auth_refused_status = 429;
  // Fields that answers over HTTP have beside the usual ones, such as kOpenAiFields.
  RateFieldSet more_fields = 0;
  // The headers of a gateway's check, in lower case, and the attributes that they become. The value
  // of `endpoint` is a URI.
  std::vector<std::pair<std::string, std::string>> auth_headers = {
      {"x-original-uri", "endpoint"},
      {"x-original-method", "method"},
      {"x-real-ip", "ip"},
      {"x-api-key", "api_key"},
  };
};

struct CheckCounters {
  std::atomic<int64_t> allowed{0};
  std::atomic<int64_t> refused{0};
  std::atomic<int64_t> degraded{0};
  std::atomic<int64_t> blocked{0};       // refused checks of callers who are blocked
  std::atomic<int64_t> throttled{0};     // checks with a multiplied cost, allowed or refused
  std::atomic<int64_t> malformed{0};     // calls that could not be parsed
  std::atomic<int64_t> unauthorized{0};  // calls without a valid token
  std::atomic<int64_t> forbidden{0};     // calls with a token whose role does not permit them

  static void Add(std::atomic<int64_t>& counter) {
    counter.fetch_add(1, std::memory_order_relaxed);
  }
};

// The parts of a service that must outlive its calls in flight.
struct CheckContext {
  const CheckOptions options;
  const std::shared_ptr<Recorder> recorder;  // may be null
  CheckCounters counters;
};

// The parts of a service that may be replaced while it runs. A configuration never changes, so a
// call ends with the one that it began with.
struct CheckConfig {
  std::shared_ptr<CheckContext> context;
  std::shared_ptr<BoundRules> rules;
  std::shared_ptr<const Tokens> tokens;
  std::shared_ptr<const Tiers> tiers;          // may be null
  std::shared_ptr<const Penalties> penalties;  // may be null
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_CONTEXT_H_
