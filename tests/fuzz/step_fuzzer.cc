// Steps of any limit from any state never overflow (UBSan), and every decision keeps the laws of
// step_laws.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "fuzzer/FuzzedDataProvider.h"
#include "step_laws.h"
#include "tidegate/limit.h"
#include "tidegate/step.h"

namespace tidegate {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

absl::StatusOr<Limit> ALimit(FuzzedDataProvider& in) {
  LimitSpec spec;
  spec.algorithm = in.PickValueInArray({Algorithm::kTokenBucket, Algorithm::kLeakyBucket,
                                        Algorithm::kFixedWindow, Algorithm::kSlidingWindow});
  spec.count = in.ConsumeIntegralInRange<int64_t>(1, Limit::kMaxCount);
  spec.period_ns = in.ConsumeIntegralInRange<int64_t>(1, Limit::kMaxPeriodNs);
  if (in.ConsumeBool()) spec.burst = in.ConsumeIntegralInRange<int64_t>(1, Limit::kMaxCount);
  if (in.ConsumeBool()) {
    spec.calendar = in.ConsumeBool() ? Calendar::kMonth : Calendar::kYear;
    spec.calendar_units = in.ConsumeIntegralInRange<int64_t>(1, 100);
  }
  return Limit::Create(spec);
}

// A state that a step may have written at some time, by any clock.
CellState AState(FuzzedDataProvider& in, const Limit& limit) {
  CellState state;
  if (limit.calendar() != Calendar::kNone) {  // not every instant ends a month
    Step(limit, {}, in.ConsumeIntegralInRange<int64_t>(0, kMaxInstantNs),
         in.ConsumeIntegralInRange<int64_t>(1, limit.count()), &state);
    return state;
  }
  state.w0 = static_cast<uint64_t>(
      in.ConsumeIntegralInRange<int64_t>(0, kMaxInstantNs + Limit::kMaxPeriodNs));
  const auto up_to = [&](int64_t most) {
    return static_cast<uint64_t>(in.ConsumeIntegralInRange<int64_t>(0, most));
  };
  switch (limit.algorithm()) {
    case Algorithm::kFixedWindow:
      state.w1 = up_to(limit.count());
      break;
    case Algorithm::kSlidingWindow:
      state.w1 = up_to(limit.count()) << 32;
      state.w1 |= up_to(limit.count());
      break;
    default:
      state.w1 = up_to(limit.denominator() - 1);
  }
  return state;
}

void Check(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  const char* const broken = testing::BrokenLaw(limit, state, now_ns, cost);
  if (broken == nullptr) return;
  std::fprintf(stderr, "not so: %s: %s at %lld, cost %lld, state %llu %llu\n", broken,
               limit.ToString().c_str(), static_cast<long long>(now_ns),
               static_cast<long long>(cost), static_cast<unsigned long long>(state.w0),
               static_cast<unsigned long long>(state.w1));
  std::abort();
}

void CheckRefund(const Limit& limit, const CellState& state, int64_t now_ns, int64_t cost) {
  const CellState back = Refund(limit, state, now_ns, cost);
  const int64_t before = Peek(limit, state, now_ns, 1).remaining();
  const int64_t after = Peek(limit, back, now_ns, 1).remaining();
  if (after >= before && (after - before <= cost || after == limit.capacity())) return;
  std::fprintf(stderr, "not so: a refund gives back what it says: %s, %lld to %lld for %lld\n",
               limit.ToString().c_str(), static_cast<long long>(before),
               static_cast<long long>(after), static_cast<long long>(cost));
  std::abort();
}

}  // namespace
}  // namespace tidegate

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidegate;  // NOLINT(google-build-using-namespace)
  FuzzedDataProvider in(data, size);
  const absl::StatusOr<Limit> limit = ALimit(in);
  if (!limit.ok()) return 0;
  CellState state = AState(in, *limit);
  int64_t now_ns = in.ConsumeIntegralInRange<int64_t>(0, kMaxInstantNs);
  while (in.remaining_bytes() > 0) {
    const int64_t cost = in.ConsumeBool() ? in.ConsumeIntegralInRange<int64_t>(1, limit->capacity())
                                          : in.ConsumeIntegralInRange<int64_t>(1, kMost);
    Check(*limit, state, now_ns, cost);
    if (in.ConsumeBool()) {
      CheckRefund(*limit, state, now_ns, cost);
      state = Refund(*limit, state, now_ns, cost);
    } else {
      CellState next;
      Step(*limit, state, now_ns, cost, &next);
      state = next;
    }
    // The next call comes a little later, or at any instant.
    if (in.ConsumeBool()) {
      now_ns += in.ConsumeIntegralInRange<int64_t>(
          0, std::min(limit->period_ns(), kMaxInstantNs - now_ns));
    } else {
      now_ns = in.ConsumeIntegralInRange<int64_t>(0, kMaxInstantNs);
    }
  }
  return 0;
}
