// The limits that single keys have instead of their rule's. Only fingerprints of keys are kept.
#ifndef TIDEGATE_RULES_RULE_OVERRIDES_H_
#define TIDEGATE_RULES_RULE_OVERRIDES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tidegate/fingerprint.h"
#include "tidegate/rule_set.h"

namespace tidegate {

// The keys are in a table that knows rules and limits by numbers of its own, so the rule sets that
// follow each other share one table for as long as their overrides stay the same.
class RuleSet::Overrides {
 public:
  struct Override {
    uint32_t group = 0;
    uint32_t until_s = kForeverS;  // in seconds since the epoch
    uint32_t reason = 0;
  };
  // The overrides of one rule that have the same limits.
  struct Group {
    std::string rule;
    std::vector<std::string> by;  // what the rule counts by, which makes the keys
    std::vector<Limit> limits;    // as they were given
  };
  static constexpr uint32_t kForeverS = UINT32_MAX;

  Overrides() : table_(std::make_shared<Table>()) {}

  // Adds the override of a key of `rule`, whose number in this set is `number`, with the limits
  // `given`, which are `limits` in this set. False if the key has an override of this rule with the
  // same beginning and end.
  bool Add(uint32_t number, const Rule& rule, std::string_view key, const RuleOverride& given,
           LimitRange limits);
  // The groups of all overrides.
  const std::vector<Group>& groups() const { return table_->groups; }
  // Takes the keys of another set. Each of its groups then needs a call of Place().
  void Share(const Overrides& other) { table_ = other.table_; }
  // Says which rule and which limits of this set a group has; in the order of the groups.
  void Place(const Group& group, uint32_t number, LimitRange limits);

  // Null if the key has no override that is in force.
  const Override* Find(uint32_t rule, std::string_view key, int64_t now_ns) const;
  LimitRange limits(const Override& override) const { return ranges_[override.group]; }
  const std::string& reason(const Override& override) const {
    return table_->reasons[override.reason];
  }
  void Reserve(size_t count) { table_->by_key.reserve(count); }
  size_t size() const { return table_->size; }
  size_t bytes() const;

 private:
  // An override of a key that has several, or of one that has a beginning.
  struct Timed {
    Override override;
    int64_t from_ns;
    int64_t until_ns;
  };
  struct Table {
    Table() : hasher(Hasher::RandomSeed()) {}

    const Hasher hasher;
    // Most keys have one override without a beginning. Of others `until_s` is 0, and all that they
    // have are in `timed`, in the order in which one that is in force applies.
    absl::flat_hash_map<Fingerprint, Override> by_key;
    absl::flat_hash_map<Fingerprint, std::vector<Timed>> timed;
    size_t size = 0;
    std::vector<std::string> reasons;
    absl::flat_hash_map<std::string, uint32_t> reason_numbers;
    std::vector<Group> groups;
    // The number that each rule with overrides has in fingerprints, by its id.
    absl::flat_hash_map<std::string, uint32_t> rule_slots;
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  static int64_t EndOf(const Override& override);
  uint32_t SlotOf(uint32_t rule) const { return rule < slots_.size() ? slots_[rule] : kNone; }
  void SetSlot(uint32_t number, uint32_t slot);
  Fingerprint PrintOf(uint32_t slot, std::string_view key) const {
    return table_->hasher.Hash(key, {slot, slot});
  }

  // Immutable once the set is compiled, and then perhaps shared.
  std::shared_ptr<Table> table_;
  std::vector<uint32_t> slots_;     // of each rule of this set
  std::vector<LimitRange> ranges_;  // of each group
  // The group of each rule and range, while overrides are added. The range of `unlimited` is empty,
  // and begins where the next one does.
  absl::flat_hash_map<std::tuple<uint32_t, uint32_t, uint32_t>, uint32_t> group_numbers_;
};

}  // namespace tidegate

#endif  // TIDEGATE_RULES_RULE_OVERRIDES_H_
