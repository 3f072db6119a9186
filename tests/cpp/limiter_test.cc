#include "tidegate/limiter.h"
#include "base/gate.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"
#include "wrapped_store.h"

namespace tidegate::testing {
namespace {

constexpr int64_t kHour = 3'600 * kSecond;

TEST(LimiterTest, NeedsALimitAndAStore) {
  EXPECT_FALSE(Limiter::Create({}, MakeStore()).ok());
  EXPECT_FALSE(Limiter::Create({MakeLimit(1, kHour)}, nullptr).ok());
}

TEST(LimiterTest, RunsOnTheSystemClockUnlessGivenAnother) {
  const auto limiter = *Limiter::Create({MakeLimit(1, kHour)}, MakeStore());
  EXPECT_TRUE(limiter->Hit("key").allowed);
  const Decision d = limiter->Hit("key");
  EXPECT_FALSE(d.allowed);
  EXPECT_GT(d.retry_after_ns, 0);
  EXPECT_LE(d.retry_after_ns, kHour);
  EXPECT_NEAR(static_cast<double>(d.at_ns), static_cast<double>(SystemClock::Get().NowNs()),
              1e9 * 60);
}

TEST(LimiterTest, LimitersOfOneStoreAndScopeCountTogether) {
  const auto store = MakeStore();
  const auto clock = std::make_shared<ManualClock>(kStart);
  const auto one = *Limiter::Create({MakeLimit(1, kHour)}, store, clock, "a");
  const auto two = *Limiter::Create({MakeLimit(1, kHour)}, store, clock, "a");
  const auto other = *Limiter::Create({MakeLimit(1, kHour)}, store, clock, "b");
  EXPECT_TRUE(one->Hit("key").allowed);
  EXPECT_FALSE(two->Hit("key").allowed);
  EXPECT_TRUE(other->Hit("key").allowed);
}

TEST(LimiterTest, AKeyThatWasResetAtTheInstant0IsFull) {
  const auto clock = std::make_shared<ManualClock>(0);
  for (const Algorithm algorithm : kAllAlgorithms) {
    const auto limiter =
        *Limiter::Create({MakeLimit(1, kHour, algorithm)}, MakeStore(), clock, "scope");
    for (int i = 0; i < 100; ++i) {
      const std::string key = "key" + std::to_string(i);
      ASSERT_TRUE(limiter->Hit(key).allowed);
      ASSERT_FALSE(limiter->Hit(key).allowed);
      limiter->Reset(key);
      EXPECT_TRUE(limiter->Hit(key).allowed) << static_cast<int>(algorithm) << " " << key;
    }
  }
}

TEST(LimiterTest, ChargeUpToTakesTheRoomThatIsLeftAndIsNotCountedAsADecision) {
  for (const Algorithm algorithm : kAllAlgorithms) {
    const auto clock = std::make_shared<ManualClock>(kStart);
    const auto limiter = *Limiter::Create({MakeLimit(10, kHour, algorithm)}, MakeStore(), clock);
    ASSERT_TRUE(limiter->Hit("key", 3).allowed);
    EXPECT_EQ(limiter->Hit("other").charged, Decision::kUnset);
    const Decision part = limiter->ChargeUpTo("key", 4);
    EXPECT_TRUE(part.allowed);
    EXPECT_EQ(part.charged, 4);
    EXPECT_EQ(part.remaining(), 3);
    const Decision rest = limiter->ChargeUpTo("key", int64_t{1} << 50);
    EXPECT_TRUE(rest.allowed) << AlgorithmName(algorithm);
    EXPECT_EQ(rest.charged, 3);
    EXPECT_EQ(rest.remaining(), 0);
    EXPECT_EQ(limiter->ChargeUpTo("key", 1).charged, 0);
    EXPECT_FALSE(limiter->Hit("key").allowed);
    EXPECT_EQ(limiter->stats().allowed, 2);
    EXPECT_EQ(limiter->stats().denied, 1);
  }
}

// A store whose state another thread always changes first.
class ContendedStore final : public Store {
 public:
  std::string_view kind() const override { return "contended"; }
  BoundLimit Bind(const Limit& limit, std::string_view scope) const override {
    return BindWith(Hasher(Hasher::RandomSeed()), limit, scope);
  }
  Decision Hit(const Charge& charge, const Moment&) override {
    ++hits;
    Decision d;
    d.limit = &charge.limit->limit;
    return d;
  }
  Decision Peek(const Charge& charge, const Moment&) override {
    ++peeks;
    Decision d;
    d.limit = &charge.limit->limit;
    d.allowed = true;
    return d;
  }
  int64_t Refund(const Charge&, const Moment&) override { return 0; }
  void Reset(const Charge&, const Moment&) override {}
  void Release(const Charge&, int64_t, const Moment&) override {}
  StoreStats stats() const override { return {}; }

  int hits = 0;
  int peeks = 0;
};

TEST(LimiterTest, AHitOfOneLimitIsOneCallOfAnyStore) {
  const auto store = std::make_shared<ContendedStore>();
  const auto limiter = *Limiter::Create({MakeLimit(10, kHour)}, store);
  EXPECT_FALSE(limiter->Hit("key").allowed);
  EXPECT_FALSE(limiter->Allow("key", 2));
  EXPECT_EQ(store->hits, 2);
  EXPECT_EQ(store->peeks, 0);
}

TEST(LimiterTest, AChargeThatNeverSucceedsIsGivenUp) {
  const auto store = std::make_shared<ContendedStore>();
  const auto limiter = *Limiter::Create({MakeLimit(10, kHour)}, store);
  EXPECT_EQ(limiter->ChargeUpTo("key", 5).charged, 0);
  EXPECT_GT(store->hits, 1);
  EXPECT_LE(store->hits, 1000);
}

TEST(LimiterTest, CountsWhichLimitRefused) {
  const auto clock = std::make_shared<ManualClock>(kStart);
  const auto limiter =
      *Limiter::Create({MakeLimit(2, kSecond), MakeLimit(3, kHour)}, MakeStore(), clock);
  for (int i = 0; i < 4; ++i) limiter->Hit("key");
  EXPECT_EQ(limiter->refused(), std::vector<int64_t>({2, 0}));
  clock->AdvanceNs(kSecond);
  for (int i = 0; i < 4; ++i) limiter->Hit("key");
  EXPECT_EQ(limiter->refused(), std::vector<int64_t>({2, 3}));
  EXPECT_EQ(limiter->stats().denied, 5);

  Fixture f(MakeLimit(3, kHour));
  for (int i = 0; i < 5; ++i) f.limiter->Allow("key");
  EXPECT_EQ(f.limiter->refused(), std::vector<int64_t>({2}));
}

TEST(LimiterTest, CountsItsDecisions) {
  Fixture f(MakeLimit(3, kHour));
  for (int i = 0; i < 5; ++i) f.limiter->Hit("key");
  f.limiter->Peek("key");
  const std::vector<std::string_view> keys(4, "other");
  bool allowed[4];
  f.limiter->HitMany(keys, {}, allowed);
  EXPECT_EQ(f.limiter->stats().allowed, 6);
  EXPECT_EQ(f.limiter->stats().denied, 3);
  EXPECT_EQ(f.limiter->stats().store.keys, 2);
}

TEST(LimiterTest, CountsOfAllThreadsAddUp) {
  Fixture f(MakeLimit(1'000, kHour));
  // Some of these threads share a counter.
  constexpr int kN = kThreads + 40;
  RunThreads(kN, [&](int) {
    for (int i = 0; i < 50; ++i) f.limiter->Hit("key");
  });
  EXPECT_EQ(f.limiter->stats().allowed, 1'000);
  EXPECT_EQ(f.limiter->stats().denied, kN * 50 - 1'000);
}

class EachAlgorithm : public ::testing::TestWithParam<Algorithm> {};
INSTANTIATE_TEST_SUITE_P(Algorithms, EachAlgorithm, ::testing::ValuesIn(kAllAlgorithms), NameOf);

TEST_P(EachAlgorithm, RefusedBeforeTheWaitAllowedAfterIt) {
  Fixture f(MakeLimit(7, 3 * kSecond + 1, GetParam()));
  for (int round = 0; round < 50; ++round) {
    while (f.limiter->Hit("key", 1 + round % 3).allowed) f.clock->AdvanceNs(17 * kMs);
    const Decision refused = f.limiter->Hit("key", 1 + round % 3);
    ASSERT_FALSE(refused.allowed);
    f.clock->AdvanceNs(refused.retry_after_ns - 1);
    ASSERT_FALSE(f.limiter->Hit("key", 1 + round % 3).allowed);
    f.clock->AdvanceNs(1);
    ASSERT_TRUE(f.limiter->Hit("key", 1 + round % 3).allowed);
  }
}

TEST_P(EachAlgorithm, HugeCostsAreRefusedForEver) {
  Fixture f(MakeLimit(3, kSecond, GetParam()));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t cost : {int64_t{4}, kMost - 1, kMost}) {
    EXPECT_EQ(f.limiter->Hit("key", cost).retry_after_ns, Decision::kNever);
    EXPECT_EQ(f.limiter->Peek("key", cost).retry_after_ns, Decision::kNever);
  }
  EXPECT_EQ(f.limiter->stats().store.keys, 0) << "what cannot pass takes no memory";
  EXPECT_EQ(f.limiter->Peek("key").remaining(), 3);
  f.limiter->Hit("key", 2);
  f.limiter->Refund("key", kMost);
  EXPECT_EQ(f.limiter->Peek("key").remaining(), 3);
}

TEST_P(EachAlgorithm, IsExactAtTheLastInstants) {
  // A sliding window looks two periods ahead, so the longest is half as long.
  const int64_t longest = Limit::kMaxPeriodNs / (GetParam() == Algorithm::kSlidingWindow ? 2 : 1);
  Fixture f(MakeLimit(3, longest, GetParam()));
  f.clock->SetNs(kMaxInstantNs);
  int64_t admitted = 0;
  while (admitted < 10 && f.limiter->Hit("key").allowed) ++admitted;
  EXPECT_EQ(admitted, 3);
  const Decision d = f.limiter->Hit("key");
  EXPECT_GT(d.retry_after_ns, 0);
  EXPECT_GT(d.reset_after_ns, 0);
  f.limiter->Refund("key", 1);
  EXPECT_TRUE(f.limiter->Hit("key").allowed);
}

// After the clock went back, each kind of call charges once, and recovers from the state that the
// old clock left.
TEST_P(EachAlgorithm, AfterTheClockWentBackEachHitIsChargedOnce) {
  Fixture f(MakeLimit(10, 60 * kSecond, GetParam()));
  f.limiter->Hit("key", 4);
  f.clock->AdvanceNs(-kHour);
  const int64_t before = f.limiter->Peek("key").remaining();
  const Decision d = f.limiter->Hit("key");
  EXPECT_EQ(d.remaining(), before - d.allowed);
  EXPECT_EQ(f.limiter->stats().allowed + f.limiter->stats().denied, 2);
  EXPECT_EQ(f.limiter->Peek("key").remaining(), d.remaining());
}

// A clock that moves on at each reading.
class MovingClock final : public Clock {
 public:
  int64_t NowNs() override { return ns += kMs; }
  int64_t ns = kStart;
};

TEST(LimiterSlotTest, APlaceTakenAfterTheClockWentBackIsGivenBack) {
  const auto clock = std::make_shared<MovingClock>();
  const auto limiter =
      *Limiter::Create({MakeLimit(2, 60 * kSecond, Algorithm::kConcurrency)}, MakeStore(), clock);
  limiter->Hit("key");
  clock->ns -= kHour;
  const Decision d = limiter->Hit("key");
  ASSERT_TRUE(d.allowed);
  const int64_t left = limiter->Peek("key").remaining();
  limiter->Release("key", 1, d);
  EXPECT_EQ(limiter->Peek("key").remaining(), left + 1);
}

TEST_P(EachAlgorithm, ManyKeysAtOnceAfterTheClockWentBack) {
  Fixture many(MakeLimit(10, 60 * kSecond, GetParam()));
  Fixture hashed(MakeLimit(10, 60 * kSecond, GetParam()));
  Fixture single(MakeLimit(10, 60 * kSecond, GetParam()));
  const std::vector<std::string_view> keys(40, "key");
  for (Fixture* f : {&many, &hashed, &single}) {
    f->limiter->Hit("key", 4);
    f->clock->AdvanceNs(-kHour);
  }
  for (int round = 0; round < 20; ++round) {
    bool allowed[40];
    many.limiter->HitMany(keys, {}, allowed);
    bool by_fingerprint[40];
    ASSERT_EQ(hashed.limiter->TakesFingerprints(), IsBucket(GetParam()));
    if (hashed.limiter->TakesFingerprints()) {
      const std::vector<Fingerprint> fingerprints(40, hashed.limiter->FingerprintOf("key"));
      hashed.limiter->HitMany(fingerprints, by_fingerprint);
    } else {
      hashed.limiter->HitMany(keys, {}, by_fingerprint);
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool expected = single.limiter->Hit("key").allowed;
      ASSERT_EQ(allowed[i], expected);
      ASSERT_EQ(by_fingerprint[i], expected);
    }
    for (Fixture* f : {&many, &hashed, &single}) f->clock->AdvanceNs(10 * kSecond);
  }
  EXPECT_EQ(hashed.limiter->stats().allowed, single.limiter->stats().allowed);
  EXPECT_EQ(hashed.limiter->stats().denied, single.limiter->stats().denied);
}

TEST(LimiterTest, HitsByFingerprintGrowTheTable) {
  Fixture f(MakeLimit(2, kHour));
  constexpr int64_t kKeys = 50'000;
  std::vector<Fingerprint> keys;
  for (int64_t i = 0; i < kKeys; ++i) keys.push_back(f.limiter->FingerprintOf(std::to_string(i)));
  const auto allowed = std::make_unique<bool[]>(kKeys);
  for (const bool expected : {true, true, false}) {
    f.limiter->HitMany(keys, allowed.get());
    EXPECT_EQ(std::count(allowed.get(), allowed.get() + kKeys, expected), kKeys);
  }
  EXPECT_EQ(f.limiter->stats().store.keys, kKeys);
  EXPECT_EQ(f.limiter->stats().store.evicted_live, 0);
  EXPECT_FALSE(f.limiter->Hit("17").allowed);
  f.limiter->HitMany(absl::Span<const Fingerprint>(), allowed.get());
}

TEST_P(EachAlgorithm, ARefusedPlanCostsNothing) {
  Fixture f({MakeLimit(100, kHour, GetParam()), MakeLimit(3, kHour)});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(f.limiter->Hit("key").allowed);
  for (int i = 0; i < 10; ++i) {
    const Decision d = f.limiter->Hit("key");
    EXPECT_FALSE(d.allowed);
    EXPECT_EQ(d.rule, 1u);
    EXPECT_EQ(d.limit->capacity(), 3);
  }
  Fixture alone({MakeLimit(100, kHour, GetParam())}, f.store);
  EXPECT_EQ(alone.limiter->Peek("key").remaining(), 97);
}

// Two plans share limits in opposite orders, and the threads ask for more than any limit allows.
// Each limit was charged exactly what its plans admitted.
TEST_P(EachAlgorithm, PlansChargeAllOrNoneUnderConcurrency) {
  constexpr int64_t kRoom = 3'000 / kSanitizerShare;
  const auto store = MakeStore();
  const Limit a = MakeLimit(2 * kRoom, kHour, GetParam());
  const Limit b = MakeLimit(2 * kRoom, 2 * kHour, GetParam());
  const Limit narrow = MakeLimit(kRoom, 3 * kHour, GetParam());
  Fixture forth({a, b, narrow}, store);
  Fixture back({b, a}, store);
  std::atomic<int64_t> forth_admitted{0};
  std::atomic<int64_t> back_admitted{0};
  RunThreads(8, [&](int thread) {
    const bool goes_forth = thread % 2 == 0;
    int64_t admitted = 0;
    for (int64_t i = 0; i < kRoom; ++i) {
      admitted += (goes_forth ? forth : back).limiter->Hit("key").allowed;
    }
    (goes_forth ? forth_admitted : back_admitted) += admitted;
  });
  const auto charged = [&](const Limit& limit) {
    return limit.capacity() - Fixture({limit}, store).limiter->Peek("key").remaining();
  };
  EXPECT_EQ(charged(a), forth_admitted + back_admitted);
  EXPECT_EQ(charged(b), forth_admitted + back_admitted);
  EXPECT_EQ(charged(narrow), forth_admitted);
  EXPECT_LE(forth_admitted, kRoom);
  EXPECT_LE(forth_admitted + back_admitted, 2 * kRoom);
  // When the limits ran out, some refusals were caused by charges that were given back a moment
  // later. Later calls get the rest.
  while (back.limiter->Hit("key").allowed) ++back_admitted;
  EXPECT_EQ(forth_admitted + back_admitted, 2 * kRoom);
}

TEST(LimiterPlanTest, TheBindingLimitIsReported) {
  Fixture f({MakeLimit(10, kSecond), MakeLimit(12, kHour)});
  EXPECT_EQ(f.limiter->Hit("key").rule, 0u);  // 9 left of 10, 11 of 12
  EXPECT_EQ(f.limiter->Hit("key", 9).rule, 0u);
  f.clock->AdvanceNs(kSecond);
  const Decision least = f.limiter->Hit("key");
  EXPECT_TRUE(least.allowed);
  EXPECT_EQ(least.rule, 1u);
  EXPECT_EQ(least.limit->ToString(), "12/hour");
  const Decision refused = f.limiter->Hit("key", 2);
  EXPECT_FALSE(refused.allowed);
  EXPECT_EQ(refused.rule, 1u);
  // The cost exceeds both capacities, so both waits are endless, and the first limit binds.
  EXPECT_EQ(f.limiter->Hit("key", 13).rule, 0u);
}

TEST(LimiterPlanTest, EqualLimitsCountOnce) {
  Fixture f({MakeLimit(3, kHour), MakeLimit(3, kHour), MakeLimit(5, kHour)});
  int64_t admitted = 0;
  while (f.limiter->Hit("key").allowed) ++admitted;
  EXPECT_EQ(admitted, 3);
}

TEST(LimiterPlanTest, TheLongestQueueIsTheDelay) {
  Fixture f({MakeLimit(10, kSecond, Algorithm::kLeakyBucket),
             MakeLimit(100, 60 * kSecond, Algorithm::kLeakyBucket), MakeLimit(3, kSecond)});
  EXPECT_EQ(f.limiter->Hit("key").delay_ns, 0);
  EXPECT_EQ(f.limiter->Hit("key").delay_ns, 600 * kMs);
  EXPECT_EQ(f.limiter->Hit("key").delay_ns, 1'200 * kMs);
  EXPECT_EQ(f.limiter->Hit("key").delay_ns, 0);
}

TEST(LimiterSlotTest, AReleaseMakesRoomAtOnce) {
  Fixture f(MakeLimit(2, kHour, Algorithm::kConcurrency));
  const Decision first = f.limiter->Hit("key", 2);
  EXPECT_TRUE(first.allowed);
  f.clock->AdvanceNs(kSecond);
  EXPECT_FALSE(f.limiter->Hit("key").allowed);
  f.limiter->Release("key", 1, first);
  EXPECT_TRUE(f.limiter->Hit("key").allowed);
  EXPECT_FALSE(f.limiter->Hit("key").allowed);
}

TEST_P(EachAlgorithm, ADecisionThatChargedNothingGivesNothingBack) {
  Fixture f({MakeLimit(5, kHour, GetParam()), MakeLimit(9, kHour, GetParam())});
  const Decision hit = f.limiter->Hit("key", 4);
  const Decision refused = f.limiter->Hit("key", 4);
  const Decision peek = f.limiter->Peek("key");
  Decision open = hit;
  open.SetChargedIn(ChargedIn::kNowhere);
  Decision local = hit;
  local.SetChargedIn(ChargedIn::kFallback);
  for (const Decision& each : {refused, peek, open, local}) {
    EXPECT_EQ(each.charged_in(0), each.charged_in(20));
    EXPECT_NE(each.charged_in(0), ChargedIn::kStore);
    f.limiter->Refund("key", 4, &each);
    EXPECT_EQ(f.limiter->Peek("key").remaining(), 1);
  }
  f.limiter->Refund("key", 3, &hit);
  EXPECT_EQ(f.limiter->Peek("key").remaining(), 4);
}

TEST(LimiterPlanTest, ARefundOfAHitTakesItsOwnUnitsOutOfALog) {
  Fixture f({MakeLimit(3, 10 * kSecond, Algorithm::kSlidingLog), MakeLimit(30, kHour)});
  const Decision first = f.limiter->Hit("key");
  f.clock->AdvanceNs(6 * kSecond);
  EXPECT_TRUE(f.limiter->Hit("key", 2).allowed);
  f.limiter->Refund("key", 1, &first);
  EXPECT_TRUE(f.limiter->Hit("key").allowed);
  EXPECT_EQ(f.limiter->Hit("key").retry_after_ns, 10 * kSecond);
  f.clock->AdvanceNs(4 * kSecond);
  f.limiter->Refund("key", 1, &first);
  EXPECT_EQ(f.limiter->Hit("key").retry_after_ns, 6 * kSecond);
}

TEST(PlanVerdictTest, KnowsWhichLimitsWereChargedElsewhere) {
  const Limit limit = MakeLimit(10, kHour);
  Decision passed;
  passed.allowed = true;
  passed.limit = &limit;
  Decision local = passed;
  local.SetChargedIn(ChargedIn::kFallback);
  const auto charged = [&](const std::vector<bool>& locally) {
    PlanVerdict verdict;
    for (size_t i = 0; i < locally.size(); ++i) {
      verdict.Add(locally[i] ? local : passed, static_cast<uint32_t>(i));
    }
    std::vector<ChargedIn> places;
    for (size_t i = 0; i < locally.size(); ++i) places.push_back(verdict.get().charged_in(i));
    return places;
  };
  constexpr ChargedIn kStore = ChargedIn::kStore;
  constexpr ChargedIn kFallback = ChargedIn::kFallback;
  using Places = std::vector<ChargedIn>;
  EXPECT_EQ(charged({false, false}), Places({kStore, kStore}));
  EXPECT_EQ(charged({true, true}), Places({kFallback, kFallback}));
  EXPECT_EQ(charged({true, false, true}), Places({kFallback, kStore, kFallback}));
  EXPECT_EQ(charged({false, true}), Places({kStore, kFallback}));
  std::vector<bool> many(20, true);
  EXPECT_EQ(charged(many), Places(20, kFallback));
  many[19] = false;
  EXPECT_EQ(charged(many), Places(20, ChargedIn::kNowhere));
  many.assign(20, false);
  EXPECT_EQ(charged(many), Places(20, kStore));
  many[3] = true;
  EXPECT_EQ(charged(many), Places(20, ChargedIn::kNowhere));
}

TEST(LimiterSlotTest, NeverMoreHoldersThanTheLimit) {
  constexpr int kRounds = 20'000 / kSanitizerShare;
  Fixture f(MakeLimit(5, kHour, Algorithm::kConcurrency));
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  RunThreads(16, [&](int) {
    for (int i = 0; i < kRounds; ++i) {
      const Decision d = f.limiter->Hit("key");
      if (!d.allowed) continue;
      const int now = ++inside;
      int seen = most;
      while (seen < now && !most.compare_exchange_weak(seen, now)) {
      }
      --inside;
      f.limiter->Release("key", 1, d);
    }
  });
  EXPECT_LE(most.load(), 5);
  EXPECT_EQ(f.limiter->Peek("key").remaining(), 5);
}

// A process may have ten thousand limiters. Their counters are created when threads use them.
TEST(LimiterSizeTest, IsBelowTwoKilobytesUntilManyThreadsCount) {
  EXPECT_LT(sizeof(Limiter), 2048u);
}

// A store that calls a function of the test just before a charge, to do what another thread might
// do at that moment.
class Meddled final : public WrappedStore {
 public:
  using WrappedStore::WrappedStore;
  // Called with the number of the charge, from 0.
  std::function<void(int)> before_hit;

  Decision Hit(const Charge& charge, const Moment& moment) override {
    if (before_hit) before_hit(hits_++);
    return WrappedStore::Hit(charge, moment);
  }

 private:
  int hits_ = 0;
};

struct Race {
  Race(Limit first_limit, Limit second_limit)
      : inner(MakeStore()),
        meddled(std::make_shared<Meddled>(inner)),
        plan({first_limit, second_limit}, meddled),
        first({std::move(first_limit)}, inner),
        second({std::move(second_limit)}, inner) {}
  // Sets all clocks to one instant.
  void SetNs(int64_t ns) {
    for (Fixture* f : {&plan, &first, &second}) f->clock->SetNs(ns);
  }

  std::shared_ptr<MemoryStore> inner;
  std::shared_ptr<Meddled> meddled;
  Fixture plan;
  Fixture first;
  Fixture second;
};

TEST_P(EachAlgorithm, ChargesOfARefusedPlanAreGivenBack) {
  Race race(MakeLimit(10, kHour, GetParam()), MakeLimit(5, kHour));
  race.meddled->before_hit = [&](int hit) {
    if (hit == 1) race.second.limiter->Hit("key", 5);
  };
  EXPECT_FALSE(race.plan.limiter->Hit("key", 3).allowed);
  EXPECT_EQ(race.first.limiter->Peek("key").remaining(), 10);
}

// The plan charges its first limit at the end of a window, is delayed into the next window, and is
// refused by its second limit. Giving back must not take from charges that others made meanwhile:
// that would allow one more than the limit.
TEST_P(EachAlgorithm, GivingBackTakesNoChargesOfOthers) {
  constexpr int64_t kCount = 10;
  Race race(MakeLimit(kCount, 10 * kMs, GetParam()), MakeLimit(5, kHour));
  const int64_t window = (kStart / kSecond + 1) * kSecond;
  race.SetNs(window - 1 * kMs);
  int64_t admitted = 0;
  race.meddled->before_hit = [&](int hit) {
    if (hit != 1) return;
    race.SetNs(window + 50 * kMs);
    while (race.first.limiter->Hit("key").allowed) ++admitted;
    race.second.limiter->Hit("key", 5);
  };
  EXPECT_FALSE(race.plan.limiter->Hit("key").allowed);
  while (race.first.limiter->Hit("key").allowed) ++admitted;
  EXPECT_EQ(admitted, kCount);
}

// Another thread moves one limit of the plan far ahead after the plan has read its state and before
// it charges. The plan is retried; its other limit is charged once.
TEST_P(EachAlgorithm, ARetriedPlanIsChargedOnce) {
  Race race(MakeLimit(10, 100 * kHour), MakeLimit(10, kSecond, GetParam()));
  race.meddled->before_hit = [&](int hit) {
    if (hit != 1) return;
    race.second.clock->AdvanceNs(30 * kSecond);
    race.second.limiter->Hit("key", 3);
  };
  const Decision d = race.plan.limiter->Hit("key");
  EXPECT_EQ(race.first.limiter->Peek("key").remaining(), d.allowed ? 9 : 10);
}

}  // namespace
}  // namespace tidegate::testing
