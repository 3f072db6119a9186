// Keys, limits and limiters that the benchmarks share.
#ifndef TIDEGATE_BENCHMARKS_CPP_WORKLOAD_H_
#define TIDEGATE_BENCHMARKS_CPP_WORKLOAD_H_

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tidegate/limiter.h"
#include "tidegate/memory_store.h"
#include "tidegate/redis_store.h"
#include "tidegate/shm_store.h"
namespace tidegate::bench {

inline constexpr int64_t kSecond = 1'000'000'000;

inline Limit MakeLimit(LimitSpec spec) {
  absl::StatusOr<Limit> limit = Limit::Create(std::move(spec));
  if (limit.ok()) return *std::move(limit);
  std::fprintf(stderr, "%s\n", std::string(limit.status().message()).c_str());
  std::exit(1);
}

// A limit so large that no benchmark reaches it: 1e9 a second if the algorithm allows that, so that
// a bucket's interval is a whole nanosecond, as it is for most limits in use.
inline Limit Ample(Algorithm algorithm) {
  if (IsLog(algorithm)) return MakeLimit({.count = 100, .period_ns = 1, .algorithm = algorithm});
  return MakeLimit({.count = kSecond, .period_ns = kSecond, .algorithm = algorithm});
}

inline std::unique_ptr<Limiter> MakeLimiter(const Limit& limit,
                                            std::shared_ptr<Clock> clock = nullptr) {
  return *Limiter::Create({limit}, *MemoryStore::Create(), std::move(clock));
}

// The same over a shared memory of its own, whose name is already removed.
inline std::unique_ptr<Limiter> MakeShmLimiter(const Limit& limit,
                                               std::shared_ptr<Clock> clock = nullptr) {
  const std::string name = "bench-" + std::to_string(getpid());
  auto store = ShmStore::Open(name, {.capacity = 10'000});
  if (!store.ok() || !ShmStore::Remove(name).ok()) {
    std::fprintf(stderr, "%s\n", std::string(store.status().message()).c_str());
    std::exit(1);
  }
  return *Limiter::Create({limit}, *std::move(store), std::move(clock));
}

// The same over the Redis at 127.0.0.1:`port`, which leases its units.
inline std::unique_ptr<Limiter> MakeLeasedLimiter(const Limit& limit, int port) {
  RedisOptions options;
  options.port = port;
  options.timeout = absl::Seconds(10);
  options.lease = absl::Seconds(10);
  auto store = RedisStore::Create(std::move(options));
  if (!store.ok() || !(*store)->Ping().ok()) {
    std::fprintf(stderr, "no Redis answers at the port %d\n", port);
    std::exit(1);
  }
  return *Limiter::Create({limit}, *std::move(store), nullptr);
}

// "user:0000000", ...: short, as most keys are, and adjacent in memory, so that reading them takes
// as little time as possible.
class Keys {
 public:
  explicit Keys(size_t n) : text_(n * kLength, '\0') {
    for (size_t i = 0; i < n; ++i) {
      char key[kLength + 1];
      std::snprintf(key, sizeof key, "user:%08zu", i % 100'000'000);
      text_.replace(i * kLength, kLength, key);
    }
  }
  size_t size() const { return text_.size() / kLength; }
  std::string_view operator[](size_t i) const {
    return std::string_view(text_).substr(i * kLength, kLength);
  }

 private:
  static constexpr size_t kLength = 13;
  std::string text_;
};

// Draws `n` of `keys`; the k-th most frequent key comes 1/k times as often as the first.
inline std::vector<std::string_view> Zipf(const Keys& keys, size_t n) {
  std::vector<double> upto(keys.size());
  double sum = 0;
  for (size_t k = 0; k < keys.size(); ++k) upto[k] = sum += 1.0 / static_cast<double>(k + 1);
  std::mt19937_64 random(1);
  std::vector<std::string_view> drawn;
  drawn.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const double at = std::uniform_real_distribution<double>(0, sum)(random);
    drawn.push_back(keys[static_cast<size_t>(std::lower_bound(upto.begin(), upto.end() - 1, at) -
                                             upto.begin())]);
  }
  return drawn;
}

}  // namespace tidegate::bench

#endif  // TIDEGATE_BENCHMARKS_CPP_WORKLOAD_H_
