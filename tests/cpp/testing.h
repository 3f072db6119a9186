// Helpers that the tests share.
#ifndef TIDEGATE_TESTS_CPP_TESTING_H_
#define TIDEGATE_TESTS_CPP_TESTING_H_

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <latch>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "tidegate/limit.h"
#include "tidegate/limiter.h"
#include "tidegate/memory_store.h"

namespace tidegate::testing {

inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;
// Well after the epoch, and not a multiple of any period that tests use.
inline constexpr int64_t kStart = 1'700'000'000'123'456'789;

inline constexpr Algorithm kAllAlgorithms[] = {
    Algorithm::kTokenBucket,   Algorithm::kLeakyBucket, Algorithm::kFixedWindow,
    Algorithm::kSlidingWindow, Algorithm::kSlidingLog,  Algorithm::kConcurrency,
};

// The names of tests in suites that are instantiated for algorithms.
inline std::string NameOf(const ::testing::TestParamInfo<Algorithm>& info) {
  std::string name(AlgorithmName(info.param));
  std::erase(name, '-');
  return name;
}

inline Limit MakeLimit(LimitSpec spec) {
  absl::StatusOr<Limit> limit = Limit::Create(std::move(spec));
  if (!limit.ok()) {
    ADD_FAILURE() << limit.status();
    std::abort();
  }
  return *std::move(limit);
}

inline Limit MakeLimit(int64_t count, int64_t period_ns,
                       Algorithm algorithm = Algorithm::kTokenBucket) {
  return MakeLimit(LimitSpec{.count = count, .period_ns = period_ns, .algorithm = algorithm});
}

inline std::shared_ptr<MemoryStore> MakeStore(int64_t capacity = MemoryOptions::kDefaultCapacity) {
  auto store = MemoryStore::Create({.capacity = capacity});
  if (!store.ok()) {
    ADD_FAILURE() << store.status();
    std::abort();
  }
  return *std::move(store);
}

// A limiter on a clock that the test moves.
struct Fixture {
  explicit Fixture(std::vector<Limit> limits, std::shared_ptr<Store> the_store = MakeStore(),
                   int64_t start_ns = kStart)
      : store(std::move(the_store)), clock(std::make_shared<ManualClock>(start_ns)) {
    auto made = Limiter::Create(std::move(limits), store, clock);
    if (!made.ok()) {
      ADD_FAILURE() << made.status();
      std::abort();
    }
    limiter = *std::move(made);
  }
  explicit Fixture(const Limit& limit) : Fixture(std::vector<Limit>{limit}) {}

  std::shared_ptr<Store> store;
  std::shared_ptr<ManualClock> clock;
  std::unique_ptr<Limiter> limiter;
};

// Runs work(0) to work(n - 1), each on a thread of its own. All threads start before any work
// begins.
inline void RunThreads(int n, absl::FunctionRef<void(int)> work) {
  std::latch ready(n);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    threads.emplace_back([&ready, work, i] {
      ready.arrive_and_wait();
      work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Stress tests divide their rounds by this, because sanitizers take ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSanitizerShare = 8;
#else
inline constexpr int kSanitizerShare = 1;
#endif

// Waits until other threads or processes make `condition` true. False if it is still false after a
// minute (longer under the sanitizers).
[[nodiscard]] inline bool Eventually(absl::FunctionRef<bool()> condition) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::minutes(1) * kSanitizerShare;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

// Runs `work` in a child of fork(). Returns "ok", "failed" if it returned false, "hung" if it had
// to be killed, else the signal that ended it.
inline std::string InChild(absl::FunctionRef<bool()> work) {
  constexpr unsigned kHungAfterSeconds = 20 * kSanitizerShare;
  const pid_t child = fork();
  if (child == 0) {
    alarm(kHungAfterSeconds);
    _exit(work() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return "no child";
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return signal == SIGALRM ? "hung" : "signal " + std::to_string(signal);
  }
  return WEXITSTATUS(status) == 0 ? "ok" : "failed";
}

// ThreadSanitizer ends the child of a process with threads as soon as the child starts a thread.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kChildrenMayHaveThreads = false;
#else
inline constexpr bool kChildrenMayHaveThreads = true;
#endif

}  // namespace tidegate::testing

#endif  // TIDEGATE_TESTS_CPP_TESTING_H_
