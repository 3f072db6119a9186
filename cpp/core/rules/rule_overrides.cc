#include "rules/rule_overrides.h"

#include <algorithm>

namespace tidegate {

namespace {

constexpr int64_t kSecond = 1'000'000'000;

}  // namespace

bool RuleSet::Overrides::Add(uint32_t rule, std::string_view key, LimitRange limits,
                             const RuleOverride& given) {
  Override override{limits, kForeverS, 0};
  if (given.until_ns != RuleOverride::kForever) {
    override.until_s = static_cast<uint32_t>(std::clamp<int64_t>(
        given.until_ns / kSecond + (given.until_ns % kSecond > 0 ? 1 : 0), 0, kForeverS - 1));
  }
  const auto [known, is_new] =
      reason_numbers_.try_emplace(given.reason, static_cast<uint32_t>(reasons_.size()));
  if (is_new) reasons_.push_back(given.reason);
  override.reason = known->second;
  const Fingerprint print = PrintOf(rule, key);
  const auto [at, is_first] = by_key_.try_emplace(print, override);
  if (is_first && given.from_ns == 0) {
    ++size_;
    return true;
  }
  std::vector<Timed>& timed = timed_[print];
  if (!is_first && timed.empty()) timed.push_back({at->second, 0, EndOf(at->second)});
  at->second.until_s = 0;
  const Timed added{override, given.from_ns, EndOf(override)};
  const auto applies_before = [](const Timed& a, const Timed& b) {
    return a.until_ns != b.until_ns ? a.until_ns < b.until_ns : a.from_ns > b.from_ns;
  };
  const auto place = std::lower_bound(timed.begin(), timed.end(), added, applies_before);
  if (place != timed.end() && !applies_before(added, *place)) return false;
  timed.insert(place, added);
  ++size_;
  return true;
}

int64_t RuleSet::Overrides::EndOf(const Override& override) {
  return override.until_s == kForeverS ? RuleOverride::kForever
                                       : static_cast<int64_t>(override.until_s) * kSecond;
}

const RuleSet::Overrides::Override* RuleSet::Overrides::Find(uint32_t rule, std::string_view key,
                                                             int64_t now_ns) const {
  if (by_key_.empty()) return nullptr;
  const Fingerprint print = PrintOf(rule, key);
  const auto at = by_key_.find(print);
  if (at == by_key_.end()) return nullptr;
  if (now_ns < EndOf(at->second)) return &at->second;
  if (at->second.until_s != 0) return nullptr;
  const auto all = timed_.find(print);
  if (all == timed_.end()) return nullptr;  // it ended when the clock was at 0
  for (const Timed& timed : all->second) {
    if (timed.from_ns <= now_ns && now_ns < timed.until_ns) return &timed.override;
  }
  return nullptr;
}

size_t RuleSet::Overrides::bytes() const {
  size_t bytes = by_key_.capacity() * (sizeof(std::pair<Fingerprint, Override>) + 1);
  for (const auto& [print, timed] : timed_)
    bytes += sizeof(print) + timed.capacity() * sizeof(Timed);
  for (const std::string& reason : reasons_) bytes += 2 * (reason.size() + sizeof(std::string));
  return bytes;
}

}  // namespace tidegate
