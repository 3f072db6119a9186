#include "server/checks/bound_rules.h"

#include <algorithm>
#include <cstring>

namespace tidegate::server {

namespace {

uint64_t NextGeneration() {
  // Differs between processes: tokens of decisions name it, and may come to another instance.
  static std::atomic<uint64_t> next = [] {
    const Hasher::Seed seed = Hasher::RandomSeed();
    uint64_t first = 0;
    std::memcpy(&first, seed.data(), sizeof(first));
    return first;
  }();
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

BoundRules::BoundRules(std::shared_ptr<RuleLimiter> limiter)
    : limiter_(std::move(limiter)),
      blocks_(limiter_->store().blocks()),
      generation_(NextGeneration()) {
  for (const Rule& rule : limiter_->rules().rules()) LookAt(rule.condition);
  for (const ListEntry& entry : limiter_->rules().lists()) LookAt(entry.condition);
}

void BoundRules::LookAt(const RuleCondition& condition) {
  look_at_methods_ |= !condition.methods.empty();
  look_at_endpoints_ |= !condition.endpoints.empty();
  know_parameters_ |=
      std::any_of(condition.endpoints.begin(), condition.endpoints.end(),
                  [](const std::string& endpoint) { return endpoint.find(';') != endpoint.npos; });
}

tidegate::Request BoundRules::RequestOf(const Attributes& attributes) const {
  const auto& names = limiter_->rules().attribute_names();
  tidegate::Request request(names.size());
  for (const Attribute& attribute : attributes) {
    const auto at = std::find(names.begin(), names.end(), attribute.name);
    if (at != names.end()) request[static_cast<size_t>(at - names.begin())] = attribute.value;
  }
  return request;
}

void BoundRules::Flush() {
  if (has_submitted_.exchange(false, std::memory_order_acq_rel)) limiter_->store().store().Flush();
}

}  // namespace tidegate::server
