// Replays columns of requests through a rule set, as replayer.h does through limits. It uses the
// RuleLimiter that a service uses.
#ifndef TIDEGATE_RULE_REPLAYER_H_
#define TIDEGATE_RULE_REPLAYER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tidegate/clock.h"
#include "tidegate/replayer.h"
#include "tidegate/rule_limiter.h"

namespace tidegate {

// One attribute of all requests: request i has the value `values[codes[i]]`, or no value if that
// view has no data. The caller keeps what the views point to.
struct AttributeColumn {
  uint32_t number = 0;  // RuleSet::AttributeNumber()
  const uint32_t* codes = nullptr;
  absl::Span<const std::string_view> values;
};

// Thread-compatible.
class RuleReplayer {
 public:
  static absl::StatusOr<std::unique_ptr<RuleReplayer>> Create(std::shared_ptr<const RuleSet> rules);

  // Like Run() and Hit() of Replayer. If `costs` is null, each cost is 1. The rule of an answer is
  // an index into names().
  void Run(const RequestColumns& requests, absl::Span<const AttributeColumn> attributes,
           const int64_t* costs, size_t from, size_t to, const AnswerColumns& answers);
  Decision Hit(absl::Span<const AttributeColumn> attributes, size_t at, int64_t cost,
               int64_t now_ns, uint32_t* binding);

  // The names of the rules that decided so far; an empty one if no rule applied.
  const std::vector<std::string>& names() const { return names_; }

 private:
  RuleReplayer(std::shared_ptr<ManualClock> clock, std::shared_ptr<RuleLimiter> limiter);

  uint32_t NumberOf(const Limit* limit);

  const std::shared_ptr<ManualClock> clock_;
  const std::shared_ptr<RuleLimiter> limiter_;
  Request request_;
  std::vector<std::string> names_;
  absl::flat_hash_map<std::string, uint32_t> number_of_name_;
  absl::flat_hash_map<const Limit*, uint32_t> number_of_limit_;
};

}  // namespace tidegate

#endif  // TIDEGATE_RULE_REPLAYER_H_
