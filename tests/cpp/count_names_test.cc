// No two limits share a count: their names differ, however alike their texts, ids and scopes are.
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "redis/protocol/keys.h"
#include "tidegate/fingerprint.h"
#include "tidegate/limit.h"
#include "tidegate/store.h"

namespace tidegate {
namespace {

constexpr Algorithm kAlgorithms[] = {Algorithm::kTokenBucket, Algorithm::kLeakyBucket,
                                     Algorithm::kFixedWindow, Algorithm::kSlidingWindow,
                                     Algorithm::kSlidingLog,  Algorithm::kConcurrency};

Limit Make(std::string_view text, std::string id = "",
           Algorithm algorithm = Algorithm::kTokenBucket) {
  LimitSpec defaults;
  defaults.id = std::move(id);
  defaults.algorithm = algorithm;
  return Limit::Parse(text, defaults).value();
}

struct Named {
  Limit limit;
  std::string scope;
};

// The names by which each kind of store knows the counts.
struct Names {
  Names() : hasher(Hasher::Seed{}) {}

  void Add(const Named& named) {
    if (!counts.insert(CountName(named.limit, named.scope)).second) return;  // drawn before
    redis.insert(redis::KeyPrefix(named.limit, named.scope));
    tags.insert(BindWith(hasher, named.limit, named.scope).tag);
  }
  void ExpectNoTwoEqual() const {
    EXPECT_EQ(redis.size(), counts.size());
    EXPECT_EQ(tags.size(), counts.size());
  }

  const Hasher hasher;
  absl::flat_hash_set<std::string> counts;
  absl::flat_hash_set<std::string> redis;
  absl::flat_hash_set<Fingerprint> tags;
};

TEST(CountNamesTest, AMillionRandomLimitsAndIdsShareNone) {
  std::mt19937_64 random(20'261'124);
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  constexpr int64_t kSecond = 1'000'000'000;
  constexpr int64_t kUnits[] = {1'000'000, kSecond, 60 * kSecond, 3600 * kSecond, 86'400 * kSecond};
  const std::string scopes[] = {"tg", "tg:app.login", "a{b}", std::string(100, 'p')};
  Names names;
  for (int i = 0; names.counts.size() < 1'000'000; ++i) {
    ASSERT_LT(i, 1'100'000);
    LimitSpec spec;
    spec.algorithm = kAlgorithms[draw(0, 5)];
    spec.count = draw(1, 100'000);
    spec.period_ns = draw(1, 100) * kUnits[draw(0, 4)];
    if (IsBucket(spec.algorithm) && draw(0, 3) == 0) spec.burst = draw(1, 1'000);
    // Half of them are rules, whose ids differ in a number as those of tenants do.
    if (i % 2 == 0) {
      spec.id = absl::StrCat("tenant-", draw(0, 999'999), " by user");
      spec.period_ns = kUnits[draw(0, 4)];
    }
    names.Add({Limit::Create(std::move(spec)).value(), scopes[draw(0, 3)]});
  }
  names.ExpectNoTwoEqual();
}

TEST(CountNamesTest, AlikeLimitsShareNone) {
  Names names;
  std::vector<Named> all;
  for (const Algorithm algorithm : kAlgorithms) {
    for (const char* text : {"13971/second", "2024/minute", "1/second", "11/second", "1/1 hours"}) {
      all.push_back({Make(text, "", algorithm), "tg"});
    }
    for (const char* id : {"tenant-32117 by user", "tenant-91288 by user", "1/second"}) {
      all.push_back({Make("1/second", id, algorithm), "tg"});
    }
  }
  // An id or a scope may hold what separates the parts of a name.
  all.push_back({Make("1/second", "a"), "x per 1000000000 0 1:tg"});
  all.push_back({Make("1/second", "a per 1000000000 0 1:x"), "tg"});
  all.push_back({Make("1/second"), "tg:1/second"});
  // Braces are replaced, and long scopes are cut.
  all.push_back({Make("1/second"), "a_b"});
  all.push_back({Make("1/second"), "a{b"});
  all.push_back({Make("1/second"), "a}b"});
  for (const int length : {63, 64, 65, 66}) {
    all.push_back({Make("1/second"), std::string(static_cast<size_t>(length), 'p')});
  }
  for (const Named& named : all) names.Add(named);
  EXPECT_EQ(names.counts.size(), all.size());
  names.ExpectNoTwoEqual();
}

TEST(CountNamesTest, AShortLimitIsReadableInRedis) {
  EXPECT_EQ(redis::KeyPrefix(Make("100/minute"), "tg"), "tg:100/minute");
  EXPECT_EQ(redis::KeyPrefix(Make("100/60 s", "", Algorithm::kFixedWindow), "tg"),
            "tg:f100/minute");
  const std::string digest = redis::KeyPrefix(Make("10/second burst 40"), "tg");
  EXPECT_EQ(digest.size(), 3 + 14);
  EXPECT_EQ(digest.find('/'), std::string::npos);
}

}  // namespace
}  // namespace tidegate
