#include "tidegate/memory_store.h"
#include "table/table.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHour = 3'600 * kSecond;

std::string KeyOf(int64_t i) { return "key:" + std::to_string(i); }

// Calls a store with one limit.
class Caller {
 public:
  Caller(std::shared_ptr<Store> store, const Limit& limit)
      : store_(std::move(store)), limit_(store_->Bind(limit, "test")) {}

  Decision Hit(std::string_view key, int64_t now_ns, int64_t cost = 1) {
    return store_->Hit({key, &limit_, cost}, {now_ns, /*confirmed=*/true});
  }
  Decision Peek(std::string_view key, int64_t now_ns, int64_t cost = 1) {
    return store_->Peek({key, &limit_, cost}, {now_ns, /*confirmed=*/true});
  }
  int64_t Refund(std::string_view key, const Moment& moment, int64_t cost = 1) {
    return store_->Refund({key, &limit_, cost}, moment);
  }
  void Reset(std::string_view key) { store_->Reset({key, &limit_, 1}, {kStart}); }
  void HitMany(const std::vector<Charge>& charges, const Moment& moment,
               std::vector<Verdict>* verdicts) {
    verdicts->resize(charges.size());
    store_->HitMany(charges, moment, verdicts->data());
  }
  // Charges until a call is refused, and returns the number of allowed calls.
  int64_t Drain(std::string_view key, int64_t now_ns) {
    int64_t admitted = 0;
    while (Hit(key, now_ns).allowed) ++admitted;
    return admitted;
  }

  const BoundLimit& limit() const { return limit_; }
  StoreStats stats() const { return store_->stats(); }

 private:
  std::shared_ptr<Store> store_;
  BoundLimit limit_;
};

TEST(MemoryStoreTest, CapacityIsChecked) {
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, MemoryOptions::kMaxCapacity + 1}) {
    EXPECT_THAT(std::string(MemoryStore::Create({.capacity = bad}).status().message()),
                HasSubstr(std::to_string(bad)));
  }
  EXPECT_TRUE(MemoryStore::Create({.capacity = 1}).ok());
  EXPECT_TRUE(MemoryStore::Create({.capacity = MemoryOptions::kMaxCapacity}).ok());
}

TEST(MemoryStoreTest, KeysAreAnyBytesOfAnyLength) {
  Caller caller(MakeStore(), MakeLimit(1, kHour));
  const std::vector<std::string> keys = {"",
                                         std::string(1, '\0'),
                                         std::string(2, '\0'),
                                         "a",
                                         std::string("a\0b", 3),
                                         std::string("a\0c", 3),
                                         "\xed\xa0\x80",
                                         std::string(1 << 20, 'x'),
                                         std::string((1 << 20) + 1, 'x')};
  for (const std::string& key : keys) EXPECT_EQ(caller.Drain(key, kStart), 1);
  EXPECT_EQ(caller.stats().keys, static_cast<int64_t>(keys.size()));
}

TEST(MemoryStoreTest, LimitsAndScopesCountApart) {
  const auto store = MakeStore();
  const Limit limit = MakeLimit(1, kHour);
  const BoundLimit one = store->Bind(limit, "one");
  const BoundLimit two = store->Bind(limit, "two");
  const BoundLimit other = store->Bind(MakeLimit(1, kHour, Algorithm::kFixedWindow), "one");
  for (const BoundLimit* bound : {&one, &two, &other}) {
    EXPECT_TRUE(store->Hit({"k", bound, 1}, {kStart}).allowed);
    EXPECT_FALSE(store->Hit({"k", bound, 1}, {kStart}).allowed);
  }
  const BoundLimit again = store->Bind(limit, "one");
  EXPECT_FALSE(store->Hit({"k", &again, 1}, {kStart}).allowed);
}

TEST(MemoryStoreTest, TwoStoresHashDifferently) {
  const Limit limit = MakeLimit(1, kHour);
  EXPECT_NE(MakeStore()->Bind(limit, "s").tag, MakeStore()->Bind(limit, "s").tag);
}

class MemoryStoreOfEachAlgorithm : public ::testing::TestWithParam<Algorithm> {};

INSTANTIATE_TEST_SUITE_P(Algorithms, MemoryStoreOfEachAlgorithm,
                         ::testing::ValuesIn(kAllAlgorithms), NameOf);

TEST_P(MemoryStoreOfEachAlgorithm, ThreadsOnOneKeyAdmitExactlyTheLimit) {
  constexpr int64_t kCount = 20'000 / kSanitizerShare;
  Caller caller(MakeStore(), MakeLimit(kCount, kHour, GetParam()));
  std::atomic<int64_t> admitted{0};
  RunThreads(16, [&](int) {
    int64_t mine = 0;
    for (int64_t i = 0; i < kCount / 8; ++i) mine += caller.Hit("key", kStart).allowed;
    admitted += mine;
  });
  EXPECT_EQ(admitted.load(), kCount);
  EXPECT_EQ(caller.Peek("key", kStart).remaining(), 0);
}

TEST_P(MemoryStoreOfEachAlgorithm, ThreadsWithDifferentCostsNeverExceedTheLimit) {
  constexpr int64_t kCount = 20'000 / kSanitizerShare;
  Caller caller(MakeStore(), MakeLimit(kCount, kHour, GetParam()));
  std::atomic<int64_t> charged{0};
  RunThreads(8, [&](int thread) {
    for (int64_t i = 0; i < kCount / 8; ++i) {
      const int64_t cost = 1 + (i + thread) % 5;
      if (caller.Hit("key", kStart, cost).allowed) charged += cost;
    }
    while (caller.Hit("key", kStart).allowed) ++charged;
  });
  EXPECT_EQ(charged.load(), kCount);
}

TEST_P(MemoryStoreOfEachAlgorithm, RefundsOfThreadsAddUp) {
  constexpr int kRounds = 20'000 / kSanitizerShare;
  Caller caller(MakeStore(), MakeLimit(1'000, kHour, GetParam()));
  RunThreads(8, [&](int) {
    for (int i = 0; i < kRounds; ++i) {
      if (caller.Hit("key", kStart).allowed) caller.Refund("key", {kStart, true});
    }
  });
  EXPECT_EQ(caller.Peek("key", kStart).remaining(), 1'000);
}

TEST_P(MemoryStoreOfEachAlgorithm, AResetForgetsAKeysUsage) {
  Caller caller(MakeStore(), MakeLimit(3, kHour, GetParam()));
  EXPECT_EQ(caller.Drain("key", kStart), 3);
  EXPECT_EQ(caller.Drain("other", kStart), 3);
  caller.Reset("key");
  caller.Reset("never seen");
  EXPECT_EQ(caller.Peek("key", kStart).remaining(), 3);
  EXPECT_EQ(caller.Peek("key", kStart).reset_after_ns, 0);
  EXPECT_EQ(caller.Drain("key", kStart), 3);
  EXPECT_FALSE(caller.Hit("other", kStart).allowed);
}

TEST_P(MemoryStoreOfEachAlgorithm, AClearedStoreHasForgottenAllKeys) {
  const auto store = MakeStore();
  Caller caller(store, MakeLimit(1, kHour, GetParam()));
  // Enough keys that a move to a larger table is in progress.
  constexpr int64_t kKeys = 15'000;
  for (int64_t i = 0; i < kKeys; ++i) ASSERT_TRUE(caller.Hit(KeyOf(i), kStart).allowed) << i;
  store->Clear();
  EXPECT_EQ(store->stats().keys, 0);
  for (int64_t i = 0; i < kKeys; ++i) ASSERT_TRUE(caller.Hit(KeyOf(i), kStart).allowed) << i;
  EXPECT_EQ(store->stats().keys, kKeys);
  EXPECT_FALSE(caller.Hit(KeyOf(7), kStart).allowed);
}

TEST_P(MemoryStoreOfEachAlgorithm, ManyHitsAtOnceAreDecidedLikeSingleHits) {
  const Limit limit = MakeLimit(5, kHour, GetParam());
  Caller many(MakeStore(), limit);
  Caller single(MakeStore(), limit);
  std::vector<std::string> keys;
  for (int i = 0; i < 1'000; ++i) keys.push_back(KeyOf(i % 97));
  std::vector<Charge> charges;
  for (size_t i = 0; i < keys.size(); ++i) {
    charges.push_back({keys[i], &many.limit(), static_cast<int64_t>(1 + i % 7)});
  }
  std::vector<Verdict> verdicts;
  many.HitMany(charges, {kStart}, &verdicts);
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(verdicts[i] == Verdict::kAllowed,
              single.Hit(keys[i], kStart, charges[i].cost).allowed)
        << i;
  }
}

// A store below its capacity forgets nothing.
TEST_P(MemoryStoreOfEachAlgorithm, NoStateIsLostBelowTheCapacity) {
  if (IsLog(GetParam())) GTEST_SKIP() << "logs are bounded in bytes, not in keys";
  constexpr int64_t kKeys = 1'000;
  Caller caller(MakeStore(kKeys), MakeLimit(100, kHour, GetParam()));
  for (int64_t i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(caller.Hit(KeyOf(i), kStart, 100).allowed);
  }
  int64_t minted = 0;
  for (int64_t i = 0; i < kKeys; ++i) minted += caller.Hit(KeyOf(i), kStart).allowed;
  EXPECT_EQ(minted, 0);
  EXPECT_EQ(caller.stats().evicted_live, 0);
}

// Logs may take as many bytes as the cells of `capacity` keys. Logs that take a tenth of that are
// all kept, even if they are few and large.
TEST(MemoryStoreTest, LogsThatFitTheirBytesAreNotLost) {
  constexpr int64_t kCapacity = 1'000'000;
  constexpr int64_t kCount = 10'000;
  constexpr int64_t kKeys = kCapacity * static_cast<int64_t>(sizeof(Cell)) / 10 /
                            (16'384 * static_cast<int64_t>(sizeof(int64_t)));
  Caller caller(MakeStore(kCapacity), MakeLimit(kCount, kHour, Algorithm::kSlidingLog));
  for (int64_t i = 0; i < kKeys; ++i) {
    ASSERT_TRUE(caller.Hit(KeyOf(i), kStart, kCount).allowed);
  }
  int64_t minted = 0;
  for (int64_t i = 0; i < kKeys; ++i) minted += caller.Hit(KeyOf(i), kStart).allowed;
  EXPECT_EQ(minted, 0) << "of " << kKeys << " keys";
  EXPECT_EQ(caller.stats().evicted_live, 0);
}

// Threads enter the same keys while the table grows from one slice to dozens.
TEST_P(MemoryStoreOfEachAlgorithm, NoStateIsLostWhileTheTableGrows) {
  constexpr int64_t kKeys = 100'000 / kSanitizerShare;
  constexpr int kThreadsHere = 4;
  Caller caller(MakeStore(1'000'000), MakeLimit(3, kHour, GetParam()));
  std::vector<std::atomic<int>> admitted(kKeys);
  RunThreads(kThreadsHere, [&](int thread) {
    for (int64_t i = 0; i < kKeys; ++i) {
      // The threads stay close together, so that they meet, and each is ahead at times.
      const int64_t at = (i + (i / 1'000 % kThreadsHere == thread ? 500 : 0)) % kKeys;
      admitted[static_cast<size_t>(at)] += caller.Hit(KeyOf(at), kStart + i).allowed;
    }
    for (int64_t i = 0; i < kKeys; ++i) {
      admitted[static_cast<size_t>(i)] += caller.Hit(KeyOf(i), kStart + kKeys).allowed;
    }
  });
  int64_t wrong = 0;
  for (const auto& count : admitted) wrong += count != 3;
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(caller.stats().evicted_live, 0);
  // Growth depends on this number. If it drifted with every lost race, a table would one day be
  // full without growing.
  EXPECT_EQ(caller.stats().keys, kKeys);
  EXPECT_EQ(caller.stats().evictions, 0);
}

// The store is at its capacity, so a thread is often in the middle of entering a key when the
// process forks.
TEST_P(MemoryStoreOfEachAlgorithm, AfterAForkDuringGrowthBothProcessesDecide) {
  Caller caller(MakeStore(10'000), MakeLimit(1'000'000, kHour, GetParam()));
  std::atomic<bool> stop{false};
  std::atomic<int64_t> newest{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = t; !stop; i += 2) {
        newest = i;
        caller.Hit(KeyOf(i), kStart);
        if (i % 64 < 2) caller.Hit("shared", kStart);
      }
    });
  }
  for (int child = 0; child < 300 / kSanitizerShare; ++child) {
    const std::string outcome = InChild([&] {
      const int64_t at = newest;
      for (int64_t i = at > 8 ? at - 8 : 0; i < at + 8; ++i) {
        if (!caller.Hit(KeyOf(i), kStart).allowed) return false;
      }
      for (int64_t i = 0; i < 300; ++i) caller.Hit("child:" + std::to_string(i), kStart);
      return caller.Hit("shared", kStart).allowed;
    });
    EXPECT_EQ(outcome, "ok") << "child " << child;
    if (outcome != "ok") break;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(caller.Hit("shared", kStart).allowed);
}

constexpr int64_t kSliceKeys = static_cast<int64_t>(Table::kSliceCells);

TEST(MemoryStoreCeilingTest, DistinctKeysNeverExceedTheCapacity) {
  constexpr int64_t kCapacity = 20'000;
  Caller caller(MakeStore(kCapacity), MakeLimit(1, kHour));
  for (int64_t i = 0; i < 10 * kCapacity; ++i) {
    ASSERT_TRUE(caller.Hit(KeyOf(i), kStart + i).allowed);
  }
  const StoreStats stats = caller.stats();
  EXPECT_GE(stats.keys, kCapacity);
  EXPECT_LE(stats.keys, kCapacity * 100 / 85 + kSliceKeys);
  EXPECT_EQ(stats.evicted_live, 10 * kCapacity - stats.keys);
  // The newest keys are still known.
  int64_t known = 0;
  for (int64_t i = 9 * kCapacity + kCapacity / 2; i < 10 * kCapacity; ++i) {
    known += !caller.Peek(KeyOf(i), kStart + 10 * kCapacity).allowed;
  }
  EXPECT_GT(known, kCapacity / 2 * 9 / 10);
}

// To evict a key, made-up keys must be charged as often as that key was.
TEST_P(MemoryStoreOfEachAlgorithm, KeysChargedOnceOrTwiceEvictNoKeyChargedOften) {
  // The bytes of logs have 256 parts, and each part needs room for a few logs.
  const int64_t capacity = IsLog(GetParam()) ? 25'000 : 5'000;
  constexpr int64_t kClients = 50;
  constexpr int64_t kFlood = kSanitizerShare > 1 ? 20'000 : 40'000;
  for (const std::vector<int64_t>& costs :
       {std::vector<int64_t>{10}, std::vector<int64_t>{5, 5}, std::vector<int64_t>{1, 9}}) {
    Caller caller(MakeStore(capacity), MakeLimit(10, kHour, GetParam()));
    int64_t now = kStart;
    for (int64_t i = 0; i < kClients; ++i) {
      for (int n = 0; n < 10; ++n) ASSERT_TRUE(caller.Hit(KeyOf(-1 - i), now++).allowed);
    }
    for (int64_t i = 0; i < kFlood; ++i) {
      for (const int64_t cost : costs) ASSERT_TRUE(caller.Hit(KeyOf(i), now++, cost).allowed);
    }
    EXPECT_GT(caller.stats().evicted_live, kFlood / 2);
    int64_t forgotten = 0;
    for (int64_t i = 0; i < kClients; ++i) {
      forgotten += caller.Peek(KeyOf(-1 - i), now).allowed;
    }
    EXPECT_EQ(forgotten, 0) << costs.size() << " charges";
  }
}

TEST(MemoryStoreCeilingTest, LogsAreBoundedInBytes) {
  Caller caller(MakeStore(1'000), MakeLimit(1'000, kHour, Algorithm::kSlidingLog));
  for (int64_t i = 0; i < 20'000 / kSanitizerShare; ++i) {
    ASSERT_TRUE(caller.Hit(KeyOf(i), kStart + i, 1'000).allowed);
  }
  const StoreStats stats = caller.stats();
  EXPECT_GT(stats.evicted_live, 0);
  EXPECT_LT(stats.keys, 1'000);
}

TEST(MemoryStoreCeilingTest, IdleKeysAreEvictedFirst) {
  constexpr int64_t kCapacity = 20'000;
  Caller brief(MakeStore(kCapacity), MakeLimit(1, kSecond));
  int64_t now = kStart;
  for (int round = 0; round < 10; ++round, now += 10 * kSecond) {
    for (int64_t i = 0; i < kCapacity; ++i) {
      ASSERT_TRUE(brief.Hit(KeyOf(round * kCapacity + i), now).allowed);
    }
    for (int64_t i = 0; i < kCapacity; ++i) {
      ASSERT_FALSE(brief.Hit(KeyOf(round * kCapacity + i), now).allowed);
    }
  }
  const StoreStats stats = brief.stats();
  EXPECT_EQ(stats.evicted_live, 0);
  EXPECT_EQ(stats.keys + stats.evictions, 10 * kCapacity);
}

TEST(MemoryStoreCeilingTest, IdleLogsAreEvictedFirst) {
  Caller caller(MakeStore(100'000), MakeLimit(1, kSecond, Algorithm::kSlidingLog));
  int64_t now = kStart;
  for (int round = 0; round < 10; ++round, now += 10 * kSecond) {
    for (int64_t i = 0; i < 20'000 / kSanitizerShare; ++i) {
      ASSERT_TRUE(caller.Hit(KeyOf(round * 100'000 + i), now).allowed);
    }
  }
  const StoreStats stats = caller.stats();
  EXPECT_EQ(stats.evicted_live, 0);
  EXPECT_GT(stats.evictions, 0);
}

// Runs the store's maintenance, which calls run every 10 ms.
void Tend(Caller& caller, int64_t* now_ns, int times) {
  for (int i = 0; i < times; ++i) {
    *now_ns += 10 * kMs;
    caller.Hit("tending", *now_ns);
  }
}

TEST(MemoryStoreShrinkTest, AnIdleTableShrinks) {
  constexpr int64_t kKeys = 100'000;
  Caller caller(MakeStore(1'000'000), MakeLimit(100, kSecond));
  int64_t now = kStart;
  for (int64_t i = 0; i < kKeys; ++i) caller.Hit(KeyOf(i), now);
  EXPECT_EQ(caller.stats().keys, kKeys);
  now += kHour;
  Tend(caller, &now, 500);
  EXPECT_LE(caller.stats().keys, kSliceKeys);
  EXPECT_EQ(caller.stats().evicted_live, 0);
  EXPECT_GE(caller.stats().evictions, kKeys - kSliceKeys);
}

TEST(MemoryStoreShrinkTest, LiveKeysSurviveShrinking) {
  constexpr int64_t kKeys = 100'000;
  const auto store = MakeStore(1'000'000);
  Caller brief(store, MakeLimit(100, kSecond));
  Caller lasting(store, MakeLimit(1, 100 * kHour));
  int64_t now = kStart;
  for (int64_t i = 0; i < kKeys; ++i) {
    brief.Hit(KeyOf(i), now);
    if (i % 20 == 0) lasting.Hit(KeyOf(i), now);
  }
  now += kHour;
  Tend(brief, &now, 500);
  EXPECT_LT(brief.stats().keys, kKeys / 4);
  for (int64_t i = 0; i < kKeys; i += 20) {
    ASSERT_FALSE(lasting.Hit(KeyOf(i), now).allowed) << i;
  }
}

// All keys are idle, so a move to a much smaller table begins. Long before the last slice has
// moved, all keys are charged again. No key may be lost, since all fit the capacity.
void ExpectNothingLost(Caller& caller, int64_t keys, int64_t now_ns) {
  for (int64_t i = 0; i < keys; ++i) ASSERT_EQ(caller.Drain(KeyOf(i), now_ns), 2);
  Tend(caller, &now_ns, 200);  // two of the 30 seconds that one unit takes to refill
  EXPECT_EQ(caller.stats().evicted_live, 0);
  int64_t minted = 0;
  for (int64_t i = 0; i < keys; ++i) minted += caller.Hit(KeyOf(i), now_ns).allowed;
  EXPECT_EQ(minted, 0) << "of " << keys;
}

// Moving one slice drops thousands of idle cells, so this many evictions show that a move has
// begun.
constexpr int64_t kMoveHasBegun = 1'000;

TEST(MemoryStoreShrinkTest, KeysThatAreChargedWhileItShrinksAreNotLost) {
  constexpr int64_t kKeys = 300'000;
  Caller caller(MakeStore(1'000'000), MakeLimit(2, 60 * kSecond));
  int64_t now = kStart;
  for (int64_t i = 0; i < kKeys; ++i) caller.Hit(KeyOf(i), now);
  now += kHour;
  for (int i = 0; i < 500 && caller.stats().evictions < kMoveHasBegun; ++i) {
    Tend(caller, &now, 1);
  }
  ASSERT_GE(caller.stats().evictions, kMoveHasBegun);
  ExpectNothingLost(caller, kKeys, now);
}

TEST_P(MemoryStoreOfEachAlgorithm, ConcurrentRefundsGiveBackExactlyTheCharges) {
  constexpr int64_t kCharged = 1'000;
  const auto store = MakeStore();
  Caller caller(store, MakeLimit(2 * kCharged, kHour, GetParam()));
  EXPECT_EQ(caller.Refund("key", {kStart, true}, 5), 0);
  ASSERT_TRUE(caller.Hit("key", kStart, kCharged).allowed);
  std::atomic<int64_t> units{0};
  RunThreads(8, [&](int number) {
    for (int i = 0; i < 100; ++i) units += caller.Refund("key", {kStart, true}, 1 + number % 3);
  });
  EXPECT_EQ(units, kCharged);
  EXPECT_EQ(caller.Peek("key", kStart).remaining(), 2 * kCharged);
}

class UnconfirmedTest : public ::testing::TestWithParam<Algorithm> {};
INSTANTIATE_TEST_SUITE_P(Algorithms, UnconfirmedTest, ::testing::ValuesIn(kAllAlgorithms), NameOf);

// A thread that was delayed for longer than the tolerance after reading its clock finds a state
// that others wrote. Whatever it does, it must not allow more than the limit.
TEST_P(UnconfirmedTest, ADelayedCallMintsNothing) {
  const Limit limit = MakeLimit(10, kSecond, GetParam());
  const int64_t window = (kStart / kSecond + 1) * kSecond;
  const auto store = MakeStore();
  Caller caller(store, limit);
  EXPECT_EQ(caller.Drain("key", window + 150 * kMs), 10);
  const Moment late{window - 800 * kMs};
  const Decision d = store->Hit({"key", &caller.limit(), 1}, late);
  EXPECT_FALSE(d.allowed && !d.behind);
  store->Hit({"key", &caller.limit(), 11}, late);
  caller.Refund("key", late);
  // A refund is worth one unit, whenever it arrives.
  const int64_t now = window + 160 * kMs;
  EXPECT_LE(caller.Drain("key", now), 1);
}

}  // namespace
}  // namespace tidegate::testing
