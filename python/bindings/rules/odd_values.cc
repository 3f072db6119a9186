#include "rules/odd_values.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/hash/hash.h"
#include "tidegate/load_factor.h"

namespace tidegate::python {

namespace {

bool HasCapitals(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
}

bool IsPath(std::string_view text) {
  return !text.empty() && text.front() == '/' && text.find('?') == std::string_view::npos;
}

}  // namespace

OddValues::OddValues(const RuleSet& rules) : tiers_(rules.tiers()) {
  absl::flat_hash_set<std::string> counted;
  for (const Rule& rule : rules.rules()) {
    counted.insert(rule.by.begin(), rule.by.end());
    LookAt(rule.condition);
  }
  for (const ListEntry& entry : rules.lists()) LookAt(entry.condition);
  for (const Rule& rule : rules.rules()) {
    for (const auto& [name, value] : rule.condition.when) {
      const auto attribute = static_cast<uint32_t>(rules.AttributeNumber(name));
      if (!counted.contains(name)) conditions_[attribute].insert(value);
    }
  }
}

void OddValues::LookAt(const RuleCondition& condition) {
  has_networks_ |= !condition.networks.empty();
  for (const std::string& endpoint : condition.endpoints) has_capitals_ |= HasCapitals(endpoint);
}

OddValues::Found OddValues::In(const Request& request) {
  if (looked_at_ < kFirst) ++looked_at_;
  Found found;
  const std::string_view endpoint = request[RuleSet::kEndpoint];
  if (endpoint.data() != nullptr && (!IsPath(endpoint) || has_capitals_ || HasCapitals(endpoint))) {
    Add(RuleSet::kEndpoint, endpoint, &found);
  }
  const std::string_view tier = request[RuleSet::kTier];
  if (tier.data() != nullptr && !tiers_.empty() &&
      std::find(tiers_.begin(), tiers_.end(), tier) == tiers_.end()) {
    Add(RuleSet::kTier, tier, &found);
  }
  const std::string_view priority = request[RuleSet::kPriority];
  if (priority.data() != nullptr && !ParsePriority(priority).has_value()) {
    Add(RuleSet::kPriority, priority, &found);
  }
  const std::string_view ip = request[RuleSet::kIp];
  if (has_networks_ && ip.data() != nullptr && ip.find_first_of(".:") == std::string_view::npos) {
    Add(RuleSet::kIp, ip, &found);
  }
  for (const auto& [attribute, values] : conditions_) {
    const std::string_view value = request[attribute];
    if (value.data() != nullptr && !values.contains(absl::string_view(value.data(), value.size())))
      Add(attribute, value, &found);
  }
  return found;
}

void OddValues::Add(uint32_t attribute, std::string_view value, Found* found) {
  constexpr size_t kMostBytes = 200;
  const size_t hash = absl::HashOf(attribute, absl::string_view(value.data(), value.size()));
  size_t& place = lately_[hash % lately_.size()];
  if (place == hash || found_ == kMostFound) return;
  place = hash;
  ++found_;
  found->emplace_back(attribute, value.substr(0, kMostBytes));
}

}  // namespace tidegate::python
