// Envoy's rate limit service for tests, on a store that decides at once or on one that answers
// later.
#ifndef TIDEGATE_TESTS_CPP_ENVOY_TESTING_H_
#define TIDEGATE_TESTS_CPP_ENVOY_TESTING_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/envoy/envoy_service.h"
#include "testing.h"
#include "wrapped_store.h"

namespace tidegate::server::envoy {

using tidegate::testing::kSecond;

inline constexpr int64_t kMidnight = 1'700'006'400 * kSecond;

// Answers on a thread of its own, after Flush().
class SlowStore final : public tidegate::testing::WrappedStore {
 public:
  SlowStore() : WrappedStore(tidegate::testing::MakeStore()) {}
  ~SlowStore() override {
    for (std::thread& thread : threads_) {
      // The last call may hold the last reference to the store.
      const bool is_own = thread.get_id() == std::this_thread::get_id();
      is_own ? thread.detach() : thread.join();
    }
  }

  bool blocks() const override { return true; }

  std::optional<Decision> Submit(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                 const Moment& moment, Clock clock, Outcomes* outcomes,
                                 Done done) override {
    ++submitted;
    std::vector<std::string> keys;
    std::vector<Charge> charges(plan.begin(), plan.end());
    for (const Charge& charge : plan) keys.emplace_back(charge.key);
    std::lock_guard lock(mutex_);
    waiting_.push_back([=, this, keys = std::move(keys), charges = std::move(charges)]() mutable {
      for (size_t i = 0; i < keys.size(); ++i) charges[i].key = keys[i];
      const auto submit = [&](const Moment& at) {
        return *inner_->Submit(op, charges, admitted_ns, at, clock, outcomes, nullptr);
      };
      Decision decision = submit(moment);
      if (decision.behind && clock != nullptr) decision = submit({clock(), /*confirmed=*/true});
      decision.at_ns = moment.now_ns;
      if (outcomes != nullptr) {
        for (Decision& each : *outcomes) each.at_ns = moment.now_ns;
      }
      done(decision);
    });
    return std::nullopt;
  }

  void Flush() override {
    std::lock_guard lock(mutex_);
    if (waiting_.empty()) return;
    ++flushed;
    threads_.emplace_back([calls = std::exchange(waiting_, {})]() mutable {
      for (auto& call : calls) call();
    });
  }

  int submitted = 0;
  int flushed = 0;

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> waiting_;
  std::deque<std::thread> threads_;
};

class Sent final : public Pending {
 public:
  Sent(Answer* answer, absl::Notification* sent) : answer_(answer), sent_(sent) {}
  void Send(Answer answer) override {
    *answer_ = std::move(answer);
    sent_->Notify();
  }

 private:
  Answer* const answer_;
  absl::Notification* const sent_;
};

enum class Kind { kAtOnce, kSlow };

class EnvoyServiceTest : public ::testing::TestWithParam<Kind> {
 protected:
  EnvoyServiceTest() {
    if (GetParam() == Kind::kSlow) {
      slow = std::make_shared<SlowStore>();
      store = slow;
    } else {
      store = tidegate::testing::MakeStore();
    }
    Make({});
  }

  void Make(const ServiceOptions& options) {
    service = std::make_shared<EnvoyService>(store, clock, "tests", options, recorder);
  }

  DescriptorTree::Id Domain(std::optional<bool> all_or_none = std::nullopt) {
    tree = std::make_shared<DescriptorTree>();
    return *tree->AddDomain({.name = "d", .all_or_none = all_or_none});
  }
  DescriptorTree::Id Add(DescriptorTree::Id parent, DescriptorSpec spec) {
    const auto id = tree->AddDescriptor(parent, std::move(spec));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }
  void Use() { ASSERT_TRUE(service->Use(tree).ok()); }
  // Uses a domain of these descriptors.
  void Use(std::vector<DescriptorSpec> specs) {
    const auto domain = Domain();
    for (DescriptorSpec& spec : specs) Add(domain, std::move(spec));
    Use();
  }

  // The answer to a request over JSON.
  Answer Ask(const std::string& body, std::string_view method = "POST") {
    Request request;
    request.method = method;
    request.path = EnvoyService::kJsonPath;
    request.body = body;
    return AnswerTo(request);
  }
  Answer AnswerTo(const Request& request) {
    Answer answer;
    absl::Notification sent;
    bool took = false;
    const auto later = [&]() -> std::unique_ptr<Pending> {
      took = true;
      return std::make_unique<Sent>(&answer, &sent);
    };
    Answer at_once;
    if (service->Handle(request, &at_once, later)) {
      EXPECT_FALSE(took);
      return at_once;
    }
    EXPECT_TRUE(took);
    service->Flush();
    sent.WaitForNotification();
    return answer;
  }
  // A request of descriptors with one entry each: {"k", "v"}, or with more fields: {"k", "v", "…"}.
  static std::string Body(const std::vector<std::vector<std::string>>& descriptors) {
    std::string body = R"({"domain":"d","descriptors":[)";
    for (size_t i = 0; i < descriptors.size(); ++i) {
      const auto& d = descriptors[i];
      body += (i == 0 ? "" : ",");
      body += R"({"entries":[{"key":")" + d[0] + R"(","value":")" + d[1] + R"("}])";
      if (d.size() > 2) body += "," + d[2];
      body += "}";
    }
    return body + "]}";
  }
  // "200 OK:4 OVER_LIMIT:0": the status, and for each descriptor its code and remaining units.
  std::string Outcome(const std::vector<std::vector<std::string>>& descriptors) {
    return Short(Ask(Body(descriptors)));
  }
  static std::string Short(const Answer& answer) {
    std::string text = std::to_string(answer.http_status);
    const std::string& body = answer.body;
    for (size_t at = body.find("{\"code\":\""); at != std::string::npos;) {
      const size_t next = body.find("{\"code\":\"", at + 1);
      const std::string status = body.substr(at, next == std::string::npos ? next : next - at);
      text += " " + status.substr(9, status.find('"', 9) - 9);
      const size_t left = status.find("\"limitRemaining\":");
      if (left != std::string::npos) {
        const size_t end = status.find_first_not_of("0123456789", left + 17);
        text += ":" + status.substr(left + 17, end - left - 17);
      }
      at = next;
    }
    return text;
  }

  const Counters& CountersOf(const std::string& path, const std::string& domain = "d") {
    rows = service->metrics().rows();
    for (const Metrics::Row& row : rows) {
      if (row.domain == domain && row.path == path) return *row.counters;
    }
    ADD_FAILURE() << "no counters of " << path;
    static const Counters none;
    return none;
  }
  // All counters of a path, as "12 hits, 10 within, 2 near, 2 over, 0 in shadow".
  std::string Counted(const std::string& path) {
    const Counters& of = CountersOf(path);
    return absl::StrCat(of.total_hits.load(), " hits, ", of.within_limit.load(), " within, ",
                        of.near_limit.load(), " near, ", of.over_limit.load(), " over, ",
                        of.shadow_mode.load(), " in shadow");
  }

  // The records, as "user|ip|endpoint|rule allowed refused in-shadow degraded cost".
  std::vector<std::string> Recorded() const {
    std::map<std::string, Sums> sums;  // threads have rows of their own
    for (const Recorder::Row& row : recorder->Drain()) {
      sums[absl::StrCat(row.user, "|", row.caller_ip, "|", row.endpoint, "|", row.rule)].Add(
          row.sums);
    }
    std::vector<std::string> found;
    for (const auto& [name, sum] : sums) {
      found.push_back(absl::StrCat(name, " ", sum.allowed, " ", sum.refused, " ",
                                   sum.refused_in_shadow, " ", sum.degraded, " ", sum.cost));
    }
    return found;
  }
  void Punish(std::string user, bool blocks) {
    service->SetPenalties(std::make_shared<Penalties>(
        std::vector<Penalties::Entry>{{false, std::move(user), blocks, 60 * kSecond}}, clock));
  }

  const std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>(kMidnight);
  std::shared_ptr<SlowStore> slow;
  std::shared_ptr<Store> store;
  std::shared_ptr<EnvoyService> service;
  std::shared_ptr<DescriptorTree> tree;
  std::vector<Metrics::Row> rows;
};

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_TESTS_CPP_ENVOY_TESTING_H_
