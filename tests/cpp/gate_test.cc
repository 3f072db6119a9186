#include "base/gate.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

// Two plain variables that are equal except while they are being changed.
struct Pair {
  int64_t a = 0;
  int64_t b = 0;
  void Rebuild() {
    ++a;
    ++b;
  }
};

// Runs passes, and sometimes Alone(), on each of `gates`. Returns how often a pass found a pair
// that was being changed.
int64_t Tear(std::vector<std::unique_ptr<Gate>>& gates, int threads, int rounds) {
  std::vector<Pair> pairs(gates.size());
  std::atomic<int64_t> torn{0};
  RunThreads(threads, [&](int thread) {
    for (int i = 0; i < rounds; ++i) {
      const size_t n = static_cast<size_t>(thread + i) % gates.size();
      if (i % 64 == thread % 64) {
        gates[n]->Alone([&] { pairs[n].Rebuild(); });
        continue;
      }
      Gate::Pass pass(*gates[n]);
      if (pairs[n].a != pairs[n].b) ++torn;
    }
  });
  return torn.load();
}

std::vector<std::unique_ptr<Gate>> Gates(int n) {
  std::vector<std::unique_ptr<Gate>> gates;
  for (int i = 0; i < n; ++i) gates.push_back(std::make_unique<Gate>());
  return gates;
}

TEST(GateTest, NoThreadIsInsideWhileAnotherIsAlone) {
  auto gates = Gates(1);
  EXPECT_EQ(Tear(gates, 8, 20'000 / kSanitizerShare), 0);
}

TEST(GateTest, GatesDoNotBlockEachOther) {
  auto gates = Gates(3);
  EXPECT_EQ(Tear(gates, 6, 20'000 / kSanitizerShare), 0);
}

// Some of the threads share a number.
TEST(GateTest, HoldsWithMoreThreadsThanThreadNumbers) {
  auto gates = Gates(2);
  EXPECT_EQ(Tear(gates, kThreads + 72, 2'000 / kSanitizerShare), 0);
}

// Threads that share a number cannot record which gate they are in. However many they are, and
// however busy one gate is, another gate can be closed.
TEST(GateTest, ClosesWhileAnotherGateIsInUse) {
  if (!kChildrenMayHaveThreads) GTEST_SKIP() << "children may not have threads here";
  EXPECT_EQ(InChild([] {
              Gate busy;
              Gate gate;
              std::atomic<bool> stop{false};
              // Nobody works before all have numbers: a thread that waits for one would hardly ever
              // have a turn beside so many that compute.
              std::latch numbered(kThreads + 72 + 1);
              std::vector<std::thread> threads;
              for (int t = 0; t < kThreads + 72; ++t) {
                threads.emplace_back([&] {
                  ThreadNumber();
                  numbered.arrive_and_wait();
                  for (int64_t work = 0; !stop;) {
                    Gate::Pass pass(busy);
                    for (int i = 0; i < 50; ++i) asm volatile("" : "+r"(work));
                  }
                });
              }
              numbered.arrive_and_wait();
              for (int i = 0; i < 100; ++i) gate.Alone([] {});
              stop = true;
              for (std::thread& thread : threads) thread.join();
              return true;
            }),
            "ok");
}

TEST(GateTest, AllThreadsSeeWhatOneDidAlone) {
  Gate gate;
  int64_t count = 0;
  constexpr int kRounds = 2'000 / kSanitizerShare;
  RunThreads(8, [&](int) {
    for (int i = 0; i < kRounds; ++i) gate.Alone([&] { ++count; });
  });
  Gate::Pass pass(gate);
  EXPECT_EQ(count, 8 * kRounds);
}

TEST(GateTest, APassCanBeLeftEarly) {
  Gate gate;
  Gate::Pass pass(gate);
  pass.Leave();
  bool ran = false;
  gate.Alone([&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(ThreadNumberTest, DiffersAmongLivingThreads) {
  constexpr int kN = 100;
  std::vector<int> numbers(kN);
  std::atomic<int> numbered{0};
  RunThreads(kN, [&](int i) {
    numbers[static_cast<size_t>(i)] = ThreadNumber();
    EXPECT_EQ(ThreadNumber(), numbers[static_cast<size_t>(i)]);
    ++numbered;
    EXPECT_TRUE(Eventually([&] { return numbered == kN; }));
  });
  EXPECT_EQ(std::set<int>(numbers.begin(), numbers.end()).size(), size_t{kN});
  for (const int number : numbers) {
    EXPECT_GT(number, 0);
    EXPECT_LT(number, kThreads);
  }
}

TEST(ThreadNumberTest, IsReusedAfterAThreadEndsAndSharedIfNoneIsFree) {
  for (int round = 0; round < 3; ++round) {
    constexpr int kN = kThreads + 20;
    std::vector<int> numbers(kN);
    std::atomic<int> numbered{0};
    RunThreads(kN, [&](int i) {
      numbers[static_cast<size_t>(i)] = ThreadNumber();
      ++numbered;
      EXPECT_TRUE(Eventually([&] { return numbered == kN; }));
    });
    // All numbers but one, which the thread that runs the tests may have.
    const std::set<int> taken(numbers.begin(), numbers.end());
    EXPECT_GE(taken.size(), size_t{kThreads - 1});
    EXPECT_EQ(taken.count(0), 1u);
  }
}

// Threads that do `work` again and again. All of them run once this is made, until it goes.
class Crowd {
 public:
  Crowd(int size, std::function<void(int)> work) {
    for (int t = 0; t < size; ++t) {
      threads_.emplace_back([this, work] {
        ++running_;
        for (int i = 0; !stop_; ++i) work(i);
      });
    }
    EXPECT_TRUE(Eventually([&] { return running_ == size; }));
  }
  ~Crowd() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> running_{0};
  std::vector<std::thread> threads_;
};

// No thread may be starting while the process forks: AddressSanitizer holds a lock of its own then,
// which stays locked in the child and stops the child's threads.
TEST(GateForkTest, AChildFindsTheGateOpen) {
  Gate gate;
  const Crowd crowd(4, [&](int i) {
    if (i % 32 == 0) {
      gate.Alone([] {});
    } else {
      Gate::Pass pass(gate);
    }
  });
  for (int i = 0; i < 200 / kSanitizerShare; ++i) {
    ASSERT_EQ(InChild([&] {
                for (int j = 0; j < 10; ++j) {
                  { Gate::Pass pass(gate); }
                  gate.Alone([] {});
                }
                return true;
              }),
              "ok")
        << "child " << i;
  }
}

// Threads that wait for the gate in the parent do not exist in the child. Nothing in the child may
// wait for them.
TEST(GateForkTest, ThreadsOfAChildDoNotWaitForThoseOfTheParent) {
  if (!kChildrenMayHaveThreads) GTEST_SKIP() << "children may not have threads here";
  Gate gate;
  // Asleep, so that the others always wait and take no processor from the child.
  const Crowd crowd(8, [&](int) {
    gate.Alone([] { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
  });
  int children = 0;
  for (; children < 100 / kSanitizerShare; ++children) {
    const std::string outcome = InChild([&] {
      std::vector<std::thread> mine;
      for (int t = 0; t < 4; ++t) {
        mine.emplace_back([&] {
          for (int j = 0; j < 200; ++j) gate.Alone([] { std::this_thread::yield(); });
        });
      }
      for (std::thread& thread : mine) thread.join();
      return true;
    });
    EXPECT_EQ(outcome, "ok") << "child " << children;
    if (outcome != "ok") break;
  }
}

TEST(GateForkTest, AChildOfAChildPassesToo) {
  Gate gate;
  EXPECT_EQ(InChild([&] {
              return InChild([&] {
                       { Gate::Pass pass(gate); }
                       bool ran = false;
                       gate.Alone([&] { ran = true; });
                       return ran;
                     }) == "ok";
            }),
            "ok");
}

}  // namespace
}  // namespace tidegate::testing
