// Finds values of requests that no rule of a set can match as they are written.
#ifndef TIDEGATE_PYTHON_BINDINGS_ODD_VALUES_H_
#define TIDEGATE_PYTHON_BINDINGS_ODD_VALUES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "tidegate/rule_set.h"

namespace tidegate::python {

// Of one rule set, which must outlive it. Not thread-safe.
class OddValues {
 public:
  // Attributes and their values.
  using Found = absl::InlinedVector<std::pair<uint32_t, std::string_view>, 2>;

  explicit OddValues(const RuleSet& rules);

  // Whether to look at the next request: each of the first ones, and then one of kEvery, so that
  // looking takes no time that matters.
  bool IsDue() {
    if (skips_ != 0) [[likely]] {
      --skips_;
      return false;
    }
    skips_ = looked_at_ < kFirst ? 0 : kEvery - 1;
    return true;
  }
  // Returns what looks odd: a tier or a priority that there is none of, an endpoint that is no path
  // or may differ from one of the rules in case, and others. What was found lately is left out, and
  // in all at most kMostFound are found.
  Found In(const Request& request);

 private:
  static constexpr int kFirst = 10'000;
  static constexpr int kEvery = 17;
  static constexpr int kMostFound = 2'000;

  void LookAt(const RuleCondition& condition);
  void Add(uint32_t attribute, std::string_view value, Found* found);

  const std::vector<std::string>& tiers_;
  // The values in conditions of attributes that no rule counts by, which are of few kinds.
  absl::flat_hash_map<uint32_t, absl::flat_hash_set<std::string>> conditions_;
  bool has_networks_ = false;
  bool has_capitals_ = false;
  int skips_ = 0;
  int looked_at_ = 0;
  int found_ = 0;
  std::array<size_t, 256> lately_{};  // hashes, each at the place that it says
};

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_ODD_VALUES_H_
