#include "rules/rule_overrides.h"

#include <algorithm>

namespace tidegate {

namespace {

constexpr int64_t kSecond = 1'000'000'000;

}  // namespace

bool RuleSet::Overrides::Add(uint32_t number, const Rule& rule, std::string_view key,
                             const RuleOverride& given, LimitRange limits) {
  const auto next = static_cast<uint32_t>(table_->rule_slots.size());
  const uint32_t slot = table_->rule_slots.try_emplace(rule.id, next).first->second;
  SetSlot(number, slot);
  Override override{0, kForeverS, 0};
  const auto [group, is_new_group] = group_numbers_.try_emplace(
      std::tuple(number, limits.first, limits.count), static_cast<uint32_t>(ranges_.size()));
  if (is_new_group) {
    table_->groups.push_back({rule.id, rule.by, given.limits});
    ranges_.push_back(limits);
  }
  override.group = group->second;
  if (given.until_ns != RuleOverride::kForever) {
    override.until_s = static_cast<uint32_t>(std::clamp<int64_t>(
        given.until_ns / kSecond + (given.until_ns % kSecond > 0 ? 1 : 0), 0, kForeverS - 1));
  }
  const auto [known, is_new] = table_->reason_numbers.try_emplace(
      given.reason, static_cast<uint32_t>(table_->reasons.size()));
  if (is_new) table_->reasons.push_back(given.reason);
  override.reason = known->second;
  const Fingerprint print = PrintOf(slot, key);
  const auto [at, is_first] = table_->by_key.try_emplace(print, override);
  if (is_first && given.from_ns == 0) {
    ++table_->size;
    return true;
  }
  std::vector<Timed>& timed = table_->timed[print];
  if (!is_first && timed.empty()) timed.push_back({at->second, 0, EndOf(at->second)});
  at->second.until_s = 0;
  const Timed added{override, given.from_ns, EndOf(override)};
  const auto applies_before = [](const Timed& a, const Timed& b) {
    return a.until_ns != b.until_ns ? a.until_ns < b.until_ns : a.from_ns > b.from_ns;
  };
  const auto place = std::lower_bound(timed.begin(), timed.end(), added, applies_before);
  if (place != timed.end() && !applies_before(added, *place)) return false;
  timed.insert(place, added);
  ++table_->size;
  return true;
}

int64_t RuleSet::Overrides::EndOf(const Override& override) {
  return override.until_s == kForeverS ? RuleOverride::kForever
                                       : static_cast<int64_t>(override.until_s) * kSecond;
}

void RuleSet::Overrides::Place(const Group& group, uint32_t number, LimitRange limits) {
  SetSlot(number, table_->rule_slots.at(group.rule));
  ranges_.push_back(limits);
}

void RuleSet::Overrides::SetSlot(uint32_t number, uint32_t slot) {
  if (number >= slots_.size()) slots_.resize(number + 1, kNone);
  slots_[number] = slot;
}

const RuleSet::Overrides::Override* RuleSet::Overrides::Find(uint32_t rule, std::string_view key,
                                                             int64_t now_ns) const {
  const uint32_t slot = SlotOf(rule);
  if (slot == kNone) return nullptr;
  const Fingerprint print = PrintOf(slot, key);
  const auto at = table_->by_key.find(print);
  if (at == table_->by_key.end()) return nullptr;
  if (now_ns < EndOf(at->second)) return &at->second;
  if (at->second.until_s != 0) return nullptr;
  const auto all = table_->timed.find(print);
  if (all == table_->timed.end()) return nullptr;  // it ended when the clock was at 0
  for (const Timed& timed : all->second) {
    if (timed.from_ns <= now_ns && now_ns < timed.until_ns) return &timed.override;
  }
  return nullptr;
}

size_t RuleSet::Overrides::bytes() const {
  size_t bytes = table_->by_key.capacity() * (sizeof(std::pair<Fingerprint, Override>) + 1);
  for (const auto& [print, timed] : table_->timed) {
    bytes += sizeof(print) + timed.capacity() * sizeof(Timed);
  }
  for (const std::string& reason : table_->reasons) {
    bytes += 2 * (reason.size() + sizeof(std::string));
  }
  return bytes;
}

}  // namespace tidegate
