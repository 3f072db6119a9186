// The time of a decision in C++: the bare step of each algorithm, the clock, and keyed decisions on
// the memory store.
#include <time.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "algorithms/log.h"
#include "benchmark/benchmark.h"
#include "tidegate/clock.h"
#include "tidegate/limiter.h"
#include "tidegate/step.h"
#include "workload.h"

namespace tidegate::bench {
namespace {

constexpr std::array<std::pair<const char*, Algorithm>, 6> kAlgorithms = {{
    {"token_bucket", Algorithm::kTokenBucket},
    {"leaky_bucket", Algorithm::kLeakyBucket},
    {"fixed_window", Algorithm::kFixedWindow},
    {"sliding_window", Algorithm::kSlidingWindow},
    {"sliding_log", Algorithm::kSlidingLog},
    {"concurrency", Algorithm::kConcurrency},
}};

constexpr int64_t kStart = 1'700'000'000'123'456'789;

// ---- Steps -----------------------------------------------------------------

void StepAllowed(benchmark::State& state, const Limit& limit) {
  int64_t now = kStart;
  CellState cell;
  for (auto _ : state) {
    const Decision d = Step(limit, cell, ++now, 1, &cell);
    benchmark::DoNotOptimize(d.allowed);
  }
}

void StepRefused(benchmark::State& state, const Limit& limit) {
  CellState cell;
  Step(limit, cell, kStart, limit.capacity(), &cell);
  for (auto _ : state) {
    CellState next;
    const Decision d = Step(limit, cell, kStart, 1, &next);
    benchmark::DoNotOptimize(d.retry_after_ns);
  }
}

void StepOfALog(benchmark::State& state, const Limit& limit) {
  int64_t now = kStart;
  InstantRing ring;
  for (auto _ : state) {
    const Decision d = StepLog(limit, &ring, ++now, 1);
    benchmark::DoNotOptimize(d.allowed);
  }
}

// ---- Clocks ----------------------------------------------------------------

void OurClock(benchmark::State& state) {
  SystemClock& clock = SystemClock::Get();
  for (auto _ : state) benchmark::DoNotOptimize(clock.Now());
}

void KernelClock(benchmark::State& state) {
  for (auto _ : state) {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    benchmark::DoNotOptimize(t.tv_nsec);
  }
}

// ---- Keyed decisions, each with a reading of the system's clock ------------

// A limiter and the keys of its calls, created at the first call.
class Subject {
 public:
  // A million calls use `keys` by Zipf's law, or one after the other.
  Subject(const Limit& limit, size_t keys, bool zipf = false)
      : limit_(limit), n_(keys), zipf_(zipf) {}

  void Prepare() {
    std::call_once(once_, [&] {
      keys_ = std::make_unique<Keys>(n_);
      if (zipf_) {
        calls_ = Zipf(*keys_, 1'000'000);
      } else {
        for (size_t i = 0; i < n_; ++i) calls_.push_back((*keys_)[i]);
      }
      limiter_ = MakeLimiter(limit_);
      for (const std::string_view key : calls_) limiter_->Hit(key);
    });
  }
  Limiter& limiter() { return *limiter_; }
  const std::vector<std::string_view>& calls() const { return calls_; }

 private:
  const Limit limit_;
  const size_t n_;
  const bool zipf_;
  std::once_flag once_;
  std::unique_ptr<Keys> keys_;
  std::vector<std::string_view> calls_;
  std::unique_ptr<Limiter> limiter_;
};

// Each of several threads uses its own share of the keys, if there are enough keys.
template <typename Call>
void Cycle(benchmark::State& state, Subject& subject, Call call) {
  subject.Prepare();
  const std::vector<std::string_view>& calls = subject.calls();
  const bool shared = calls.size() < static_cast<size_t>(state.threads());
  const auto parts = shared ? size_t{1} : static_cast<size_t>(state.threads());
  const auto part = shared ? size_t{0} : static_cast<size_t>(state.thread_index());
  const std::string_view* const first = calls.data() + calls.size() * part / parts;
  const std::string_view* const last = calls.data() + calls.size() * (part + 1) / parts;
  const std::string_view* at = first;
  Limiter& limiter = subject.limiter();
  for (auto _ : state) {
    benchmark::DoNotOptimize(call(limiter, *at));
    if (++at == last) at = first;
  }
  state.SetItemsProcessed(state.iterations());
}

// The same with a limiter for each thread, which is the most that threads can reach on this
// machine.
template <typename Call>
void Apart(const std::string& name, std::shared_ptr<Subject> first, std::shared_ptr<Subject> second,
           Call call) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [=](benchmark::State& state) {
                                 Cycle(state, state.thread_index() == 0 ? *first : *second, call);
                               })
      ->UseRealTime()
      ->Threads(2);
}

template <typename Call>
void Keyed(const std::string& name, std::shared_ptr<Subject> subject, int threads, Call call) {
  auto* benchmark = benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { Cycle(state, *subject, call); });
  benchmark->UseRealTime();
  for (int n = 1; n <= threads; ++n) benchmark->Threads(n);
}

// Lambdas and not functions: the call by a pointer would be timed too.
constexpr auto Hit = [](Limiter& limiter, std::string_view key) {
  return limiter.Hit(key).allowed;
};
constexpr auto HitAndRead = [](Limiter& limiter, std::string_view key) {
  const Decision d = limiter.Hit(key);
  return d.remaining() + d.reset_after_ns;
};
constexpr auto Allow = [](Limiter& limiter, std::string_view key) { return limiter.Allow(key); };

void RegisterKeyed() {
  const Limit bucket = Ample(Algorithm::kTokenBucket);
  const auto subject = [&](const Limit& limit, size_t keys) {
    return std::make_shared<Subject>(limit, keys);
  };
  const auto one = subject(bucket, 1);
  const auto thousand = subject(bucket, 1'000);
  const auto million = subject(bucket, 1'000'000);
  Keyed("hit/1_key", one, 2, Hit);
  Keyed("hit/1k_keys", thousand, 2, Hit);
  Apart("hit/1k_keys/nothing_shared", subject(bucket, 1'000), subject(bucket, 1'000), Hit);
  Keyed("hit/1M_keys", million, 2, Hit);
  Keyed("hit/zipf_of_1M", std::make_shared<Subject>(bucket, 1'000'000, true), 2, Hit);
  Keyed("hit_and_read/1k_keys", thousand, 1, HitAndRead);
  Keyed("allow/1_key", one, 1, Allow);
  Keyed("allow/1k_keys", thousand, 2, Allow);
  Keyed("allow/1M_keys", million, 1, Allow);
  // An interval that is not a whole number of nanoseconds, and so takes two words.
  const Limit uneven = MakeLimit({.count = 999'999'937, .period_ns = kSecond});
  Keyed("hit/1k_keys/uneven", subject(uneven, 1'000), 1, Hit);
  const auto spent = subject(MakeLimit({.count = 1, .period_ns = 86'400 * kSecond}), 1'000);
  Keyed("refused/1k_keys", spent, 2, Hit);
  for (const auto& [name, algorithm] : kAlgorithms) {
    Keyed(std::string("hit/1k_keys/") + name, subject(Ample(algorithm), 1'000), 1, Hit);
  }
}

void HitManyOfAThousand(benchmark::State& state) {
  static const Keys* const keys = new Keys(1'000);
  const auto limiter = MakeLimiter(Ample(Algorithm::kTokenBucket));
  std::vector<std::string_view> list;
  for (size_t i = 0; i < keys->size(); ++i) list.push_back((*keys)[i]);
  const auto allowed = std::make_unique<bool[]>(list.size());
  for (auto _ : state) limiter->HitMany(list, {}, allowed.get());
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(list.size()));
}

// ---- Memory ----------------------------------------------------------------

int64_t ResidentBytes() {
  int64_t total = 0;
  int64_t resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  if (file == nullptr) return 0;
  if (std::fscanf(file, "%" SCNd64 " %" SCNd64, &total, &resident) != 2) resident = 0;
  std::fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

void BytesAKey(benchmark::State& state) {
  const int64_t keys = state.range(0);
  const int64_t before = ResidentBytes();
  const auto limiter = MakeLimiter(MakeLimit({.count = 100, .period_ns = 3'600 * kSecond}));
  for (auto _ : state) {
    for (int64_t i = 0; i < keys; ++i) {
      char key[32];
      const int length = std::snprintf(key, sizeof key, "user:%" PRId64, i);
      limiter->Hit(std::string_view(key, static_cast<size_t>(length)));
    }
  }
  state.counters["bytes_a_key"] =
      static_cast<double>(ResidentBytes() - before) / static_cast<double>(keys);
  state.counters["lost"] = static_cast<double>(limiter->stats().store.evicted_live);
  state.SetItemsProcessed(keys);
}

void RegisterAll() {
  for (const auto& [name, algorithm] : kAlgorithms) {
    const auto step = IsLog(algorithm) ? StepOfALog : StepAllowed;
    benchmark::RegisterBenchmark((std::string("step/") + name).c_str(), step, Ample(algorithm));
    if (IsLog(algorithm)) continue;
    benchmark::RegisterBenchmark(
        (std::string("step/refused/") + name).c_str(), StepRefused,
        MakeLimit({.count = 100, .period_ns = 60 * kSecond, .algorithm = algorithm}));
  }
  benchmark::RegisterBenchmark("clock/system", OurClock);
  benchmark::RegisterBenchmark("clock/kernel_monotonic", KernelClock);
  // Runs before the others, whose freed memory could be reused without being counted.
  benchmark::RegisterBenchmark("bytes_a_key", BytesAKey)
      ->Arg(10'000'000)
      ->Iterations(1)
      ->Unit(benchmark::kMillisecond);
  RegisterKeyed();
  benchmark::RegisterBenchmark("hit_many/1k_keys", HitManyOfAThousand);
}

}  // namespace
}  // namespace tidegate::bench

int main(int argc, char** argv) {
  tidegate::bench::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
