// The status and the top-ups of quotas in Redis.
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/monotonic.h"
#include "quotas/step.h"
#include "redis/health/deny_cache.h"
#include "redis/protocol/scripts.h"
#include "redis/transport/client.h"
#include "tidegate/redis_store.h"

namespace tidegate {

absl::StatusOr<redis::Answer> RedisStore::RunQuotaScript(redis::Request request) {
  const Instant deadline = MonotonicIn(std::max(options_.timeout, options_.connect_timeout));
  const uint16_t slot = SlotOf(request.plan[0]);
  const uint64_t renewals = renewals_.load(std::memory_order_relaxed);
  for (const bool by_text : {false, true}) {
    const auto reply =
        client_->Call(slot, scripts_->Command(request, redis::Form::kFull, by_text), deadline);
    const absl::Status failure = FailureIn(reply);
    if (absl::IsNotFound(failure) && !by_text) continue;
    absl::StatusOr<redis::Answer> answer =
        failure.ok() ? redis::Scripts::Parse(**reply, request, redis::Form::kFull)
                     : absl::StatusOr<redis::Answer>(failure);
    RenewAfter(answer.status(), renewals);
    Record(answer.status());
    if (answer.ok()) return answer;
    return absl::UnavailableError(
        absl::StrCat("the storage does not answer: ", answer.status().message()));
  }
  return absl::InternalError("unreachable");
}

absl::StatusOr<QuotaStatus> RedisStore::StatusOf(const Charge& charge, const Moment& moment) {
  auto answer = RunQuotaScript(RequestFor(Op::kPeek, {&charge, 1}, kNoInstant, moment));
  if (!answer.ok()) return answer.status();
  return StatusOfQuota(charge.limit->limit, std::move(answer->quotas[0]), answer->now_ns);
}

absl::Status RedisStore::TopUp(const Charge& charge, const QuotaTopUp& top_up,
                               const Moment& moment) {
  redis::Request request = RequestFor(Op::kPeek, {&charge, 1}, kNoInstant, moment);
  request.op = "top_up";
  request.top_up = &top_up;
  auto answer = RunQuotaScript(request);
  denied_->Forget(KeyOf(charge));
  if (!answer.ok()) return answer.status();
  // The same rules as in the script decide whether it was added, and why not.
  return AddTopUp(charge.limit->limit, &answer->quotas[0], answer->now_ns, top_up);
}

absl::Status RedisStore::BringForward(const Charge& charge, const Moment& moment) {
  redis::Request request = RequestFor(Op::kPeek, {&charge, 1}, kNoInstant, moment);
  request.op = "bring_forward";
  const auto answer = RunQuotaScript(request);
  denied_->Forget(KeyOf(charge));
  return answer.status();
}

}  // namespace tidegate
