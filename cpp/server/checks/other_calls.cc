#include "server/checks/other_calls.h"

#include <optional>
#include <string>
#include <utility>

#include "server/checks/caller.h"
#include "server/checks/check_json.h"
#include "server/checks/check_proto.h"
#include "server/checks/decide.h"
#include "server/checks/decision_token.h"
#include "server/checks/gathering.h"

namespace tidegate::server {

namespace {

// A refund or a reset, whose answer is empty.
class Change final : public Gathering {
 public:
  explicit Change(std::shared_ptr<const CheckConfig> config) : config_(std::move(config)) {
    Expect(1);
  }

  void Submit(Op op, const Asked& asked, const Decision* hit) {
    const auto early = config_->rules->limiter().Submit(
        op, config_->rules->RequestOf(asked.attributes), asked.cost, hit, nullptr,
        [this](const Decision&) { Done(); });
    config_->rules->Submitted();
    if (early.has_value()) Done();
  }

 protected:
  void MakeAnswer(Answer*) override {}

 private:
  const std::shared_ptr<const CheckConfig> config_;  // keeps the limiter alive
};

class StatusCall final : public Gathering {
 public:
  StatusCall(std::shared_ptr<const CheckConfig> config, bool is_grpc)
      : config_(std::move(config)), is_grpc_(is_grpc) {
    Expect(1);
  }

  void Submit(const Asked& asked) {
    const tidegate::Request request = config_->rules->RequestOf(asked.attributes);
    std::string digest;
    penalty_ = PenaltyOf(*config_, CallerOf(asked, &digest), request);
    const auto early = config_->rules->limiter().SubmitStatus(
        request, &status_, [this](const Decision& decision) { Decided(decision); });
    config_->rules->Submitted();
    if (early.has_value()) Decided(*early);
  }

 protected:
  void MakeAnswer(Answer* answer) override {
    const RuleSet& rules = config_->rules->limiter().rules();
    if (is_grpc_) {
      AppendStatusResponse(rules, status_, penalty_, is_degraded_, &answer->body);
    } else {
      AppendStatusJson(rules, status_, penalty_, is_degraded_, &answer->body);
    }
  }

 private:
  void Decided(const Decision& decision) {
    is_degraded_ = decision.degraded;
    Done();
  }

  const std::shared_ptr<const CheckConfig> config_;
  const bool is_grpc_;
  bool is_degraded_ = false;
  RuleLimiter::Status status_;
  std::optional<Penalty> penalty_;  // of the caller
};

bool Submit(const std::shared_ptr<const CheckConfig>& config, Op op, const Asked& asked,
            const Decision* hit, Answer* answer, const Later& later) {
  auto* const change = new Change(config);  // deletes itself
  change->Submit(op, asked, hit);
  return change->Submitted(answer, later);
}

}  // namespace

bool Refund(const std::shared_ptr<const CheckConfig>& config, Asked asked, Answer* answer,
            const Later& later) {
  AddTier(*config, &asked);
  if (asked.decision.empty()) return Submit(config, Op::kRefund, asked, nullptr, answer, later);
  const std::optional<DecisionToken> token = DecodedToken(asked.decision);
  if (!token.has_value()) {
    AnswerProblem(Problem::BadRequest("the decision is " + ShownText(asked.decision) +
                                      "; expected the decision of a CheckResponse, unchanged"),
                  /*is_grpc=*/true, answer);
    return true;
  }
  if (!asked.cost_is_given) asked.cost = token->cost;
  // The token names limits that were charged elsewhere by their position in the plan, which other
  // rules may change.
  const bool is_exact =
      token->hit.limits_elsewhere == 0 || token->generation == config->rules->generation();
  return Submit(config, Op::kRefund, asked, is_exact ? &token->hit : nullptr, answer, later);
}

bool Reset(const std::shared_ptr<const CheckConfig>& config, Asked asked, Answer* answer,
           const Later& later) {
  AddTier(*config, &asked);
  return Submit(config, Op::kReset, asked, nullptr, answer, later);
}

bool AnswerStatus(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, Asked asked,
                  Answer* answer, const Later& later) {
  AddTier(*config, &asked);
  auto* const call = new StatusCall(config, is_grpc);  // deletes itself
  call->Submit(asked);
  return call->Submitted(answer, later);
}

}  // namespace tidegate::server
