// How exactly a rate is kept over a billion simulated events: how often a caller that retries after
// exactly retry_after is admitted, compared with elapsed * rate. The target is 1 ppm, on the
// refusing side.
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tidegate/limit.h"
#include "tidegate/step.h"
#include "workload.h"

namespace tidegate::bench {
namespace {

__extension__ typedef __int128 Wide;

constexpr int64_t kStart = 1'700'000'000'123'456'789;

struct Outcome {
  int64_t elapsed_ns;
  int64_t admitted;
};

Outcome Run(const Limit& limit, int64_t events) {
  BucketOutcome out;
  uint64_t w0 = 0;
  uint64_t w1 = 0;
  int64_t now = kStart;
  for (int64_t admitted = 0; admitted < events;) {
    const bool plain = StepBucket(limit, w0, w1, now, 1, out);
    if (!plain || !out.allowed) {
      now += out.wait_ns;
      continue;
    }
    w0 = out.next_w0;
    w1 = out.next_w1;
    ++admitted;
  }
  return {now - kStart, events};
}

void Measure(int64_t per_second, int64_t events) {
  constexpr int64_t kBurst = 10;
  const Limit limit = MakeLimit({.count = per_second, .period_ns = kSecond, .burst = kBurst});
  const Outcome outcome = Run(limit, events);
  // The burst is admitted at once, and the rest at elapsed * rate.
  const auto due = static_cast<int64_t>(Wide{outcome.elapsed_ns} * per_second / kSecond) + kBurst;
  const double ppm = 1e6 * static_cast<double>(due - outcome.admitted) / static_cast<double>(due);
  std::printf("%12" PRId64 "/s  %12" PRId64 " admitted in %20" PRId64 " ns  %12" PRId64
              " due  %9.6f ppm short  %s\n",
              per_second, outcome.admitted, outcome.elapsed_ns, due, ppm,
              ppm >= 0 && ppm <= 1 ? "reached" : "MISSED");
}

}  // namespace
}  // namespace tidegate::bench

int main(int argc, char** argv) {
  const int64_t events = argc > 1 ? std::atoll(argv[1]) : 1'000'000'000;
  if (events < 1) {
    std::fprintf(stderr, "usage: %s [EVENTS]\n", argv[0]);
    return 2;
  }
  std::printf("target: at most 1 ppm short, and never more than is due\n");
  for (const int64_t per_second : {int64_t{7}, int64_t{1'000'000}, int64_t{1'000'000'000}}) {
    tidegate::bench::Measure(per_second, events);
  }
  return 0;
}
