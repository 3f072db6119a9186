// Compares Replay() and the memory store with tests/vectors/*.json. tests/vectors/README.md
// explains the fields.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing.h"
#include "tidegate/limiter.h"
#include "tidegate/replay.h"

namespace tidegate {
namespace {

using nlohmann::json;
using testing::Fixture;

struct Call {
  std::string op;
  std::string key;
  int64_t now_ns;
  int64_t cost;
  json expect;
};

struct Case {
  std::string name;
  std::vector<Limit> limits;
  std::vector<Call> calls;
};

Limit LimitOf(const json& j) {
  LimitSpec spec;
  spec.count = j.at("count");
  spec.period_ns = j.at("period_ns");
  if (!j.at("burst").is_null()) spec.burst = j.at("burst").get<int64_t>();
  spec.algorithm = *ParseAlgorithm(j.at("algorithm").get<std::string>());
  if (!j.at("calendar").is_null()) {
    const bool month = j.at("calendar") == "month";
    spec.calendar = month ? Calendar::kMonth : Calendar::kYear;
    spec.calendar_units = j.at("calendar_n");
    constexpr int64_t kDayNs = 86'400'000'000'000;
    spec.period_ns = (month ? 30 : 365) * kDayNs * spec.calendar_units;
  }
  return testing::MakeLimit(spec);
}

std::vector<Case> CasesOf(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<Case> cases;
  for (const json& j : json::parse(in)) {
    Case c;
    c.name = j.at("name");
    for (const json& limit : j.at("limits")) c.limits.push_back(LimitOf(limit));
    for (const json& call : j.at("calls")) {
      c.calls.push_back({call.at("op"), "key:" + std::to_string(call.at("key").get<int>()),
                         call.at("now_ns"), call.at("cost"), call.value("expect", json())});
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

json Told(const Decision& d) {
  return {
      {"allowed", d.allowed},
      {"limit", d.limit->capacity()},
      {"remaining", d.remaining()},
      {"retry_after_ns", d.retry_after_ns == Decision::kNever ? json() : json(d.retry_after_ns)},
      {"reset_after_ns", d.reset_after_ns},
      {"delay_ns", d.delay_ns},
      {"rule_index", d.rule}};
}

class VectorsTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<Case> cases() const {
    return CasesOf(std::filesystem::path(TIDEGATE_VECTORS) / (GetParam() + ".json"));
  }
};

TEST_P(VectorsTest, AgreeWithTheMemoryStore) {
  for (const Case& c : cases()) {
    Fixture f(c.limits);
    for (size_t i = 0; i < c.calls.size(); ++i) {
      const Call& call = c.calls[i];
      f.clock->SetNs(call.now_ns);
      if (call.op == "refund") {
        f.limiter->Refund(call.key, call.cost);
      } else if (call.op == "reset") {
        f.limiter->Reset(call.key);
      } else {
        ASSERT_TRUE(call.op == "hit" || call.op == "peek") << call.op;
        const Decision d = call.op == "hit" ? f.limiter->Hit(call.key, call.cost)
                                            : f.limiter->Peek(call.key, call.cost);
        EXPECT_EQ(Told(d), call.expect) << c.name << ", call " << i;
        if (HasFailure()) return;
      }
    }
  }
}

// Replay has only hits: peeks are skipped, and a case ends at its first refund.
TEST_P(VectorsTest, AgreeWithReplay) {
  size_t compared = 0;
  for (const Case& c : cases()) {
    std::vector<ReplayEvent> events;
    std::vector<size_t> at;
    for (size_t i = 0; i < c.calls.size(); ++i) {
      const Call& call = c.calls[i];
      if (call.op == "peek") continue;
      if (call.op != "hit") break;
      events.push_back({call.key, call.now_ns, call.cost});
      at.push_back(i);
    }
    const std::vector<Decision> decisions = Replay(c.limits, events);
    for (size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(Told(decisions[i]), c.calls[at[i]].expect) << c.name << ", call " << at[i];
      if (HasFailure()) return;
    }
    compared += events.size();
  }
  EXPECT_GT(compared, 100u);
}

std::vector<std::string> Files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TIDEGATE_VECTORS)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string FileName(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Files, VectorsTest, ::testing::ValuesIn(Files()), FileName);

}  // namespace
}  // namespace tidegate
