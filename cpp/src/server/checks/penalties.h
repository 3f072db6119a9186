// Callers that are throttled or blocked for a time, whatever the rules say of them.
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

// What a decision about a caller who is blocked names as its rule.
inline constexpr std::string_view kBlockRule = "anomaly:block";
// Which part of their limits throttled callers have: their requests cost so many times as much.
inline constexpr int64_t kThrottleFactor = 2;

// One caller's, as it is at an instant.
struct Penalty {
  bool blocks = false;  // else it throttles
  int64_t at_ns = 0;
  int64_t left_ns = 0;
  std::string_view reason = {};  // in words; lives as long as the table

  int64_t end_ns() const { return at_ns + left_ns; }
  // By which everything that the caller asks for is multiplied.
  int64_t factor() const { return blocks ? 1 : kThrottleFactor; }
  // What a caller who is blocked is answered. Nothing is charged.
  Decision Refusal() const;
};

// A table of them, each with an end of its own. Immutable; thread-safe.
class Penalties {
 public:
  struct Entry {
    bool is_ip = false;  // else a user
    std::string name;
    bool blocks = false;
    int64_t length_ns = 0;  // from now on
    std::string reason = {};
  };

  // A null `clock` is the system's. The last entry of a caller counts.
  Penalties(const std::vector<Entry>& entries, std::shared_ptr<Clock> clock);

  // The caller goes by its user, and by its address only without one. None from its end on.
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
