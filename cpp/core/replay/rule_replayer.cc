#include "tidegate/rule_replayer.h"

#include <utility>

#include "tidegate/memory_store.h"
#include "tidegate/timed_store.h"

namespace tidegate {

absl::StatusOr<std::unique_ptr<RuleReplayer>> RuleReplayer::Create(
    std::shared_ptr<const RuleSet> rules) {
  // A store that never evicts a live key, however many keys there are.
  auto store = MemoryStore::Create({.capacity = MemoryOptions::kMaxCapacity});
  if (!store.ok()) return store.status();
  auto clock = std::make_shared<ManualClock>();
  auto limiter = RuleLimiter::Create(std::move(rules), std::make_shared<TimedStore>(*store, clock));
  if (!limiter.ok()) return limiter.status();
  return std::unique_ptr<RuleReplayer>(new RuleReplayer(std::move(clock), *std::move(limiter)));
}

RuleReplayer::RuleReplayer(std::shared_ptr<ManualClock> clock, std::shared_ptr<RuleLimiter> limiter)
    : clock_(std::move(clock)),
      limiter_(std::move(limiter)),
      request_(limiter_->rules().attributes()) {}

void RuleReplayer::Run(const RequestColumns& requests, absl::Span<const AttributeColumn> attributes,
                       const int64_t* costs, size_t from, size_t to, const AnswerColumns& answers) {
  for (size_t n = from; n < to; ++n) {
    const size_t at = requests.At(n);
    uint32_t binding = 0;
    const Decision decision =
        Hit(attributes, at, costs == nullptr ? 1 : costs[at], requests.times_ns[at], &binding);
    answers.Write(at, decision, binding);
  }
}

Decision RuleReplayer::Hit(absl::Span<const AttributeColumn> attributes, size_t at, int64_t cost,
                           int64_t now_ns, uint32_t* binding) {
  clock_->SetNs(now_ns);
  for (const AttributeColumn& attribute : attributes) {
    request_[attribute.number] = attribute.values[attribute.codes[at]];
  }
  const Decision decision = limiter_->Hit(request_, cost);
  *binding = NumberOf(decision.limit);
  return decision;
}

uint32_t RuleReplayer::NumberOf(const Limit* limit) {
  const auto [found, is_new] = number_of_limit_.try_emplace(limit, 0);
  if (is_new) {
    const auto [named, is_new_name] =
        number_of_name_.try_emplace(limit->rule(), static_cast<uint32_t>(names_.size()));
    if (is_new_name) names_.push_back(limit->rule());
    found->second = named->second;
  }
  return found->second;
}

}  // namespace tidegate
