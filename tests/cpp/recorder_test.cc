#include "server/checks/recorder.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "testing.h"

namespace tidegate::server {
namespace {

using tidegate::testing::RunThreads;

TEST(RecorderTest, SumsByCallerEndpointAndRule) {
  Recorder recorder;
  recorder.Record({"42", "/a", "", "free", "10.0.0.1", {.allowed = 1, .cost = 3}});
  recorder.Record({"42", "/a", "", "pro", "10.0.0.2", {.allowed = 1, .degraded = 1, .cost = 4}});
  recorder.Record({"42", "/a", "api", "free", "10.0.0.1", {.refused = 1}});
  auto rows = recorder.Drain();
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.rule < b.rule; });
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].tier, "free");
  EXPECT_EQ(rows[0].caller_ip, "10.0.0.1");
  EXPECT_EQ(rows[0].sums.allowed, 2);
  EXPECT_EQ(rows[0].sums.degraded, 1);
  EXPECT_EQ(rows[0].sums.cost, 7);
  EXPECT_EQ(rows[1].rule, "api");
  EXPECT_EQ(rows[1].sums.refused, 1);
  EXPECT_TRUE(recorder.Drain().empty());
  EXPECT_EQ(recorder.rows(), 0);
}

TEST(RecorderTest, SumsByAddressWithoutAUser) {
  Recorder recorder;
  for (const char* const ip : {"10.0.0.1", "10.0.0.2", "10.0.0.1"}) {
    recorder.Record({"", "/a", "", "", ip, {.allowed = 1}});
    recorder.Record({"42", "/a", "", "", ip, {.allowed = 1}});
  }
  auto rows = recorder.Drain();
  ASSERT_EQ(rows.size(), 3u);
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.user + a.caller_ip < b.user + b.caller_ip;
  });
  EXPECT_EQ(rows[0].caller_ip, "10.0.0.1");
  EXPECT_EQ(rows[0].sums.allowed, 2);
  EXPECT_EQ(rows[1].caller_ip, "10.0.0.2");
  EXPECT_EQ(rows[1].sums.allowed, 1);
  EXPECT_EQ(rows[2].sums.allowed, 3);
}

TEST(RecorderTest, SumsDecisionsWithoutAFreeRowInOneRow) {
  Recorder recorder(2);
  for (int i = 0; i < 10; ++i) {
    recorder.Record({std::to_string(i), "/a", "", "", "", {.allowed = 1, .cost = 5}});
  }
  recorder.Record({"0", "/a", "", "", "", {.allowed = 1, .cost = 5}});
  EXPECT_EQ(recorder.dropped(), 8);
  const auto rows = recorder.Drain();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_TRUE(rows.back().is_rest);
  EXPECT_EQ(rows.back().sums.allowed, 8);
  int64_t cost = 0;
  for (const auto& row : rows) cost += row.sums.cost;
  EXPECT_EQ(cost, 55);
}

TEST(RecorderTest, CutsTextsToTheirBound) {
  Recorder recorder;
  recorder.Record({std::string(1000, 'u'), std::string(1000, 'e'), "", "", "", {.allowed = 1}});
  const auto rows = recorder.Drain();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].user, std::string(Recorder::kMostText, 'u'));
  EXPECT_EQ(rows[0].endpoint.size(), Recorder::kMostText);
}

TEST(RecorderTest, LosesNoRecordOfManyThreadsWhileItIsDrained) {
  constexpr int kThreads = 4;
  constexpr int kEach = 20'000;
  Recorder recorder(8);
  std::atomic<bool> is_over{false};
  int64_t allowed = 0;
  const auto drain = [&] {
    for (const auto& row : recorder.Drain()) allowed += row.sums.allowed;
  };
  std::thread drainer([&] {
    while (!is_over.load()) drain();
  });
  RunThreads(kThreads, [&](int thread) {
    for (int i = 0; i < kEach; ++i) {
      recorder.Record({std::to_string((thread + i) % 16), "/a", "", "", "", {.allowed = 1}});
    }
  });
  is_over.store(true);
  drainer.join();
  drain();
  EXPECT_EQ(allowed, kThreads * kEach);
}

}  // namespace
}  // namespace tidegate::server
