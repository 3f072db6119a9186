// Any reply of a server is refused, or makes decisions that can be read. The first byte picks the
// plan that was sent, and the rest is the reply.
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "redis/protocol/scripts.h"
#include "redis/transport/stream.h"
#include "tidegate/limit.h"
#include "tidegate/store.h"

namespace tidegate {
namespace {

const std::vector<BoundLimit>& Limits() {
  static const auto* const limits = [] {
    auto* const made = new std::vector<BoundLimit>();
    for (const Algorithm algorithm :
         {Algorithm::kTokenBucket, Algorithm::kLeakyBucket, Algorithm::kFixedWindow,
          Algorithm::kSlidingWindow, Algorithm::kSlidingLog, Algorithm::kConcurrency}) {
      LimitSpec spec;
      spec.count = 7;
      spec.period_ns = 1'000'000'000;
      spec.algorithm = algorithm;
      made->push_back({*Limit::Create(spec), "tg:", {}, nullptr});
    }
    return made;
  }();
  return *limits;
}

void Read(const Decision& decision) {
  if (decision.limit == nullptr || decision.remaining() < 0 ||
      decision.remaining() > decision.limit->capacity() || decision.retry_after_ns < 0) {
    std::abort();
  }
}

void Understand(const absl::StatusOr<redis::Answer>& answer, absl::Span<const Charge> plan) {
  if (!answer.ok()) return;
  for (size_t i = 0; i < plan.size(); ++i) {
    Read(redis::Scripts::Decide(plan[i], *answer, i, /*peek=*/false));
    Read(redis::Scripts::Decide(plan[i], *answer, i, /*peek=*/true));
    const auto state = redis::Scripts::Steppable(plan[i], *answer, i);
    if (!state.has_value()) continue;
    const Decision later = redis::Scripts::StepLater(plan[i], *state, answer->now_ns);
    if (!later.behind) Read(later);
  }
}

void Understand(const redisReply& reply, const std::vector<Charge>& plan) {
  redis::Request request;
  request.op = "hit";
  request.plan = plan;
  for (const redis::Form form : {redis::Form::kFull, redis::Form::kBucketPlan}) {
    Understand(redis::Scripts::Parse(reply, request, form), plan);
  }
  for (const Charge& charge : plan) {
    const Algorithm algorithm = charge.limit->limit.algorithm();
    if (!IsBucket(algorithm) && algorithm != Algorithm::kFixedWindow) continue;
    const redis::Form form =
        IsBucket(algorithm) ? redis::Form::kBucketHits : redis::Form::kFixedHits;
    const std::vector<Charge> alike(3, charge);
    for (const auto& answer : redis::Scripts::ParseHits(reply, form, alike)) {
      Understand(answer, {&charge, 1});
    }
  }
}

}  // namespace
}  // namespace tidegate

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tidegate::Charge;
  if (size < 2 || size > 60'000) return 0;
  std::vector<Charge> plan;
  for (size_t i = 0; i < tidegate::Limits().size(); ++i) {
    if ((data[0] >> i & 1) != 0) plan.push_back({"key", &tidegate::Limits()[i], 1 + data[0] / 64});
  }
  if (plan.empty()) return 0;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 0;
  if (write(ends[1], data + 1, size - 1) == static_cast<ssize_t>(size - 1)) {
    tidegate::redis::Stream stream(ends[0]);
    std::vector<tidegate::redis::Reply> replies;
    (void)stream.Read(&replies);
    for (const auto& reply : replies) tidegate::Understand(*reply, plan);
  } else {
    close(ends[0]);
  }
  close(ends[1]);
  return 0;
}
