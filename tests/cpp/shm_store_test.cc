#include "tidegate/shm_store.h"
#include "table/table.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing.h"
#include "tidegate/limiter.h"

namespace tidegate::testing {
namespace {

using ::testing::HasSubstr;

class ShmStoreTest : public ::testing::TestWithParam<Algorithm> {
 protected:
  ShmStoreTest() {
    std::string name = (std::filesystem::temp_directory_path() / "tidegate-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    path_ = directory_ + "/table";
  }
  ~ShmStoreTest() override { std::filesystem::remove_all(directory_); }

  std::shared_ptr<ShmStore> Open(int64_t capacity = 3000) {
    auto store = ShmStore::Open(path_, {.capacity = capacity});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  std::unique_ptr<Limiter> MakeLimiter(const Limit& limit, std::shared_ptr<Clock> clock) {
    return *Limiter::Create({limit}, Open(), std::move(clock));
  }

  absl::Status Refusal() { return ShmStore::Open(path_).status(); }

  // Overwrites bytes of the header. With `sign`, also updates the checksum.
  void Patch(size_t offset, const std::string& bytes, bool sign) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    std::string header(104, '\0');
    file.read(header.data(), static_cast<std::streamsize>(header.size()));
    header.replace(offset, bytes.size(), bytes);
    file.seekp(0);
    file.write(header.data(), static_cast<std::streamsize>(header.size()));
    if (!sign) return;
    const uint64_t checksum = XXH3_64bits(header.data(), header.size());
    file.write(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  }

  ino_t Inode() {
    struct stat found;
    EXPECT_EQ(stat(path_.c_str(), &found), 0);
    return found.st_ino;
  }

  std::string directory_;
  std::string path_;
};

INSTANTIATE_TEST_SUITE_P(Algorithms, ShmStoreTest, ::testing::ValuesIn(kAllAlgorithms), NameOf);

TEST_P(ShmStoreTest, TwoMappingsShareOneLimit) {
  auto clock = std::make_shared<ManualClock>(kStart);
  const Limit limit = MakeLimit(10, 3600 * kSecond, GetParam());
  auto one = MakeLimiter(limit, clock);
  auto other = MakeLimiter(limit, clock);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(one->Hit("k"));
    EXPECT_EQ(other->Hit("k").remaining(), 10 - 2 * (i + 1));
  }
  EXPECT_FALSE(one->Hit("k"));
  EXPECT_FALSE(other->Allow("k"));
  other->Refund("k");
  EXPECT_TRUE(one->Hit("k"));
  other->Reset("k");
  EXPECT_EQ(one->Peek("k").remaining(), 10);
}

TEST_P(ShmStoreTest, ARefundReturnsTheUnitsThatItGaveBack) {
  const auto store = Open();
  const BoundLimit limit = store->Bind(MakeLimit(10, 3600 * kSecond, GetParam()), "test");
  const Moment now{kStart, /*confirmed=*/true};
  EXPECT_EQ(store->Refund({"k", &limit, 3}, now), 0);
  EXPECT_TRUE(store->Hit({"k", &limit, 7}, now).allowed);
  EXPECT_EQ(store->Refund({"k", &limit, 3}, now), 3);
  EXPECT_EQ(store->Refund({"k", &limit, 30}, now), 4);
  EXPECT_EQ(store->Peek({"k", &limit, 1}, now).remaining(), 10);
}

TEST_P(ShmStoreTest, ThreadsAdmitExactlyN) {
  auto clock = std::make_shared<ManualClock>(kStart);
  auto limiter = MakeLimiter(MakeLimit(100, 3600 * kSecond, GetParam()), clock);
  std::atomic<int> admitted{0};
  RunThreads(8, [&](int) {
    for (int i = 0; i < 40; ++i) admitted += limiter->Allow("k");
  });
  EXPECT_EQ(admitted, 100);
}

TEST_P(ShmStoreTest, CostsAreAllOrNothing) {
  auto clock = std::make_shared<ManualClock>(kStart);
  auto limiter = MakeLimiter(MakeLimit(100, 3600 * kSecond, GetParam()), clock);
  std::atomic<int64_t> admitted{0};
  RunThreads(6, [&](int thread) {
    for (int i = 0; i < 20; ++i) admitted += (thread + 1) * limiter->Allow("k", thread + 1);
  });
  EXPECT_LE(admitted, 100);
  EXPECT_EQ(limiter->Peek("k").remaining(), 100 - admitted);
}

TEST_F(ShmStoreTest, OfCostsBeyondTheCapacityAtOnceOnePasses) {
  auto clock = std::make_shared<ManualClock>(kStart);
  for (const Algorithm algorithm : kAllAlgorithms) {
    if (algorithm == Algorithm::kConcurrency) continue;  // its keys owe nothing
    const Limit limit = *Limit::Create(
        {.count = 10, .period_ns = 3600 * kSecond, .algorithm = algorithm, .oversize_owes = true});
    auto limiter = MakeLimiter(limit, clock);
    constexpr int kKeys = 40;
    std::vector<std::atomic<int>> passed(kKeys);
    RunThreads(4, [&](int) {
      for (int i = 0; i < kKeys; ++i) passed[i] += limiter->Allow(std::to_string(i), 30);
    });
    for (int i = 0; i < kKeys; ++i) {
      ASSERT_EQ(passed[i], 1) << AlgorithmName(algorithm);
      ASSERT_EQ(limiter->Peek(std::to_string(i)).debt(), 20) << AlgorithmName(algorithm);
    }
  }
}

TEST_P(ShmStoreTest, AChildOfForkGoesOn) {
  auto clock = std::make_shared<ManualClock>(kStart);
  auto limiter = MakeLimiter(MakeLimit(10, 3600 * kSecond, GetParam()), clock);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(limiter->Hit("k"));
  EXPECT_EQ(InChild([&] {
              for (int i = 0; i < 3; ++i) {
                if (!limiter->Hit("k")) return false;
              }
              return true;
            }),
            "ok");
  EXPECT_EQ(limiter->Peek("k").remaining(), 3);
}

TEST_F(ShmStoreTest, ProcessesThatCreateTheFileAtOnceShareIt) {
  std::vector<std::shared_ptr<ShmStore>> stores(8);
  RunThreads(8, [&](int i) { stores[static_cast<size_t>(i)] = Open(); });
  const Limit limit = MakeLimit(1, kSecond);
  const Fingerprint tag = stores[0]->Bind(limit, "tg").tag;
  for (const auto& store : stores) EXPECT_EQ(store->Bind(limit, "tg").tag, tag);
  const std::filesystem::directory_iterator files(directory_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(ShmStoreTest, AFileOfAnEarlierBootIsReplacedOnce) {
  auto clock = std::make_shared<ManualClock>(kStart);
  const Limit limit = MakeLimit(10, 3600 * kSecond);
  MakeLimiter(limit, clock)->Hit("k");
  // Kept open, because otherwise the new file could get its inode number.
  const std::ifstream held(path_);
  const ino_t before = Inode();
  Patch(56, std::string(16, '\x5a'), /*sign=*/true);
  std::vector<std::shared_ptr<ShmStore>> stores(8);
  RunThreads(8, [&](int i) { stores[static_cast<size_t>(i)] = Open(); });
  EXPECT_NE(Inode(), before);
  const Fingerprint tag = stores[0]->Bind(limit, "tg").tag;
  for (const auto& store : stores) EXPECT_EQ(store->Bind(limit, "tg").tag, tag);
  EXPECT_EQ(MakeLimiter(limit, clock)->Peek("k").remaining(), 10);
}

TEST_F(ShmStoreTest, ADamagedFileIsRefused) {
  Open();
  const ino_t before = Inode();
  Patch(72, "another seed", /*sign=*/false);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("checksum"));
  EXPECT_EQ(Inode(), before);
  EXPECT_TRUE(ShmStore::Remove(path_).ok());
  Open();
  // The checksum is right, but the sizes contradict each other.
  Patch(32, std::string("\x07\0\0\0\0\0\0\0", 8), /*sign=*/true);
  EXPECT_THAT(std::string(Refusal().message()), HasSubstr("another build"));
}

TEST_F(ShmStoreTest, TheFileHasTheDocumentedLayout) {
  const auto store = Open(3000);
  EXPECT_EQ(store->bytes(), 4096 + ShmStore::kBoardBytes + Table::kSliceBytes);
  EXPECT_EQ(std::filesystem::file_size(path_), store->bytes());
  const auto large = ShmStore::Open(directory_ + "/large", {.capacity = 100'000});
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_LE(static_cast<double>((*large)->bytes()) / 100'000, 48);
}

TEST_F(ShmStoreTest, AllProcessesUseTheClockOfTheFile) {
  const auto store = Open();
  // The file of a process that started at another Unix time.
  Patch(48, std::string(8, '\0'), /*sign=*/true);
  const auto other = Open();
  EXPECT_EQ(other->clock_shift().base_ns, -SystemClock::Get().epoch_offset_ns());
  auto limiter = *Limiter::Create({MakeLimit(1, kSecond)}, other);
  const int64_t before = other->NowNs();
  const int64_t now = limiter->NowNs();
  EXPECT_LE(before, now);
  EXPECT_LE(now, other->NowNs());
}

TEST_F(ShmStoreTest, TheCensusCountsTheKeys) {
  const auto store = Open();
  auto clock = std::make_shared<ManualClock>(kStart);
  auto limiter = *Limiter::Create({MakeLimit(10, 10 * kSecond)}, store, clock);
  for (int i = 0; i < 20; ++i) limiter->Hit("k" + std::to_string(i));
  limiter->Hit("k7", 5);
  ShmStore::Census census = store->Count(kStart, 3);
  EXPECT_EQ(census.live, 20);
  EXPECT_EQ(census.idle, 0);
  ASSERT_EQ(census.busiest.size(), 3u);
  EXPECT_EQ(census.busiest[0].new_in_ns, 6 * kSecond);
  EXPECT_EQ(census.busiest[1].new_in_ns, 1 * kSecond);
  census = store->Count(kStart + 5 * kSecond, 3);
  EXPECT_EQ(census.live, 1);
  EXPECT_EQ(census.idle, 19);
}

TEST_F(ShmStoreTest, NamesArePathsOfFilesOfThisUser) {
#if defined(__linux__) && !defined(TIDEGATE_PORTABLE)
  EXPECT_EQ(*ShmStore::PathOf("api"), "/dev/shm/tidegate-" + std::to_string(geteuid()) + "-api");
#else
  EXPECT_TRUE(absl::IsInvalidArgument(ShmStore::PathOf("api").status()));
#endif
  EXPECT_EQ(*ShmStore::PathOf("/x/y"), "/x/y");
  for (const char* name : {"", "a/b", "a b", "/", "/x/", "\xff"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ShmStore::PathOf(name).status())) << name;
  }
}

}  // namespace
}  // namespace tidegate::testing
