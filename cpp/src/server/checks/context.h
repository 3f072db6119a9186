// What the calls of a check service go by.
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

namespace tidegate::server {

struct CheckOptions {
  // Whether calls need a token. Without one everybody who reaches the service may ask it.
  bool requires_token = true;
  // The status of a REST check that is refused: 200, since it was answered, or 429.
  int refused_status = 200;
  // Of a gateway's question: 429, or 403 (or 401), which nginx passes on.
  int auth_refused_status = 429;
  // The headers that tell a gateway's questions, in lower case, and their attributes. The value of
  // `endpoint` is a URI.
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
  std::atomic<int64_t> blocked{0};       // of those refused, whatever the rules say
  std::atomic<int64_t> throttled{0};     // that cost more, whether allowed or not
  std::atomic<int64_t> malformed{0};     // calls that were not understood
  std::atomic<int64_t> unauthorized{0};  // calls without a valid token
  std::atomic<int64_t> forbidden{0};     // with a token whose role does not permit them

  static void Add(std::atomic<int64_t>& counter) {
    counter.fetch_add(1, std::memory_order_relaxed);
  }
};

// Of one service, for as long as one of its calls is in flight.
struct CheckContext {
  const CheckOptions options;
  const std::shared_ptr<Recorder> recorder;  // may be null
  CheckCounters counters;
};

// What may be exchanged while the service runs. Never changed, so that a call ends by what it began
// with.
struct CheckConfig {
  std::shared_ptr<CheckContext> context;
  std::shared_ptr<BoundRules> rules;
  std::shared_ptr<const Tokens> tokens;
  std::shared_ptr<const Tiers> tiers;          // may be null
  std::shared_ptr<const Penalties> penalties;  // may be null
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_CONTEXT_H_
