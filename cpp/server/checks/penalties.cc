#include "server/checks/penalties.h"

#include <utility>

#include "base/text.h"
#include "server/checks/decision_values.h"

namespace tidegate::server {

namespace {

// A limit that lets nothing through.
const Limit& BlockLimit() {
  static const Limit* const limit = [] {
    LimitSpec spec;
    spec.period_ns = kSecondNs;
    spec.name = std::string(kBlockRule);
    return new Limit(*Limit::Create(std::move(spec)));
  }();
  return *limit;
}

}  // namespace

Decision Penalty::Refusal() const {
  Decision decision;
  decision.limit = &BlockLimit();
  decision.SetChargedIn(ChargedIn::kNowhere);
  decision.at_ns = at_ns;
  decision.retry_after_ns = decision.reset_after_ns = left_ns;
  return decision;
}

Penalties::Penalties(const std::vector<Entry>& entries, std::shared_ptr<Clock> clock)
    : clock_(std::move(clock)) {
  const int64_t now_ns = NowNs();
  for (const Entry& entry : entries) {
    (entry.is_ip ? ips_ : users_)[entry.name] = {
        entry.blocks, InstantAfter(now_ns, entry.length_ns), entry.reason};
  }
}

std::optional<Penalty> Penalties::Of(std::string_view user, std::string_view ip) const {
  const Table& table = user.empty() ? ips_ : users_;
  const auto found = table.find(Absl(user.empty() ? ip : user));
  if (found == table.end()) return std::nullopt;
  const int64_t now_ns = NowNs();
  if (now_ns >= found->second.ns) return std::nullopt;
  const Until& until = found->second;
  return Penalty{until.blocks, now_ns, until.ns - now_ns, until.reason};
}

}  // namespace tidegate::server
