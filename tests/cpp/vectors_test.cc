// Compares Replay() and the memory store with tests/vectors/*.json. tests/vectors/README.md
// explains the fields.
#include <simdjson.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testing.h"
#include "tidegate/limiter.h"
#include "tidegate/replay.h"

namespace tidegate::testing {
namespace {

namespace dom = simdjson::dom;

struct Call {
  std::string op;
  std::string key;
  int64_t now_ns;
  int64_t cost;
  std::string expect;  // the JSON of the answer, as TextOf() writes it; empty where there is none
};

struct Case {
  std::string name;
  std::vector<Limit> limits;
  std::vector<Call> calls;
};

Limit LimitOf(const dom::element& limit) {
  LimitSpec spec;
  spec.count = limit["count"];
  spec.period_ns = limit["period_ns"];
  if (!limit["burst"].is_null()) spec.burst = limit["burst"].get_int64().value();
  int64_t max_debt = 0;
  if (limit["max_debt"].get(max_debt) == simdjson::SUCCESS) spec.max_debt = max_debt;
  spec.oversize_owes = limit["oversize"].error() == simdjson::SUCCESS;
  spec.algorithm = *ParseAlgorithm(limit["algorithm"].get_string().value());
  if (!limit["calendar"].is_null()) {
    const bool month = limit["calendar"].get_string().value() == "month";
    spec.calendar = month ? Calendar::kMonth : Calendar::kYear;
    spec.calendar_units = limit["calendar_n"];
    constexpr int64_t kDayNs = 86'400'000'000'000;
    spec.period_ns = (month ? 30 : 365) * kDayNs * spec.calendar_units;
  }
  return MakeLimit(spec);
}

Call CallOf(const dom::element& call) {
  dom::element expect;
  const bool is_answered = call["expect"].get(expect) == simdjson::SUCCESS;
  return {std::string(call["op"].get_string().value()),
          absl::StrCat("key:", call["key"].get_int64().value()), call["now_ns"], call["cost"],
          is_answered ? simdjson::minify(expect) : ""};
}

std::vector<Case> CasesOf(const std::filesystem::path& file) {
  std::vector<Case> cases;
  dom::parser parser;
  for (const dom::element each : parser.load(file.string()).get_array()) {
    Case c;
    c.name = std::string(each["name"].get_string().value());
    for (const dom::element limit : each["limits"].get_array()) c.limits.push_back(LimitOf(limit));
    for (const dom::element call : each["calls"].get_array()) c.calls.push_back(CallOf(call));
    cases.push_back(std::move(c));
  }
  return cases;
}

// `has_debt`: whether the case is one of debts.
std::string TextOf(const Decision& d, bool has_debt) {
  const std::string retry =
      d.retry_after_ns == Decision::kNever ? "null" : absl::StrCat(d.retry_after_ns);
  return absl::StrCat(
      "{\"allowed\":", d.allowed ? "true" : "false", ",\"limit\":", d.limit->capacity(),
      ",\"remaining\":", d.remaining(), ",\"retry_after_ns\":", retry,
      ",\"reset_after_ns\":", d.reset_after_ns, ",\"delay_ns\":", d.delay_ns,
      ",\"rule_index\":", d.rule, has_debt ? absl::StrCat(",\"debt\":", d.debt()) : "",
      d.charged == Decision::kUnset ? "" : absl::StrCat(",\"charged\":", d.charged), "}");
}

bool HasDebt(const Call& call) { return call.expect.find("\"debt\"") != std::string::npos; }

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
        ASSERT_TRUE(call.op == "hit" || call.op == "peek" || call.op == "charge") << call.op;
        const Decision d = call.op == "hit"    ? f.limiter->Hit(call.key, call.cost)
                           : call.op == "peek" ? f.limiter->Peek(call.key, call.cost)
                                               : f.limiter->ChargeInFull(call.key, call.cost);
        EXPECT_EQ(TextOf(d, HasDebt(call)), call.expect) << c.name << ", call " << i;
        if (HasFailure()) return;
      }
    }
  }
}

// Replay has only hits, and what they used: a charge that follows a hit at once. Peeks are skipped,
// and a case ends at its first other call.
TEST_P(VectorsTest, AgreeWithReplay) {
  size_t compared = 0;
  for (const Case& c : cases()) {
    std::vector<ReplayEvent> events;
    std::vector<size_t> at;
    for (size_t i = 0; i < c.calls.size(); ++i) {
      const Call& call = c.calls[i];
      if (call.op == "peek") continue;
      const Call* const before = i == 0 ? nullptr : &c.calls[i - 1];
      if (call.op == "charge" && before != nullptr && before->op == "hit" &&
          before->key == call.key && before->now_ns == call.now_ns &&
          before->expect.starts_with("{\"allowed\":true")) {
        events.back().used = before->cost + call.cost;
        continue;
      }
      if (call.op != "hit") break;
      events.push_back({call.key, call.now_ns, call.cost});
      at.push_back(i);
    }
    const std::vector<Decision> decisions = Replay(c.limits, events);
    for (size_t i = 0; i < events.size(); ++i) {
      const Call& call = c.calls[at[i]];
      EXPECT_EQ(TextOf(decisions[i], HasDebt(call)), call.expect) << c.name << ", call " << at[i];
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
}  // namespace tidegate::testing
