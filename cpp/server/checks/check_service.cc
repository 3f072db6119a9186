#include "server/checks/check_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/checks/check_json.h"
#include "server/checks/check_proto.h"
#include "server/checks/decide.h"
#include "server/checks/descriptors.h"
#include "server/checks/other_calls.h"
#include "server/checks/reserved_calls.h"
#include "server/checks/rest_requests.h"

namespace tidegate::server {

enum class Ask : uint8_t {
  kCheck,
  kCheckMany,
  kPeek,
  kRefund,
  kReset,
  kStatus,
  kReserve,
  kCommit,
  kExtend,
  kRelease,
  kRestCheck,
  kRestCheckMany,
  kRestStatus,
  kGateway,
};

namespace {

std::string_view NameOf(Role role) {
  constexpr std::string_view kNames[] = {"viewer", "check", "operator", "admin"};
  return kNames[static_cast<size_t>(role)];
}

}  // namespace

struct CheckMethod {
  Ask ask;
  Role least_role;
  std::string_view path;         // a prefix if it ends in "/"
  std::string_view http_method;  // empty for gRPC
  std::string_view also = {};    // another HTTP method

  bool is_grpc() const { return http_method.empty(); }
};

namespace {

constexpr CheckMethod kMethods[] = {
    {Ask::kCheck, Role::kCheck, "/tidegate.v1.RateLimiter/Check", ""},
    {Ask::kRestCheck, Role::kCheck, "/v1/ratelimit/check", "POST"},
    {Ask::kGateway, Role::kCheck, "/v1/ratelimit/auth", "GET", "POST"},
    {Ask::kRestCheckMany, Role::kCheck, "/v1/ratelimit/check-many", "POST"},
    {Ask::kCheckMany, Role::kCheck, "/tidegate.v1.RateLimiter/CheckMany", ""},
    {Ask::kPeek, Role::kViewer, "/tidegate.v1.RateLimiter/Peek", ""},
    {Ask::kRestStatus, Role::kViewer, "/v1/ratelimit/status/", "GET"},
    {Ask::kStatus, Role::kViewer, "/tidegate.v1.RateLimiter/Status", ""},
    {Ask::kReserve, Role::kCheck, "/v1/ratelimit/reserve", "POST"},
    {Ask::kReserve, Role::kCheck, "/tidegate.v1.RateLimiter/Reserve", ""},
    {Ask::kCommit, Role::kCheck, "/v1/ratelimit/commit", "POST"},
    {Ask::kCommit, Role::kCheck, "/tidegate.v1.RateLimiter/Commit", ""},
    {Ask::kExtend, Role::kCheck, "/v1/ratelimit/extend", "POST"},
    {Ask::kExtend, Role::kCheck, "/tidegate.v1.RateLimiter/Extend", ""},
    {Ask::kRelease, Role::kCheck, "/v1/ratelimit/release", "POST"},
    {Ask::kRelease, Role::kCheck, "/tidegate.v1.RateLimiter/Release", ""},
    {Ask::kRefund, Role::kCheck, "/tidegate.v1.RateLimiter/Refund", ""},
    {Ask::kReset, Role::kOperator, "/tidegate.v1.RateLimiter/Reset", ""},
};

const CheckMethod* MethodOf(std::string_view path) {
  for (const CheckMethod& method : kMethods) {
    if (method.path.back() == '/' ? path.starts_with(method.path) : path == method.path) {
      return &method;
    }
  }
  return nullptr;
}

// Returns the problem of a call by the wrong protocol or HTTP method.
std::optional<Problem> WrongCall(const Request& request, const CheckMethod* method,
                                 Answer* answer) {
  if (method == nullptr) {
    return Problem{404, GrpcStatus::kUnimplemented,
                   absl::StrCat("the path is ", Quote(request.path),
                                "; expected one of tidegate.v1.RateLimiter or /v1/ratelimit")};
  }
  if (method->is_grpc() != request.is_grpc) {
    return Problem{415, GrpcStatus::kUnimplemented,
                   method->is_grpc() ? "the path is a method of gRPC; expected a call of gRPC"
                                     : "the path is one of REST; expected a request without gRPC"};
  }
  if (method->is_grpc() || request.method == method->http_method ||
      request.method == method->also) {
    return std::nullopt;
  }
  std::string allowed(method->http_method);
  if (!method->also.empty()) absl::StrAppend(&allowed, ", ", std::string(method->also));
  Problem problem{405, GrpcStatus::kUnimplemented,
                  absl::StrCat("the method is ", Quote(request.method), "; expected ", allowed)};
  answer->headers.emplace_back("allow", std::move(allowed));
  return problem;
}

}  // namespace

std::vector<Route> CheckService::routes() const {
  std::vector<Route> routes;
  for (const CheckMethod& method : kMethods) {
    routes.push_back({std::string(method.http_method), std::string(method.path)});
    if (!method.also.empty()) {
      routes.push_back({std::string(method.also), std::string(method.path)});
    }
  }
  return routes;
}

std::vector<std::string_view> CheckService::descriptors() const { return CheckDescriptors(); }

CheckService::CheckService(std::shared_ptr<RuleLimiter> limiter, CheckOptions options,
                           std::shared_ptr<Recorder> recorder)
    : context_(new CheckContext{std::move(options), std::move(recorder), {}}),
      config_(std::make_shared<CheckConfig>(
          CheckConfig{context_, std::make_shared<BoundRules>(std::move(limiter)),
                      std::make_shared<Tokens>(std::vector<Tokens::Entry>()), nullptr, nullptr})) {}

std::shared_ptr<const CheckConfig> CheckService::config() const {
  const std::lock_guard lock(mutex_);
  return config_;
}

template <typename Set>
void CheckService::Exchange(Set set) {
  std::shared_ptr<const CheckConfig> before;
  {
    const std::lock_guard lock(mutex_);
    auto changed = std::make_shared<CheckConfig>(*config_);
    set(*changed);
    before = std::exchange(config_, std::move(changed));
  }
  // Loops flush only the current rules, so calls submitted to the old ones are flushed here.
  before->rules->Flush();
}

void CheckService::Use(std::shared_ptr<RuleLimiter> limiter) {
  auto rules = std::make_shared<BoundRules>(std::move(limiter));
  Exchange([&](CheckConfig& config) { config.rules = std::move(rules); });
}

void CheckService::SetTokens(std::shared_ptr<const Tokens> tokens) {
  Exchange([&](CheckConfig& config) { config.tokens = std::move(tokens); });
}

void CheckService::SetTiers(std::shared_ptr<const Tiers> tiers) {
  Exchange([&](CheckConfig& config) { config.tiers = std::move(tiers); });
}

void CheckService::SetPenalties(std::shared_ptr<const Penalties> penalties) {
  Exchange([&](CheckConfig& config) { config.penalties = std::move(penalties); });
}

void CheckService::Flush() { config()->rules->Flush(); }

std::optional<Problem> CheckService::Unauthorized(const Request& request, const CheckMethod& method,
                                                  const CheckConfig& config, Answer* answer) {
  if (!context_->options.requires_token) return std::nullopt;
  const std::string_view given = request.header("authorization");
  const auto token = BearerToken(given);
  const auto role = token.has_value() ? config.tokens->RoleOf(*token) : std::nullopt;
  if (!role.has_value()) {
    CheckCounters::Add(context_->counters.unauthorized);
    answer->headers.emplace_back(
        "www-authenticate", token.has_value() ? R"(Bearer realm="tidegate", error="invalid_token")"
                                              : R"(Bearer realm="tidegate")");
    return Problem{401, GrpcStatus::kUnauthenticated,
                   token.has_value() ? "the token is not valid; expected one of this service"
                                     : "no token was given; expected Authorization: Bearer TOKEN"};
  }
  if (*role >= method.least_role) return std::nullopt;
  CheckCounters::Add(context_->counters.forbidden);
  return Problem{403, GrpcStatus::kPermissionDenied,
                 absl::StrCat("the token has the role ", std::string(NameOf(*role)), "; expected ",
                              std::string(NameOf(method.least_role)), " or more")};
}

bool CheckService::Handle(const Request& request, Answer* answer, const Later& later) {
  const std::shared_ptr<const CheckConfig> config = this->config();
  const CheckMethod* const method = MethodOf(request.path);
  if (const auto problem = WrongCall(request, method, answer)) {
    return RefuseToRead(request, *problem, answer);
  }
  if (const auto problem = Unauthorized(request, *method, *config, answer)) {
    AnswerProblem(*problem, request.is_grpc, answer);
    return true;
  }
  if (HandleKnown(request, *method, config, answer, later)) return true;
  // If other rules replaced these meanwhile, no loop will flush them.
  if (this->config()->rules != config->rules) config->rules->Flush();
  return false;
}

bool CheckService::Refuses(const Request& request, Answer* answer) {
  const CheckMethod* const method = MethodOf(request.path);
  if (method == nullptr) return false;
  const auto problem = Unauthorized(request, *method, *config(), answer);
  if (problem.has_value()) AnswerProblem(*problem, request.is_grpc, answer);
  return problem.has_value();
}

bool CheckService::RefuseToRead(const Request& request, const Problem& problem, Answer* answer) {
  CheckCounters::Add(context_->counters.malformed);
  AnswerProblem(problem, request.is_grpc, answer);
  return true;
}

bool CheckService::HandleKnown(const Request& request, const CheckMethod& method,
                               const std::shared_ptr<const CheckConfig>& config, Answer* answer,
                               const Later& later) {
  Decoded decoded;
  if (method.ask == Ask::kCheckMany || method.ask == Ask::kRestCheckMany) {
    std::vector<Asked> checks;
    if (const auto problem = request.is_grpc ? ReadCheckMany(request.body, &checks)
                                             : ReadRestCheckMany(request, &checks)) {
      return RefuseToRead(request, *problem, answer);
    }
    for (Asked& check : checks) check.TakeOffQuery(*config->rules, &decoded);
    return Decide(config, Op::kHit, request.is_grpc ? Form::kGrpcMany : Form::kRestMany,
                  absl::MakeSpan(checks), answer, later);
  }
  Asked asked;
  const auto settle = [&](int64_t least_cost) {
    return request.is_grpc ? ReadSettleRequest(request.body, least_cost, &asked)
                           : ReadRestSettle(request, least_cost, &asked);
  };
  const auto read = [&]() -> std::optional<Problem> {
    switch (method.ask) {
      case Ask::kRestCheck:
        return ReadRestCheck(request, &asked);
      case Ask::kRestStatus:
        return ReadRestStatus(request, method.path, &asked, &decoded);
      case Ask::kGateway:
        return ReadGatewayCheck(request, *config, &asked, &decoded);
      case Ask::kReserve:
        return request.is_grpc ? ReadRequest(Message::kReserve, request.body, &asked)
                               : ReadRestReserve(request, &asked);
      case Ask::kCommit:
        return settle(0);
      case Ask::kExtend:
        return settle(1);
      case Ask::kRelease:
        return settle(kNoCost);
      case Ask::kRefund:
        return ReadRequest(Message::kRefund, request.body, &asked);
      case Ask::kReset:
        return ReadRequest(Message::kReset, request.body, &asked);
      case Ask::kStatus:
        return ReadRequest(Message::kStatus, request.body, &asked);
      default:
        return ReadRequest(Message::kCheck, request.body, &asked);
    }
  };
  if (const auto problem = read()) return RefuseToRead(request, *problem, answer);
  asked.TakeOffQuery(*config->rules, &decoded);
  const auto decide = [&](Op op, Form form) {
    return Decide(config, op, form, absl::MakeSpan(&asked, 1), answer, later);
  };
  switch (method.ask) {
    case Ask::kRestCheck:
      return decide(Op::kHit, Form::kRest);
    case Ask::kGateway:
      return decide(Op::kHit, Form::kGateway);
    case Ask::kPeek:
      return decide(Op::kPeek, Form::kGrpc);
    case Ask::kReserve:
      return Reserve(config, request.is_grpc, std::move(asked), answer, later);
    case Ask::kCommit:
      return Commit(config, request.is_grpc, asked, answer, later);
    case Ask::kExtend:
      return Extend(config, request.is_grpc, asked, answer, later);
    case Ask::kRelease:
      return Release(config, request.is_grpc, asked, answer, later);
    case Ask::kRefund:
      return Refund(config, std::move(asked), answer, later);
    case Ask::kReset:
      return Reset(config, std::move(asked), answer, later);
    case Ask::kStatus:
    case Ask::kRestStatus:
      return AnswerStatus(config, request.is_grpc, std::move(asked), answer, later);
    default:
      return decide(Op::kHit, Form::kGrpc);
  }
}

}  // namespace tidegate::server
