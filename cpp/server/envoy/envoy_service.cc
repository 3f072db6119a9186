#include "server/envoy/envoy_service.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "base/text.h"
#include "server/envoy/json_codec.h"
#include "server/envoy/wire_codec.h"

namespace tidegate::server::envoy {
namespace {

// A page of any site may send a form or a text without asking first, and a browser says so.
bool IsOfWebPage(const Request& request) {
  return request.header("origin").data() != nullptr &&
         !request.header("content-type").starts_with("application/json");
}

}  // namespace

EnvoyService::EnvoyService(std::shared_ptr<Store> store, std::shared_ptr<Clock> clock,
                           std::string scope, const ServiceOptions& options,
                           std::shared_ptr<Recorder> recorder)
    : state_(new ServiceState{
          {std::move(store), std::move(clock)}, options, {}, {}, std::move(recorder)}),
      scope_(std::move(scope)) {
  // A tree without domains has nothing that a store could refuse.
  (void)Use(std::make_shared<const DescriptorTree>());
}

absl::Status EnvoyService::Use(std::shared_ptr<const DescriptorTree> tree) {
  state_->metrics.BeginVersion();
  auto bound = BoundTree::Create(std::move(tree), state_->store.store(), scope_, &state_->metrics);
  if (!bound.ok()) return bound.status();
  {
    const std::lock_guard lock(mutex_);
    in_force_.tree.swap(*bound);
  }
  state_->metrics.ForgetOtherVersions();
  return absl::OkStatus();
}

void EnvoyService::SetPenalties(std::shared_ptr<const Penalties> penalties) {
  const std::lock_guard lock(mutex_);
  in_force_.penalties.swap(penalties);
}

EnvoyService::InForce EnvoyService::in_force() const {
  const std::lock_guard lock(mutex_);
  return in_force_;
}

std::vector<Route> EnvoyService::routes() const {
  return {{"", std::string(kMethod)}, {"POST", std::string(kJsonPath)}};
}

bool EnvoyService::Handle(const Request& request, Answer* answer, const Later& later) {
  const Encoding encoding = request.is_grpc ? Encoding::kWire : Encoding::kJson;
  state_->counters.requests.fetch_add(1, std::memory_order_relaxed);
  if (encoding == Encoding::kJson && request.method != "POST") {
    answer->http_status = 405;
    answer->headers.emplace_back("allow", "POST");
    answer->body = WriteJsonError("the method is not accepted; expected POST");
    return true;
  }
  if (encoding == Encoding::kJson && IsOfWebPage(request)) {
    answer->http_status = 415;
    answer->body = WriteJsonError(
        "the request is of a web page and its content type is another; expected application/json");
    return true;
  }
  RateLimitRequest parsed;
  absl::Status status = encoding == Encoding::kWire ? ParseWire(request.body, &parsed)
                                                    : ParseJson(request.body, &parsed);
  InForce now = in_force();
  const auto call = std::make_shared<RateLimitCall>(state_, std::move(now.tree));
  if (status.ok()) status = call->Prepare(parsed, now.penalties.get());
  if (!status.ok()) {
    state_->counters.invalid.fetch_add(1, std::memory_order_relaxed);
    Refuse(encoding, status, answer);
    return true;
  }
  const bool at_once = call->Begin([&]() -> RateLimitCall::Decided {
    return [encoding, pending = std::shared_ptr<Pending>(later())](RateLimitCall& decided) {
      Answer late;
      Write(encoding, decided.Finish(), &late);
      pending->Send(std::move(late));
    };
  });
  if (at_once) Write(encoding, call->Finish(), answer);
  return at_once;
}

void EnvoyService::Refuse(Encoding encoding, const absl::Status& status, Answer* answer) {
  if (encoding == Encoding::kWire) {
    answer->grpc_status = GrpcStatus::kInvalidArgument;
    answer->grpc_message = std::string(status.message());
    return;
  }
  answer->http_status = 400;
  answer->body = WriteJsonError(std::string(status.message()));
}

void EnvoyService::Write(Encoding encoding, const RateLimitResponse& response, Answer* answer) {
  if (encoding == Encoding::kWire) {
    answer->body = WriteWire(response);
    return;
  }
  answer->http_status = response.overall_code == Code::kOverLimit ? 429 : 200;
  for (const auto& [name, value] : response.response_headers) {
    answer->headers.emplace_back(absl::AsciiStrToLower(Absl(name)), value);
  }
  answer->body = WriteJson(response);
}

}  // namespace tidegate::server::envoy
