#include "redis/protocol/decide_log.h"

#include <algorithm>

#include "algorithms/log.h"
#include "base/time_units.h"

namespace tidegate::redis {

Decision DecideLog(const Charge& charge, const Answer& answer, size_t index, bool charged) {
  const Limit& limit = charge.limit->limit;
  const auto& [newest_s, newest_ns, alive, behind, freeing_s, freeing_ns, unused, unused_too] =
      answer.states[index];
  Decision d;
  d.limit = &limit;
  d.behind = behind != 0;
  d.used_units = alive;
  const int64_t newest = newest_s * kSecondNs + newest_ns;
  d.reset_after_ns = std::max<int64_t>(newest - answer.now_ns, 0);
  const int64_t freeing = freeing_s * kSecondNs + freeing_ns - answer.now_ns;
  if (freeing > 0) d.known_more_ns = freeing;
  if (limit.IsOversize(charge.cost)) {
    InstantRing ring;
    if (alive == 0 && charged) {
      d = StepLog(limit, &ring, answer.now_ns, charge.cost);
      d.behind = behind != 0;
    } else {
      d.allowed = alive == 0;
      d.retry_after_ns = d.reset_after_ns;
    }
  } else if (charge.cost > limit.count()) {
    d.retry_after_ns = Decision::kNever;
  } else if (alive + charge.cost > limit.count()) {
    d.retry_after_ns = std::max<int64_t>(freeing, 1);
  } else {
    d.allowed = true;
    if (charged) {
      d.used_units += charge.cost;
      d.late = d.reset_after_ns > limit.period_ns();
      d.reset_after_ns = std::max(limit.period_ns(), d.reset_after_ns);
    }
  }
  return d;
}

Decision DecideLogOfUsed(const Charge& charge, const Answer& answer, size_t index,
                         int64_t most_debt) {
  const Limit& limit = charge.limit->limit;
  const int64_t units = answer.charged[index];
  Decision d = DecideLog({charge.key, charge.limit, limit.beyond()}, answer, index, false);
  const int64_t room = limit.count() + most_debt - d.used_units;
  const bool agrees = units == std::clamp<int64_t>(room, 0, charge.cost);
  d.used_units += units;
  d.SetCharged(units);
  d.allowed = agrees || d.behind;
  return d;
}

}  // namespace tidegate::redis
