// The limits that single keys have instead of their rule's. Only fingerprints of keys are kept.
#ifndef TIDEGATE_RULES_RULE_OVERRIDES_H_
#define TIDEGATE_RULES_RULE_OVERRIDES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tidegate/fingerprint.h"
#include "tidegate/rule_set.h"

namespace tidegate {

class RuleSet::Overrides {
 public:
  struct Override {
    LimitRange limits;
    uint32_t until_s = kForeverS;  // in seconds since the epoch
    uint32_t reason = 0;
  };
  static constexpr uint32_t kForeverS = UINT32_MAX;

  Overrides() : hasher_(Hasher::RandomSeed()) {}

  // False if the key has an override of this rule with the same beginning and end.
  bool Add(uint32_t rule, std::string_view key, LimitRange limits, const RuleOverride& given);
  // Null if the key has no override that is in force.
  const Override* Find(uint32_t rule, std::string_view key, int64_t now_ns) const;
  const std::string& reason(const Override& override) const { return reasons_[override.reason]; }
  void Reserve(size_t count) { by_key_.reserve(count); }
  size_t size() const { return size_; }
  size_t bytes() const;

 private:
  static int64_t EndOf(const Override& override);
  Fingerprint PrintOf(uint32_t rule, std::string_view key) const {
    return hasher_.Hash(key, {rule, rule});
  }

  // An override of a key that has several, or of one that has a beginning.
  struct Timed {
    Override override;
    int64_t from_ns;
    int64_t until_ns;
  };

  const Hasher hasher_;
  // Most keys have one override without a beginning. Of others `until_s` is 0, and all that they
  // have are in `timed_`, in the order in which one that is in force applies.
  absl::flat_hash_map<Fingerprint, Override> by_key_;
  absl::flat_hash_map<Fingerprint, std::vector<Timed>> timed_;
  size_t size_ = 0;
  std::vector<std::string> reasons_;
  absl::flat_hash_map<std::string, uint32_t> reason_numbers_;
};

}  // namespace tidegate

#endif  // TIDEGATE_RULES_RULE_OVERRIDES_H_
