#include "rules/rule_overrides.h"

#include <algorithm>

namespace tidegate {

namespace {

constexpr int64_t kSecond = 1'000'000'000;

}  // namespace

bool RuleSet::Overrides::Add(uint32_t rule, std::string_view key, LimitRange limits,
                             int64_t until_ns, const std::string& reason) {
  Override override{limits, kForeverS, 0};
  if (until_ns != RuleOverride::kForever) {
    override.until_s = static_cast<uint32_t>(std::clamp<int64_t>(
        until_ns / kSecond + (until_ns % kSecond > 0 ? 1 : 0), 0, kForeverS - 1));
  }
  const auto [known, is_new] =
      reason_numbers_.try_emplace(reason, static_cast<uint32_t>(reasons_.size()));
  if (is_new) reasons_.push_back(reason);
  override.reason = known->second;
  return by_key_.try_emplace(PrintOf(rule, key), override).second;
}

const RuleSet::Overrides::Override* RuleSet::Overrides::Find(uint32_t rule, std::string_view key,
                                                             int64_t now_ns) const {
  if (by_key_.empty()) return nullptr;
  const auto at = by_key_.find(PrintOf(rule, key));
  if (at == by_key_.end()) return nullptr;
  const Override& override = at->second;
  const bool lasts =
      override.until_s == kForeverS || now_ns < static_cast<int64_t>(override.until_s) * kSecond;
  return lasts ? &override : nullptr;
}

size_t RuleSet::Overrides::bytes() const {
  size_t bytes = by_key_.capacity() * (sizeof(std::pair<Fingerprint, Override>) + 1);
  for (const std::string& reason : reasons_) bytes += 2 * (reason.size() + sizeof(std::string));
  return bytes;
}

}  // namespace tidegate
