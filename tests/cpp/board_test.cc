// The breaker and the deny cache of a Redis, which the processes of a host share.
#include "redis/health/board.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "redis/health/breaker.h"
#include "redis/health/deny_cache.h"
#include "testing.h"

namespace tidegate::redis {
namespace {

using ::tidegate::testing::kMs;
using ::tidegate::testing::kSecond;
using ::tidegate::testing::kStart;
using ::tidegate::testing::RunThreads;

class BreakerTest : public ::testing::Test {
 protected:
  // A view of its own, as each process has.
  Breaker View() { return Breaker(board_->breakers[0], 5, absl::Seconds(30), kTimeout); }
  static void Break(Breaker& breaker, int64_t now_ns) {
    for (int i = 0; i < 5; ++i) breaker.Failed(now_ns);
  }

  static constexpr absl::Duration kTimeout = absl::Milliseconds(50);
  // Longer than the breaker stays open, which is up to a tenth more, with instants rounded.
  static constexpr int64_t kOver = 33 * kSecond + kMs;
  std::unique_ptr<Board> board_ = std::make_unique<Board>();
};

TEST_F(BreakerTest, AFailureSeenByOneProcessOpensItForAllAndEachLearnsOnce) {
  Breaker one = View();
  Breaker other = View();
  for (int i = 0; i < 4; ++i) one.Failed(kStart + i);
  EXPECT_TRUE(one.IsQuiet());
  EXPECT_TRUE(other.IsClosed());
  EXPECT_EQ(other.Notice(), std::nullopt);
  other.Failed(kStart + 4);  // a row counts the failures of all processes
  for (Breaker* breaker : {&one, &other}) {
    EXPECT_FALSE(breaker->IsQuiet());
    EXPECT_FALSE(breaker->IsClosed());
    EXPECT_EQ(breaker->opened(), 1);
    EXPECT_EQ(breaker->Notice(), true);
    EXPECT_EQ(breaker->Notice(), std::nullopt);
    EXPECT_EQ(breaker->opened(), 1);
    EXPECT_GT(breaker->OpenFor(kStart), 26 * kSecond);
    EXPECT_LT(breaker->OpenFor(kStart), kOver);
  }
  Breaker late = View();
  EXPECT_EQ(late.Notice(), true);
  EXPECT_EQ(late.opened(), 0);
  other.Succeeded(kStart + kOver);
  for (Breaker* breaker : {&one, &other, &late}) {
    EXPECT_TRUE(breaker->IsClosed());
    EXPECT_EQ(breaker->Notice(), false);
    EXPECT_EQ(breaker->Notice(), std::nullopt);
    EXPECT_TRUE(breaker->IsQuiet());
  }
}

TEST_F(BreakerTest, AProcessThatMissedChangesLearnsOnlyTheLast) {
  Breaker one = View();
  Breaker sleeper = View();
  for (int i = 0; i < 3; ++i) {
    Break(one, kStart + i * kSecond);
    one.Succeeded(kStart + i * kSecond);
  }
  EXPECT_EQ(sleeper.Notice(), std::nullopt);
  EXPECT_EQ(sleeper.opened(), 3);
  EXPECT_TRUE(sleeper.IsQuiet());
}

TEST_F(BreakerTest, ThereIsOneProbeAndAnotherIfItNeverReports) {
  Breaker breaker = View();
  Break(breaker, kStart);
  EXPECT_FALSE(View().ProbeIsDue(kStart + 26 * kSecond));
  int64_t now = kStart + kOver;
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> probes{0};
    RunThreads(4, [&](int) { probes += View().ProbeIsDue(now); });
    ASSERT_EQ(probes, 1);
    EXPECT_FALSE(View().ProbeIsDue(now + Breaker::kLeastProbeNs - kMs));
    now += Breaker::kLeastProbeNs + kMs;
  }
  View().Failed(now);  // a probe that failed
  EXPECT_FALSE(View().ProbeIsDue(now + 26 * kSecond));
  EXPECT_TRUE(View().ProbeIsDue(now + kOver));
}

TEST_F(BreakerTest, ASignOfLifeBringsTheProbeForward) {
  Breaker breaker = View();
  EXPECT_FALSE(breaker.ProbeEarly(kStart)) << "while it is closed";
  Break(breaker, kStart);
  EXPECT_TRUE(breaker.ProbeEarly(kStart + kSecond));
  EXPECT_FALSE(breaker.IsClosed());
  // It got lost: another one is due soon.
  EXPECT_FALSE(View().ProbeIsDue(kStart + kSecond + kMs));
  EXPECT_TRUE(View().ProbeIsDue(kStart + kSecond + Breaker::kLeastProbeNs + kMs));
  breaker.Succeeded(kStart + 3 * kSecond);
  EXPECT_TRUE(breaker.IsClosed());
}

TEST_F(BreakerTest, OpensAfterARowOfFailuresOrAFailedHalf) {
  Breaker breaker = View();
  for (int i = 0; i < 4; ++i) breaker.Failed(kStart);
  breaker.Succeeded(kStart);
  breaker.Failed(kStart);
  EXPECT_TRUE(breaker.IsClosed());
  // Failures over more than ten seconds are not a row.
  int64_t now = kStart + 60 * kSecond;
  for (int i = 0; i < 10; ++i) breaker.Failed(now += 3 * kSecond);
  EXPECT_TRUE(breaker.IsClosed());
  now += 60 * kSecond;
  for (int i = 0; i < 9; ++i) {
    breaker.Failed(now);
    breaker.Succeeded(now);
  }
  breaker.Failed(now);
  EXPECT_TRUE(breaker.IsClosed()) << "after fewer than twenty calls";
  breaker.Failed(now);
  EXPECT_FALSE(breaker.IsClosed());
}

TEST_F(BreakerTest, CountsOfAWindowDoNotOverflow) {
  Breaker breaker = View();
  for (int i = 0; i < 100'000; ++i) breaker.Succeeded(kStart);
  for (int i = 0; i < 4; ++i) breaker.Failed(kStart);
  EXPECT_TRUE(breaker.IsClosed());
}

TEST_F(BreakerTest, AllThreadsSeeTheSameState) {
  std::vector<std::unique_ptr<Breaker>> views;
  for (int i = 0; i < 4; ++i) views.emplace_back(new Breaker(View()));
  std::array<std::atomic<int>, 2> told{};
  RunThreads(8, [&](int thread) {
    Breaker& mine = *views[static_cast<size_t>(thread) % views.size()];
    for (int i = 0; i < 500; ++i) {
      const int64_t now = kStart + i * kMs;
      if ((i / 50) % 2 == 0) {
        mine.Failed(now);
      } else {
        mine.Succeeded(now);
      }
      (void)mine.ProbeIsDue(now);
      if (const auto open = mine.Notice(); open.has_value()) ++told[*open ? 1 : 0];
    }
  });
  for (const auto& view : views) {
    view->Succeeded(kStart + kSecond);
    if (view->Notice() == false) ++told[0];
    EXPECT_TRUE(view->IsQuiet());
    EXPECT_EQ(view->opened(), views[0]->opened());
  }
  EXPECT_GT(told[1], 0);
  EXPECT_EQ(told[0], told[1]);
}

TEST_F(BreakerTest, ADamagedBoardNeverStopsCallsForGood) {
  std::mt19937_64 dice(5);
  BreakerState& state = board_->breakers[0];
  for (int round = 0; round < 20'000; ++round) {
    Breaker breaker = View();
    for (auto* word : {&state.gate, &state.row, &state.window}) {
      if (dice() % 2 == 0) *word = dice() >> (dice() % 64);
      if (dice() % 8 == 0) *word = ~uint64_t{0} << (dice() % 64);
    }
    const int64_t now = kStart + round * kSecond;
    (void)breaker.Notice();
    const int64_t open_for = breaker.OpenFor(now);
    ASSERT_LE(open_for, kOver + 5 * kSecond);
    // Whatever the words contain, calls reach Redis again in time.
    if (!breaker.IsClosed()) {
      ASSERT_TRUE(breaker.ProbeIsDue(now) || breaker.ProbeIsDue(now + open_for + kMs));
    }
    if (round % 2 == 0) breaker.Failed(now);
    breaker.Succeeded(now);
    (void)breaker.Notice();
    ASSERT_TRUE(breaker.IsClosed());
    ASSERT_TRUE(breaker.IsQuiet());
    Break(breaker, now);
    ASSERT_FALSE(breaker.IsClosed());
  }
}

class DenyCacheTest : public ::testing::Test {
 protected:
  DenyCache View(int64_t longest_ns = kSecond) { return DenyCache(*board_, longest_ns); }
  void Put(const Fingerprint& key, const CellState& state, int64_t at_ns = kStart) {
    DenyCache cache = View();
    cache.Put(key, cache.Version(key), state, 10 * kSecond, {at_ns, at_ns + 5, at_ns + 3});
  }

  static constexpr Fingerprint kKey{0x1234'5678, 0x9abc'def0};
  std::unique_ptr<Board> board_ = std::make_unique<Board>();
};

TEST_F(DenyCacheTest, ARefusalSeenByOneProcessIsRepeatedByAll) {
  EXPECT_FALSE(View().Find(kKey, kStart).has_value());
  EXPECT_FALSE(View().Find({}, 0).has_value());
  Put(kKey, {7, 8});
  const auto found = View().Find(kKey, kStart + 100);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->state, (CellState{7, 8}));
  EXPECT_EQ(found->now_ns, kStart + 98);
  EXPECT_FALSE(View().Find(kKey, kStart - 1).has_value());
  EXPECT_FALSE(View().Find({kKey.lo, kKey.hi + 1}, kStart).has_value());
  EXPECT_FALSE(View().Find({kKey.lo + Board::kPlaces, kKey.hi}, kStart).has_value());
  EXPECT_TRUE(View().Find(kKey, kStart + kSecond - 1).has_value());
  EXPECT_FALSE(View().Find(kKey, kStart + kSecond).has_value());
}

TEST_F(DenyCacheTest, AShorterTimeToRememberIsKept) {
  Put(kKey, {7, 8});
  EXPECT_TRUE(View(100).Find(kKey, kStart + 99).has_value());
  EXPECT_FALSE(View(100).Find(kKey, kStart + 100).has_value());
}

TEST_F(DenyCacheTest, AForgottenRefusalStaysForgotten) {
  DenyCache one = View();
  DenyCache other = View();
  const uint64_t asked = one.Version(kKey);
  Put(kKey, {7, 8});
  other.Outdate({kKey.lo + Board::kPlaces, kKey.hi});
  EXPECT_TRUE(one.Find(kKey, kStart).has_value());
  other.Outdate(kKey);
  EXPECT_FALSE(one.Find(kKey, kStart).has_value());
  one.Put(kKey, asked, {7, 8}, kSecond, {kStart, kStart, kStart});
  EXPECT_FALSE(one.Find(kKey, kStart).has_value());
  const uint64_t again = one.Version(kKey);
  other.Forget(kKey);
  one.Put(kKey, again, {7, 8}, kSecond, {kStart, kStart, kStart});
  EXPECT_FALSE(one.Find(kKey, kStart).has_value());
}

// A writer may be killed, or overtaken by another, at any instruction. Whatever mix of two writes
// this leaves is read as one of them or as nothing, and the place can be written again.
TEST_F(DenyCacheTest, AMixOfTwoWritesIsReadAsOneOfThemOrAsNothing) {
  using Words = std::array<uint64_t, 8>;
  DenyPlace& place = board_->denied[kKey.lo % Board::kPlaces];
  const auto words = [&] {
    Words w;
    std::memcpy(w.data(), static_cast<const void*>(&place), sizeof w);
    return w;
  };
  Put(kKey, {7, 8});
  const Words before = words();
  Put(kKey, {9, 10}, kStart + 1);
  const Words after = words();
  int found = 0;
  for (unsigned mix = 0; mix < 256; ++mix) {
    Words mixed;
    for (size_t i = 0; i < mixed.size(); ++i) mixed[i] = (mix >> i & 1) != 0 ? after[i] : before[i];
    std::memcpy(static_cast<void*>(&place), mixed.data(), sizeof mixed);
    const auto refusal = View().Find(kKey, kStart + 1);
    if (refusal.has_value()) {
      ++found;
      EXPECT_TRUE(mixed == before || refusal->state == (CellState{9, 10}));
    }
    Put(kKey, {11, 12});
    ASSERT_TRUE(View().Find(kKey, kStart).has_value()) << mix;
  }
  // `lo` and `ahead_ns` are the same in both.
  EXPECT_EQ(found, 2 * 4);
}

TEST_F(DenyCacheTest, EveryFlippedBitIsNoticed) {
  Put(kKey, {7, 8});
  auto* const bytes = reinterpret_cast<unsigned char*>(&board_->denied[kKey.lo % Board::kPlaces]);
  for (size_t bit = 0; bit < 8 * sizeof(DenyPlace); ++bit) {
    const auto flip = static_cast<unsigned char>(1u << (bit % 8));
    bytes[bit / 8] ^= flip;
    EXPECT_FALSE(View().Find(kKey, kStart).has_value()) << bit;
    bytes[bit / 8] ^= flip;
  }
  EXPECT_TRUE(View().Find(kKey, kStart).has_value());
}

TEST_F(DenyCacheTest, ThreadsReadOnlyEntriesThatWereWritten) {
  std::atomic<int64_t> found{0};
  RunThreads(6, [&](int thread) {
    DenyCache cache = View();
    for (uint64_t i = 1; i <= 3000; ++i) {
      // Both keys share one place.
      const Fingerprint key{kKey.lo + (i % 2) * Board::kPlaces, kKey.hi};
      const uint64_t value = i * 8 + static_cast<uint64_t>(thread);
      cache.Put(key, cache.Version(key), {value, ~value ^ key.lo}, kSecond,
                {kStart, kStart, kStart});
      if (const auto refusal = cache.Find(key, kStart); refusal.has_value()) {
        ++found;
        ASSERT_EQ(refusal->state.w1, ~refusal->state.w0 ^ key.lo);
      }
      if (i % 64 == 0) cache.Forget(key);
    }
  });
  EXPECT_GT(found, 0);
}

class BoardViewTest : public ::testing::Test {
 protected:
  BoardViewTest() {
    std::string name = (std::filesystem::temp_directory_path() / "tidegate-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~BoardViewTest() override { std::filesystem::remove_all(directory_); }

  // Options with a mapping of their own, as another process has.
  RedisOptions Options() {
    auto store = ShmStore::Open(directory_ + "/table", {.capacity = 1000});
    EXPECT_TRUE(store.ok()) << store.status();
    RedisOptions options;
    options.fallback = *std::move(store);
    return options;
  }

  std::string directory_;
};

TEST_F(BoardViewTest, StoresOfTheSameRedisShareARow) {
  const RedisOptions mine = Options();
  const RedisOptions others = Options();
  const BoardView one(mine);
  const BoardView other(others);
  EXPECT_EQ(one.own, nullptr);
  one.breaker->gate = 12345;
  EXPECT_EQ(other.breaker->gate, 12345u);
  one.board->denied[7].w0 = 99;
  EXPECT_EQ(other.board->denied[7].w0, 99u);
  EXPECT_EQ(one.hasher.Hash("k"), other.hasher.Hash("k"));
}

TEST_F(BoardViewTest, AnotherServerLoginOrDeadlineHasItsOwnRow) {
  RedisOptions options = Options();
  const BoardView first(options);
  std::vector<BreakerState*> seen{first.breaker};
  std::vector<Fingerprint> keys{first.hasher.Hash("k")};
  const auto expect_another = [&] {
    const BoardView view(options);
    EXPECT_EQ(view.own, nullptr);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), view.breaker), 0);
    EXPECT_EQ(std::count(keys.begin(), keys.end(), view.hasher.Hash("k")), 0);
    seen.push_back(view.breaker);
    keys.push_back(view.hasher.Hash("k"));
  };
  options.port = 6380;
  expect_another();
  options.password = "secret";
  expect_another();
  options.database = 1;
  expect_another();
  options.timeout = absl::Seconds(1);
  expect_another();
  options.tls.emplace();
  expect_another();
  options.topology = Topology::kCluster;
  options.nodes = {{"a", 1}, {"b", 2}};
  expect_another();
}

TEST_F(BoardViewTest, AStoreHasItsOwnRowIfTheBoardIsFull) {
  RedisOptions options = Options();
  for (int i = 0; i < static_cast<int>(Board::kServers); ++i) {
    options.port = 7000 + i;
    EXPECT_EQ(BoardView(options).own, nullptr);
  }
  options.port = 6999;
  EXPECT_NE(BoardView(options).own, nullptr);
  options.port = 7010;
  EXPECT_EQ(BoardView(options).own, nullptr);
}

TEST_F(BoardViewTest, AStoreHasItsOwnRowWithoutSharedMemory) {
  RedisOptions options;
  options.fallback = ::tidegate::testing::MakeStore();
  const BoardView view(options);
  ASSERT_NE(view.own, nullptr);
  EXPECT_EQ(view.board, view.own.get());
}

}  // namespace
}  // namespace tidegate::redis
