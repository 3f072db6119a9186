// What a call asks about: the attributes of a request, and its cost.
#ifndef TIDEGATE_SERVER_CHECKS_ASKED_H_
#define TIDEGATE_SERVER_CHECKS_ASKED_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/checks/bound_rules.h"
#include "server/problem.h"
#include "tidegate/limit.h"

namespace tidegate::server {

// Holds what was decoded of a request; its elements do not move.
using Decoded = std::deque<std::string>;

// The views live as long as the body that they were read from, its decoded parts, and the reader.
struct Asked {
  static constexpr int64_t kUsualTtlNs = 60'000'000'000;

  Attributes attributes;
  int64_t cost = 1;
  bool cost_is_given = false;
  bool wants_outcomes = false;
  std::string_view decision;               // the token of the decision to refund; empty without one
  std::vector<std::string_view> rule_ids;  // the ids of the rules to reset; empty for the caller's
  std::string_view once;         // names a refund, so that a second one gives nothing back
  std::string_view reservation;  // the token of a reservation
  // What was used, where it is given in place of a cost.
  std::optional<std::vector<std::pair<std::string_view, int64_t>>> usage;
  int64_t ttl_ns = kUsualTtlNs;  // of a new reservation

  // Returns a view without data if the request does not have the attribute.
  std::string_view Get(std::string_view name) const;
  // Adds an attribute, or returns a problem if there are too many, or its name is empty or too
  // long, or its value is too long.
  std::optional<Problem> Add(std::string_view name, std::string_view value);
  // Sets what was used of a field, in place of an earlier number; a problem if it is out of range,
  // or if there are too many fields.
  std::optional<Problem> Use(std::string_view field, int64_t used);
  // Removes the query and the parameters of an endpoint that is a path. With them, no rule for that
  // path would apply. `decoded` keeps the result.
  void TakeOffQuery(const BoundRules& rules, Decoded* decoded);
};

inline constexpr size_t kMostOnceBytes = 255;
inline constexpr size_t kMostAttributes = 64;
inline constexpr size_t kMostNameBytes = 255;
inline constexpr size_t kMostValueBytes = 8192;
inline constexpr size_t kMostChecks = 1000;  // in one CheckMany
inline constexpr size_t kMostRules = 1000;   // in one Reset
inline constexpr int64_t kMostCost = Limit::kMaxCount;
inline constexpr int64_t kNoCost = -1;  // the least cost of a call that has none
inline constexpr int64_t kLeastTtlNs = 1'000'000;

// The problem of a cost that is out of range.
Problem CostProblem(std::string_view given, int64_t least = 1);
// The problem of what was used of a field.
Problem UsageProblem(std::string_view field, std::string_view given);
// The problem of a commit that says both.
Problem CostAndUsage();
// The problem of the life of a reservation that is out of range.
Problem TtlProblem(std::string_view given);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_ASKED_H_
