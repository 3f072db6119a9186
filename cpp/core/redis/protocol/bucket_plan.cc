// The command of lua/bucket_plan.lua, and its reply.
#include <string>

#include "base/time_units.h"
#include "redis/protocol/keys.h"
#include "redis/protocol/replies.h"
#include "redis/protocol/scripts.h"
#include "redis/protocol/words.h"

namespace tidegate::redis {
namespace {

// The parts of a microsecond, in which the script counts what is less than one.
int64_t PartsOfMicrosecond(const Limit& limit) { return kMicrosecondNs * limit.denominator(); }

void AppendDuration(std::string* bytes, const Limit& limit, int64_t ns, int64_t fraction) {
  AppendPacked(bytes, ns / kMicrosecondNs);
  AppendPacked(bytes, ns % kMicrosecondNs * limit.denominator() + fraction);
}

}  // namespace

bool Scripts::IsOfBucketPlan(const Charge& charge) {
  const Limit& limit = charge.limit->limit;
  // The sum of two durations is exact in the script.
  constexpr int64_t kMostDenominator = (int64_t{1} << 52) / kMicrosecondNs;
  return IsBucket(limit.algorithm()) && charge.cost <= limit.most_plain_cost() &&
         limit.denominator() <= kMostDenominator;
}

std::string Scripts::BucketPlanCommand(const Request& request, bool by_text) const {
  Words words;
  words.Add(by_text ? "EVAL" : "EVALSHA");
  words.Add(by_text ? bucket_plan_.text : bucket_plan_.digest);
  words.Add(static_cast<int64_t>(request.plan.size()));
  for (const Charge& charge : request.plan) words.Add(RedisKey(*charge.limit, charge.key));
  std::string numbers;
  numbers.reserve(7 + 49 * request.plan.size());
  AppendPacked(&numbers, request.margin_ms);
  for (const Charge& charge : request.plan) {
    const Limit& limit = charge.limit->limit;
    const Interval cost = CostInterval(limit, charge.cost);
    AppendDuration(&numbers, limit, limit.depth_ns(), limit.depth_fraction());
    AppendDuration(&numbers, limit, cost.ns, cost.fraction);
    AppendPacked(&numbers, limit.denominator());
    AppendDuration(&numbers, limit, limit.step_ns(), limit.step_fraction());
  }
  words.Add(numbers);
  return words.Finish();
}

absl::StatusOr<Answer> Scripts::ParseBucketPlan(const redisReply& reply, const Request& request) {
  const absl::Span<const Charge> plan = request.plan;
  if (reply.type != REDIS_REPLY_ARRAY) return ForeignReply();
  if (reply.elements == 1) return ParseFull(*reply.element[0], request);
  if (reply.elements != 2 + 2 * plan.size()) return ForeignReply();
  for (size_t i = 0; i < reply.elements; ++i) {
    if (!IsInteger(*reply.element[i])) return ForeignReply();
  }
  const auto number = [&](size_t i) { return static_cast<int64_t>(reply.element[i]->integer); };
  constexpr int64_t kLast = kMaxInstantNs / kMicrosecondNs;
  if (number(0) < 0 || number(0) > kLast) return ForeignReply();
  if (number(1) < 0 || number(1) > 1) return ForeignReply();
  Answer answer;
  answer.now_ns = number(0) * kMicrosecondNs;
  answer.allowed = number(1) == 1;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Limit& limit = plan[i].limit->limit;
    const int64_t us = number(2 + 2 * i);
    const int64_t parts = number(3 + 2 * i);
    if (us < 0 || us > 2 * kLast || parts < 0 || parts >= PartsOfMicrosecond(limit)) {
      return ForeignValue();
    }
    constexpr int64_t kEach = kSecondNs / kMicrosecondNs;
    answer.states.push_back({us / kEach, us % kEach * kMicrosecondNs + parts / limit.denominator(),
                             parts % limit.denominator()});
  }
  return answer;
}

}  // namespace tidegate::redis
