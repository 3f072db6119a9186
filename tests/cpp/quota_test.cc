// Quotas: the grammar, the pure step, and exact counts for concurrent callers of a store.
#include "tidegate/quota.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "quotas/step.h"
#include "testing.h"
#include "tidegate/limiter.h"
#include "tidegate/shm_store.h"

namespace tidegate::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kDay = 86'400 * kSecond;

Limit Quota(std::string_view text) {
  absl::StatusOr<Limit> limit = Limit::Parse(text);
  EXPECT_TRUE(limit.ok()) << limit.status();
  return *std::move(limit);
}

Decision Hit(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost) {
  QuotaState next = *state;
  uint8_t happened = 0;
  const Decision decision = StepQuota(limit, &next, now_ns, cost, &happened);
  if (decision.allowed || decision.behind) *state = next;
  return decision;
}

TEST(QuotaText, ReadsBackTheTextThatItWrites) {
  for (const std::string text :
       {"quota 10000/month", "quota 0/day", "quota 5/week anchor 7",
        "quota 7/month anchor 31 in Europe/Berlin rollover 5000 rollover 50% for 3 periods",
        "quota 9/quarter anchor 2-15", "quota 281474976710655/year anchor 4-1 first prorated"}) {
    EXPECT_EQ(Quota(text).ToString(), text);
    EXPECT_EQ(Quota("  " + text + "\n"), Quota(text));
  }
  EXPECT_EQ(Quota("quota 5/month anchor 1 in UTC first full").ToString(), "quota 5/month");
}

TEST(QuotaText, ErrorsSayWhatIsExpected) {
  const std::pair<std::string, std::string> cases[] = {
      {"quota", "expected 'quota COUNT/day"},
      {"quota 5", "expected 'quota COUNT/day"},
      {"quota x/month", "expected 'quota COUNT/day"},
      {"quota 5/hour", "expected 'quota COUNT/day"},
      {"quota 281474976710656/month", "expected 1 to 281474976710655"},
      {"quota 99999999999999999999/month", "expected 1 to 281474976710655"},
      {"quota 5/month anchor 32", "expected 1 to 31"},
      {"quota 5/month anchor 0", "expected 1 to 31"},
      {"quota 5/week anchor 8", "expected 1 to 7"},
      {"quota 5/day anchor 2", "expected 1 to 1 for the period day"},
      {"quota 5/month anchor 2-3", "only quarters and years"},
      {"quota 5/year anchor 13-3", "expected 1 to 12"},
      {"quota 5/month anchor", "its part 'anchor' is wrong"},
      {"quota 5/month in Europe/Nowhere", "time zone"},
      {"quota 5/month in ../../etc/passwd", "time zone"},
      {"quota 5/month in localtime", "time zone"},
      {"quota 5/month rollover 0", "expected 1 to"},
      {"quota 5/month rollover 101%", "expected 1 to 100"},
      {"quota 5/month rollover 5 rollover 6", "its part 'rollover' is wrong"},
      {"quota 5/month rollover 5 for 13 periods", "expected 1 to 12"},
      {"quota 5/month for 2 periods", "its part 'for' is wrong"},
      {"quota 5/month first half", "its part 'first' is wrong"},
      {"quota 5/month burst 7", "its part 'burst' is wrong"},
  };
  for (const auto& [text, message] : cases) {
    const absl::StatusOr<Limit> limit = Limit::Parse(text);
    ASSERT_FALSE(limit.ok()) << text;
    EXPECT_THAT(std::string(limit.status().message()), HasSubstr(message)) << text;
  }
  EXPECT_FALSE(Limit::Create({.count = 5, .period_ns = 1, .algorithm = Algorithm::kQuota}).ok());
}

TEST(QuotaStep, RollsOverManyPeriodsLikeOneByOne) {
  std::mt19937 random(7);
  const auto any = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const Limit limit =
        Quota("quota 100/week anchor " + std::to_string(any(1, 7)) + " in Europe/Berlin rollover " +
              std::to_string(any(1, 150)) + " for " + std::to_string(any(1, 12)) + " periods");
    QuotaState once;
    int64_t now_ns = kStart;
    for (int i = 0; i < 10; ++i) {
      Hit(limit, &once, now_ns, any(1, 120));
      now_ns += any(0, 20) * kDay;
    }
    QuotaState each = once;
    const int64_t weeks = any(1, 20);
    for (int64_t week = 1; week <= weeks; ++week) {
      now_ns += 7 * kDay;
      if (Hit(limit, &each, now_ns, 1).allowed) RefundQuota(limit, &each, now_ns, 1);
    }
    if (Hit(limit, &once, now_ns, 1).allowed) RefundQuota(limit, &once, now_ns, 1);
    EXPECT_EQ(PackQuota(once), PackQuota(each));
  }
}

TEST(QuotaStep, UnpacksEveryPackedState) {
  const Limit limit = Quota("quota 100/month rollover 50 for 3 periods");
  QuotaState state;
  EXPECT_EQ(PackQuota(state), "");
  for (int i = 0; i < 8; ++i) {
    const int64_t now_ns = kStart + i * 20 * kDay;
    Hit(limit, &state, now_ns, 30 + i);
    ASSERT_TRUE(AddTopUp(limit, &state, now_ns,
                         {{5 + i, 0}, kStart / kSecond + (i + 9) * 86'400 * 20, i - 4})
                    .ok());
    const std::string bytes = PackQuota(state);
    const std::optional<QuotaState> read = UnpackQuota(bytes);
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(PackQuota(*read), bytes);
    EXPECT_EQ(read->top_ups, state.top_ups);
    for (size_t size = 1; size < bytes.size(); ++size) {
      const std::optional<QuotaState> part = UnpackQuota(bytes.substr(0, size));
      if (part.has_value()) {
        EXPECT_LT(part->top_ups.size(), state.top_ups.size());
      }
    }
  }
}

TEST(QuotaStep, ReadsAnyBytesWithoutFailing) {
  const Limit limit = Quota("quota 100/month rollover 50 for 3 periods");
  QuotaState state;
  Hit(limit, &state, kStart, 30);
  const std::string bytes = PackQuota(state);
  std::mt19937 random(3);
  for (int round = 0; round < 20'000; ++round) {
    std::string other = bytes;
    for (int i = 0; i < 3; ++i) other[random() % other.size()] = static_cast<char>(random());
    std::optional<QuotaState> read = UnpackQuota(other);
    if (!read.has_value()) continue;
    EXPECT_GE(PeekQuota(limit, *read, kStart, 1).remaining(), 0);
    EXPECT_GE(StatusOfQuota(limit, *read, kStart).available, 0);
    Hit(limit, &*read, kStart, 1);
  }
}

TEST(QuotaStep, AcceptsUpToSixteenTopUps) {
  const Limit limit = Quota("quota 1/month");
  QuotaState state;
  for (int i = 0; i < QuotaTerms::kMostTopUps; ++i) {
    ASSERT_TRUE(AddTopUp(limit, &state, kStart, {{1, 0}}).ok());
  }
  EXPECT_THAT(std::string(AddTopUp(limit, &state, kStart, {{1, 0}}).message()),
              HasSubstr("expected at most 16"));
  EXPECT_TRUE(Hit(limit, &state, kStart, 2).allowed);  // a unit of the base and one of a top-up
  EXPECT_TRUE(AddTopUp(limit, &state, kStart, {{1, 0}}).ok());
  EXPECT_FALSE(AddTopUp(limit, &state, kStart, {{QuotaTopUp::kMostUnits, 0}}).ok());
  EXPECT_FALSE(AddTopUp(limit, &state, kStart, {{0, 0}}).ok());
}

class QuotaStores : public ::testing::TestWithParam<bool> {
 protected:
  QuotaStores() {
    std::string name = (std::filesystem::temp_directory_path() / "tidegate-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    store_ = GetParam() ? std::shared_ptr<Store>(*ShmStore::Open(directory_ + "/table"))
                        : std::shared_ptr<Store>(*MemoryStore::Create());
  }
  ~QuotaStores() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Limiter> Make(std::string_view text) {
    return *Limiter::Create({Quota(text)}, store_, clock_);
  }

  std::string directory_;
  std::shared_ptr<Store> store_;
  std::shared_ptr<ManualClock> clock_ = std::make_shared<ManualClock>(kStart);
};
INSTANTIATE_TEST_SUITE_P(Stores, QuotaStores, ::testing::Bool(),
                         [](const auto& store) { return store.param ? "shm" : "memory"; });

TEST_P(QuotaStores, ThreadsSpendEachUnitOnce) {
  const auto limiter = Make("quota 1000/month rollover 500");
  ASSERT_TRUE(limiter->TopUp(0, "key", {{500, 0}}).ok());
  std::atomic<int64_t> passed{0};
  RunThreads(4, [&](int) {
    for (int i = 0; i < 300; ++i) {
      if (limiter->Hit("key", 2).allowed) passed += 2;
    }
  });
  EXPECT_EQ(passed, 1500);
  const QuotaStatus status = *limiter->StatusOf(0, "key");
  EXPECT_EQ(status.used, 1500);
  EXPECT_EQ(status.available, 0);
  ASSERT_EQ(limiter->TakeEvents().size(), 2U);
}

TEST_P(QuotaStores, KeysAreCountedSeparatelyAndCanBeReset) {
  const auto limiter = Make("quota 10/month rollover 5");
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(limiter->Hit("key" + std::to_string(i), 1 + i % 10).allowed);
  }
  for (int i = 0; i < 200; ++i) {
    const std::string key = "key" + std::to_string(i);
    EXPECT_EQ(limiter->Peek(key).remaining(), 9 - i % 10);
    limiter->Refund(key, 1);
    EXPECT_EQ(limiter->Peek(key).remaining(), 10 - i % 10);
    limiter->Reset(key);
    EXPECT_EQ(limiter->StatusOf(0, key)->used, 0);
  }
}

TEST_P(QuotaStores, KeepTheStateForAYear) {
  const auto limiter = Make("quota 10/month rollover 5");
  ASSERT_TRUE(limiter->Hit("key", 10).allowed);
  clock_->AdvanceNs(300 * kDay);
  EXPECT_EQ(limiter->StatusOf(0, "key")->available, 15);
  clock_->AdvanceNs(120 * kDay);
  EXPECT_EQ(limiter->StatusOf(0, "key")->available, 10);
}

TEST(QuotaInShm, ProcessesSpendEachUnitOnce) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("tidegate-quota-" + std::to_string(getpid())))
          .string();
  const auto limiter_of = [&path] {
    return *Limiter::Create({Quota("quota 400/month rollover 9")}, *ShmStore::Open(path),
                            std::make_shared<ManualClock>(kStart));
  };
  const auto limiter = limiter_of();
  std::vector<pid_t> children;
  for (int child = 0; child < 3; ++child) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      const auto own = limiter_of();
      int passed = 0;
      for (int i = 0; i < 200; ++i) passed += own->Hit("key").allowed ? 1 : 0;
      _exit(passed);
    }
    children.push_back(pid);
  }
  int passed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    passed += WEXITSTATUS(status);
  }
  EXPECT_EQ(passed, 400);
  EXPECT_EQ(limiter->StatusOf(0, "key")->used, 400);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tidegate::testing
