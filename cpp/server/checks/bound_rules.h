// The rules in force, which put the attributes of a request into the order that they use.
#ifndef TIDEGATE_SERVER_CHECKS_BOUND_RULES_H_
#define TIDEGATE_SERVER_CHECKS_BOUND_RULES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "tidegate/rule_limiter.h"

namespace tidegate::server {

struct Attribute {
  std::string_view name;
  std::string_view value;  // never without data, even if it is empty
};
using Attributes = absl::InlinedVector<Attribute, 8>;

// Binds a limiter that another extension may have made, so only its virtual functions and inline
// accessors are used. Thread-safe.
class BoundRules {
 public:
  explicit BoundRules(std::shared_ptr<RuleLimiter> limiter);

  const RuleLimiter& limiter() const { return *limiter_; }
  bool blocks() const { return blocks_; }
  // Whether some rules apply only to certain endpoints or methods.
  bool look_at_endpoints() const { return look_at_endpoints_; }
  bool look_at_methods() const { return look_at_methods_; }
  // Whether an endpoint of these rules has parameters, such as "/a;v=1".
  bool know_parameters() const { return know_parameters_; }
  // Differs from that of all other rules, also in other processes.
  uint64_t generation() const { return generation_; }

  // Leaves out attributes that no rule reads.
  tidegate::Request RequestOf(const Attributes& attributes) const;

  // Records that calls were submitted, so that the next Flush() sends them.
  void Submitted() { has_submitted_.store(true, std::memory_order_release); }
  void Flush();

 private:
  void LookAt(const RuleCondition& condition);

  const std::shared_ptr<RuleLimiter> limiter_;
  const bool blocks_;
  const uint64_t generation_;
  bool look_at_endpoints_ = false;
  bool look_at_methods_ = false;
  bool know_parameters_ = false;
  std::atomic<bool> has_submitted_{false};
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_BOUND_RULES_H_
