// Penalties: callers that are throttled or blocked for a time, whatever the rules say.
#ifndef TIDEGATE_SERVER_CHECKS_PENALTIES_H_
#define TIDEGATE_SERVER_CHECKS_PENALTIES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tidegate/clock.h"
#include "tidegate/decision.h"

namespace tidegate::server {

// The rule that a decision names if it refuses a caller who is blocked.
inline constexpr std::string_view kBlockRule = "anomaly:block";
// The costs of a throttled caller's requests are multiplied by this factor.
inline constexpr int64_t kThrottleFactor = 2;

// The penalty of one caller at an instant.
struct Penalty {
  bool blocks = false;  // otherwise it throttles
  int64_t at_ns = 0;
  int64_t left_ns = 0;
  std::string_view reason = {};  // in words; lives as long as the table

  int64_t end_ns() const { return at_ns + left_ns; }
  // The factor by which the cost of every request of the caller is multiplied.
  int64_t factor() const { return blocks ? 1 : kThrottleFactor; }
  // Returns the decision for a caller who is blocked. It charges nothing.
  Decision Refusal() const;
};

// A table of penalties, each with its own end. Immutable; thread-safe.
class Penalties {
 public:
  struct Entry {
    bool is_ip = false;  // otherwise `name` is a user
    std::string name;
    bool blocks = false;
    int64_t length_ns = 0;  // from now on
    std::string reason = {};
  };

  // A null `clock` means the system's clock. The last entry of a caller counts.
  Penalties(const std::vector<Entry>& entries, std::shared_ptr<Clock> clock);

  // Finds the penalty by the user, or by the address if there is no user. Returns nothing once the
  // penalty has ended.
  std::optional<Penalty> Of(std::string_view user, std::string_view ip) const;
  size_t size() const { return users_.size() + ips_.size(); }

 private:
  struct Until {
    bool blocks = false;
    int64_t ns = 0;
    std::string reason;
  };
  using Table = absl::flat_hash_map<std::string, Until>;

  int64_t NowNs() const { return clock_ == nullptr ? SystemClock::Get().Now() : clock_->NowNs(); }

  const std::shared_ptr<Clock> clock_;
  Table users_;
  Table ips_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_PENALTIES_H_
