// Makes a number of decisions of one kind and nothing else, for tools that count their
// instructions: see callgrind.sh. Prints how many it made a second. Kinds that end in /leased need
// a Redis at $REDIS_PORT.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "tidegate/limiter.h"
#include "workload.h"

namespace tidegate::bench {
namespace {

constexpr int64_t kMillion = 1'000'000;

int Run(std::string_view kind, int64_t times, size_t how_many) {
  const Keys keys(how_many);
  auto clock = std::make_shared<ManualClock>(1'700'000'000'123'456'789);
  const auto drop = [&kind](std::string_view suffix) {
    const bool had = kind.ends_with(suffix);
    if (had) kind.remove_suffix(suffix.size());
    return had;
  };
  if (drop("/system-clock")) clock = nullptr;
  const bool shared = drop("/shm");
  const bool leased = drop("/leased");
  if (leased) clock = nullptr;
  const int64_t cost = drop("/cost") ? 2 : 1;
  const bool refused = kind == "refused";
  const bool allow = kind == "allow";
  const absl::StatusOr<Algorithm> algorithm =
      refused || allow ? Algorithm::kTokenBucket : ParseAlgorithm(kind);
  if (!algorithm.ok()) return 2;
  // Leases are as long as they may be, so that their questions are few.
  const Limit limit =
      refused  ? MakeLimit({.count = 1, .period_ns = 3'600 * kSecond})
      : leased ? MakeLimit({.count = kMillion, .period_ns = kSecond, .burst = 100 * kMillion})
               : Ample(*algorithm);
  const char* const port = std::getenv("REDIS_PORT");
  const auto limiter = leased   ? MakeLeasedLimiter(limit, port == nullptr ? 6379 : std::atoi(port))
                         : shared ? MakeShmLimiter(limit, clock)
                                : MakeLimiter(limit, clock);
  const auto n = static_cast<int64_t>(keys.size());
  // A lease grows with the calls of its key.
  const int64_t first = leased ? 200 * n : n;
  for (int64_t i = 0; i < first; ++i) limiter->Hit(keys[static_cast<size_t>(i % n)]);
  int64_t allowed = 0;
  const auto begun = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < times; ++i) {
    const std::string_view key = keys[static_cast<size_t>(i % n)];
    allowed += allow ? limiter->Allow(key, cost) : limiter->Hit(key, cost).allowed;
    // The logs have a period of one nanosecond, so they are empty again after this.
    if (clock != nullptr && i % n == n - 1) clock->AdvanceNs(1);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  if (allowed == (refused ? 0 : times)) {
    std::printf("%.0f decisions a second\n", static_cast<double>(times) / took.count());
    return 0;
  }
  std::fprintf(stderr, "%.*s: %lld of %lld were allowed\n", static_cast<int>(kind.size()),
               kind.data(), static_cast<long long>(allowed), static_cast<long long>(times));
  return 1;
}

}  // namespace
}  // namespace tidegate::bench

int main(int argc, char** argv) {
  const int64_t times = argc == 3 || argc == 4 ? std::atoll(argv[2]) : 0;
  const int64_t keys = argc == 4 ? std::atoll(argv[3]) : 1'000;
  const int status =
      times < 1 || keys < 1 ? 2 : tidegate::bench::Run(argv[1], times, static_cast<size_t>(keys));
  if (status == 2) {
    std::fprintf(stderr,
                 "usage: %s ALGORITHM|allow|refused[/cost][/shm|/leased][/system-clock] TIMES "
                 "[KEYS]\n",
                 argv[0]);
  }
  return status;
}
