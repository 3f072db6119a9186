// The time that the service of checks adds to a decision: a whole call without the network, and its
// parts.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "server/checks/check_service.h"
#include "tidegate/memory_store.h"

namespace tidegate::server {
namespace {

constexpr std::string_view kJson =
    R"({"userId":"user123","apiKey":"key_abc","endpoint":"/api/posts","tier":"premium"})";
// CheckRequest{attributes: {"user": "user123", "endpoint": "/api/posts", "tier": "premium"}}
constexpr std::string_view kMessage =
    "\x0a\x0f\x0a\x04user\x12\x07user123\x0a\x16\x0a\x08"
    "endpoint\x12\x0a/api/posts\x0a\x0f\x0a\x04tier\x12\x07premium";

std::unique_ptr<CheckService> MakeService(bool requires_token) {
  RuleSetSpec spec;
  spec.tiers = {"free", "premium"};
  spec.default_tier = "free";
  Rule rule;
  rule.id = "api";
  rule.by = {"user"};
  rule.condition.endpoints = {"/api/**"};
  rule.limits = {{"free", {*Limit::Parse("100/minute")}},
                 {"premium", {*Limit::Parse("1000000000/hour")}}};
  spec.rules = {std::move(rule)};
  std::vector<RuleProblem> problems;
  auto rules = RuleSet::Compile(std::move(spec), &problems);
  auto store = std::make_shared<TimedStore>(*MemoryStore::Create(), nullptr);
  CheckOptions options;
  options.requires_token = requires_token;
  return std::make_unique<CheckService>(*RuleLimiter::Create(std::move(rules), std::move(store)),
                                        std::move(options), std::make_shared<Recorder>());
}

Request Post(std::string_view path, std::string_view body) {
  Request request;
  request.method = "POST";
  request.path = path;
  request.body = body;
  return request;
}

void Ask(benchmark::State& state, const Request& request) {
  const auto service = MakeService(/*requires_token=*/false);
  for (auto _ : state) {
    Answer answer;
    service->Handle(request, &answer, [] { return std::unique_ptr<Pending>(); });
    if (answer.http_status != 200 || answer.grpc_status != GrpcStatus::kOk) {
      state.SkipWithError("the call failed");
    }
    benchmark::DoNotOptimize(answer.body.data());
  }
}

void BM_RestCheck(benchmark::State& state) {
  static constexpr Header kHeaders[] = {{"host", "localhost"},
                                        {"content-type", "application/json"}};
  Request request = Post("/v1/ratelimit/check", kJson);
  request.headers = kHeaders;
  Ask(state, request);
}
BENCHMARK(BM_RestCheck);

void BM_GrpcCheck(benchmark::State& state) {
  Request request = Post("/tidegate.v1.RateLimiter/Check", kMessage);
  request.is_grpc = true;
  Ask(state, request);
}
BENCHMARK(BM_GrpcCheck);

void BM_Record(benchmark::State& state) {
  Recorder recorder;
  std::vector<std::string> users;
  for (int i = 0; i < 1000; ++i) users.push_back("user" + std::to_string(i));
  size_t i = 0;
  for (auto _ : state) {
    recorder.Record(
        {users[i], "/api/posts", {}, "premium", "203.0.113.9", {.allowed = 1, .cost = 1}});
    if (++i == users.size()) i = 0;
  }
}
BENCHMARK(BM_Record);

void BM_TierOfAUser(benchmark::State& state) {
  TiersBuilder builder;
  for (int i = 0; i < state.range(0); ++i) {
    if (!builder.Add("user" + std::to_string(i), i % 7 == 0 ? "premium" : "free").ok()) return;
  }
  const auto tiers = std::move(builder).Finish();
  int64_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(tiers->Of("user" + std::to_string(i)));
    i = (i + 7919) % state.range(0);
  }
  state.counters["bytes_a_user"] =
      static_cast<double>(tiers->bytes()) / static_cast<double>(tiers->size());
}
BENCHMARK(BM_TierOfAUser)->Arg(1000)->Arg(1'000'000);

void BM_RoleOfAToken(benchmark::State& state) {
  std::vector<Tokens::Entry> entries(static_cast<size_t>(state.range(0)));
  const Tokens tokens(std::move(entries));
  const std::string token(43, 't');
  for (auto _ : state) benchmark::DoNotOptimize(tokens.RoleOf(token));
}
BENCHMARK(BM_RoleOfAToken)->Arg(1)->Arg(100);

}  // namespace
}  // namespace tidegate::server
