#include "base/pages.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <latch>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

constexpr size_t kHugeSlices = Pages::kHugeFrom / Table::kSliceBytes;
constexpr int64_t kYear = int64_t{365} * 86'400 * 1'000'000'000;

// Work for threads that were not started. The test runs it when it wants to.
std::vector<std::function<void()>>& Waiting() {
  static auto* const waiting = new std::vector<std::function<void()>>();
  return *waiting;
}

bool Keep(std::function<void()> work) {
  Waiting().push_back(std::move(work));
  return true;
}

bool Refuse(std::function<void()> work) {
  Waiting().push_back(std::move(work));
  return false;
}

void RunWaiting() {
  for (const auto& work : std::exchange(Waiting(), {})) work();
}

class PagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if !defined(MADV_HUGEPAGE)
    GTEST_SKIP() << "no huge pages here";
#endif
  }
  ~PagesTest() override {
    Pages::SetRunner(threads_);
    Waiting().clear();
  }
  static bool IsMapped(void* memory) {
    unsigned char resident = 0;
    return mincore(memory, 4096, &resident) == 0 || errno != ENOMEM;
  }
  static bool IsResident(void* memory) {
    unsigned char resident = 0;
    return mincore(memory, 4096, &resident) == 0 && (resident & 1) != 0;
  }

  // Whether the system may use a huge page for this memory.
  static bool MayBeHuge(void* memory) {
    std::ifstream maps("/proc/self/smaps");
    bool here = false;
    for (std::string line; std::getline(maps, line);) {
      unsigned long long begin = 0;
      unsigned long long end = 0;
      if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) {
        const auto at = reinterpret_cast<uintptr_t>(memory);
        here = begin <= at && at < end;
      } else if (here && line.starts_with("VmFlags:")) {
        return line.find(" hg") != std::string::npos;
      }
    }
    ADD_FAILURE() << "this memory is not mapped";
    return false;
  }

  const Pages::Runner threads_ = Pages::SetRunner(Keep);
};

TEST_F(PagesTest, OnlyPagesThatTheThreadTouchesAreHuge) {
#if !defined(__linux__)
  GTEST_SKIP() << "no list of pages here";
#endif
  Pages pages(2 * kHugeSlices);
  constexpr size_t kSlicesOfAPage = Pages::kHugePage / Table::kSliceBytes;
  // A caller that is faster than the thread must not wait for 2 MB of zeros.
  pages.table().slice(kSlicesOfAPage)[0].w1.store(7);
  EXPECT_FALSE(MayBeHuge(pages.table().slice(0)));
  ASSERT_TRUE(pages.IsWorthWaiting(kSlicesOfAPage));
  RunWaiting();
  EXPECT_TRUE(MayBeHuge(pages.table().slice(0)));
  EXPECT_EQ(pages.table().slice(kSlicesOfAPage)[0].w1.load(), 7U);
  EXPECT_FALSE(MayBeHuge(pages.table().slice(2 * kHugeSlices - 1)));
}

TEST_F(PagesTest, SmallTablesHaveNoThread) {
  Pages pages(kHugeSlices - 1);
  ASSERT_TRUE(pages.ok());
  EXPECT_FALSE(pages.IsWorthWaiting(1));
  EXPECT_TRUE(Waiting().empty());
}

TEST_F(PagesTest, AFewPagesAreReadyAtATime) {
  Pages pages(4 * kHugeSlices + 3);
  size_t errands = 0;
  for (size_t slice = 0; slice < pages.table().slices(); ++slice) {
    if (pages.IsWorthWaiting(slice + 1)) {
      EXPECT_EQ(Waiting().size(), 1U);
      EXPECT_TRUE(pages.IsWorthWaiting(slice + 1)) << "the second call waits too";
      EXPECT_FALSE(IsResident(pages.table().slice(slice)));
    }
    EXPECT_LE(Waiting().size(), 1U);
    errands += Waiting().size();
    RunWaiting();
    EXPECT_FALSE(pages.IsWorthWaiting(slice + 1));
    EXPECT_TRUE(IsResident(pages.table().slice(slice)));
    const size_t ahead = slice + 6 * Pages::kHugePage / Table::kSliceBytes;
    if (ahead < pages.table().slices()) {
      EXPECT_FALSE(IsResident(pages.table().slice(ahead)));
    }
  }
  EXPECT_GT(errands, 16U);
  for (size_t i = 0; i < pages.table().cells(); i += 127) {
    ASSERT_EQ(pages.table().slice(0)[i].w0.load(), 0U);
  }
}

TEST_F(PagesTest, NobodyWaitsForAThreadThatCannotStart) {
  Pages::SetRunner(Refuse);
  Pages pages(kHugeSlices);
  EXPECT_FALSE(pages.IsWorthWaiting(1));
  EXPECT_FALSE(pages.IsWorthWaiting(kHugeSlices));
  EXPECT_EQ(Waiting().size(), 2U) << "each call tries to start a thread";
}

TEST_F(PagesTest, TheLastUserUnmaps) {
  void* memory = nullptr;
  {
    Pages pages(kHugeSlices);
    memory = pages.table().slice(0);
    ASSERT_TRUE(pages.IsWorthWaiting(1));
  }
  EXPECT_TRUE(IsMapped(memory));
  RunWaiting();
  EXPECT_FALSE(IsMapped(memory));
  {
    Pages pages(kHugeSlices);
    memory = pages.table().slice(0);
    ASSERT_TRUE(pages.IsWorthWaiting(1));
    RunWaiting();
    EXPECT_TRUE(IsMapped(memory));
  }
  EXPECT_FALSE(IsMapped(memory));
}

TEST_F(PagesTest, AChildOfForkHasNoPagesThread) {
  Pages pages(kHugeSlices);
  ASSERT_TRUE(pages.IsWorthWaiting(1));
  EXPECT_EQ(InChild([&] {
              void* const memory = pages.table().slice(0);
              Waiting().clear();
              if (!pages.IsWorthWaiting(1) || Waiting().size() != 1) return false;
              RunWaiting();
              if (pages.IsWorthWaiting(1)) return false;
              pages = Pages();
              return !IsMapped(memory);
            }),
            "ok");
  EXPECT_EQ(InChild([&] {
              void* const memory = pages.table().slice(0);
              pages = Pages();
              return !IsMapped(memory);
            }),
            "ok");
  EXPECT_TRUE(pages.IsWorthWaiting(1));
}

TEST_F(PagesTest, ItsThreadsBlockSignals) {
  sigset_t blocked;
  sigemptyset(&blocked);
  std::latch done(1);
  ASSERT_TRUE(threads_([&] {
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    done.count_down();
  }));
  done.wait();
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGPROF}) {
    EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
  }
  sigset_t mine;
  pthread_sigmask(SIG_BLOCK, nullptr, &mine);
  EXPECT_EQ(sigismember(&mine, SIGINT), 0);
}

// A store whose table is about to be replaced by one of huge pages.
class GrowthTest : public PagesTest {
 protected:
  static constexpr int64_t kMany = 1'000'000;

  // Hits each of these keys once, and returns how many were allowed. The limit is one hit.
  int64_t Admit(int64_t from, int64_t to) {
    constexpr int64_t kBatch = 256;
    std::string names[kBatch];
    Charge charges[kBatch];
    Verdict verdicts[kBatch];
    int64_t admitted = 0;
    for (int64_t start = from; start < to; start += kBatch) {
      const auto n = static_cast<size_t>(std::min(kBatch, to - start));
      for (size_t i = 0; i < n; ++i) {
        names[i] = std::to_string(start + static_cast<int64_t>(i));
        charges[i] = {names[i], &limit_, 1};
      }
      store_->HitMany({charges, n}, {kStart, /*confirmed=*/true}, verdicts);
      for (size_t i = 0; i < n; ++i) admitted += verdicts[i] == Verdict::kAllowed;
    }
    return admitted;
  }
  // Adds keys until the move begins, and returns their number.
  int64_t FillUntilItMoves() {
    int64_t keys = 0;
    while (Waiting().empty() && keys < kMany) {
      EXPECT_EQ(Admit(keys, keys + 256), 256);
      keys += 256;
    }
    return keys;
  }
  void ExpectAllKnown(int64_t keys) {
    EXPECT_EQ(Admit(0, keys), 0);
    EXPECT_EQ(store_->stats().keys, keys);
    EXPECT_EQ(store_->stats().evicted_live, 0);
  }

  const std::shared_ptr<MemoryStore> store_ = MakeStore(4 * kMany);
  const BoundLimit limit_ = store_->Bind(MakeLimit(1, kYear), "test");
};

TEST_F(GrowthTest, AMoveWaitsUntilItsPagesAreReady) {
  const int64_t begun = FillUntilItMoves();
  ASSERT_LT(begun, kMany);
  const int64_t later = begun + begun / 50;  // a load of 0.867
  EXPECT_EQ(Admit(begun, later), later - begun);
  EXPECT_EQ(Waiting().size(), 1U);
  RunWaiting();
  // It asks for more pages when it has used some of these.
  EXPECT_EQ(Admit(later, later + 64 * 128), 64 * 128);
  EXPECT_EQ(Waiting().size(), 1U);
  ExpectAllKnown(later + 64 * 128);
}

TEST_F(GrowthTest, ATooFullTableMovesWithoutWaiting) {
  const int64_t begun = FillUntilItMoves();
  ASSERT_LT(begun, kMany);
  // More keys than the old table has cells.
  const int64_t keys = begun * 120 / 100;
  EXPECT_EQ(Admit(begun, keys), keys - begun);
  EXPECT_EQ(Waiting().size(), 1U) << "its thread has not begun";
  ExpectAllKnown(keys);
}

TEST_F(GrowthTest, ATableMovesAtOnceWithoutThreads) {
  Pages::SetRunner(Refuse);
  const int64_t begun = FillUntilItMoves();
  ASSERT_LT(begun, kMany);
  Waiting().clear();
  EXPECT_EQ(Admit(begun, kMany), kMany - begun);
  ExpectAllKnown(kMany);
}

TEST_F(GrowthTest, AfterAForkDuringAMoveBothProcessesFinishIt) {
  const int64_t begun = FillUntilItMoves();
  ASSERT_LT(begun, kMany);
  EXPECT_EQ(InChild([&] {
              Pages::SetRunner(kChildrenMayHaveThreads ? threads_ : Refuse);
              return Admit(begun, kMany) == kMany - begun && Admit(0, kMany) == 0 &&
                     store_->stats().evicted_live == 0;
            }),
            "ok");
  RunWaiting();
  Pages::SetRunner(threads_);
  EXPECT_EQ(Admit(begun, kMany), kMany - begun);
  ExpectAllKnown(kMany);
}

TEST_F(GrowthTest, CallersAndThePagesThreadRunTogether) {
  Pages::SetRunner(threads_);
  constexpr int kThreadsHere = 4;
  std::atomic<int64_t> admitted{0};
  RunThreads(kThreadsHere, [&](int thread) {
    for (int64_t start = thread * 1'024; start < kMany; start += kThreadsHere * 1'024) {
      admitted += Admit(start, std::min(kMany, start + 2 * 1'024));
    }
  });
  EXPECT_EQ(admitted.load(), kMany);
  ExpectAllKnown(kMany);
}

}  // namespace
}  // namespace tidegate::testing
