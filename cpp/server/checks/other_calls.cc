#include "server/checks/other_calls.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/checks/caller.h"
#include "server/checks/check_json.h"
#include "server/checks/check_proto.h"
#include "server/checks/decide.h"
#include "server/checks/decision_token.h"
#include "server/checks/gathering.h"
#include "server/checks/packed.h"
#include "server/checks/reserved_calls.h"
#include "server/checks/sha256.h"

namespace tidegate::server {

namespace {

// A refund or a reset, whose answer is empty.
class Change final : public Gathering {
 public:
  explicit Change(std::shared_ptr<const CheckConfig> config) : config_(std::move(config)) {}

  void Refund(const Asked& asked, const Decision* hit) {
    Expect(1);
    Begun(config_->rules->limiter().Submit(Op::kRefund, config_->rules->RequestOf(asked.attributes),
                                           asked.cost, hit, nullptr, done()));
  }
  // The answer to a reset has no words for an outage, that to the look behind it has.
  void Reset(const Asked& asked, const RuleLimiter::Ids* only) {
    Expect(2);
    const RuleLimiter& limiter = config_->rules->limiter();
    const tidegate::Request request = config_->rules->RequestOf(asked.attributes);
    Begun(limiter.SubmitReset(request, only, done()));
    const auto look = [this](const Decision& decision) {
      is_degraded_ = decision.degraded;
      Done();
    };
    if (const auto early = limiter.Submit(Op::kPeek, request, 1, nullptr, nullptr, look)) {
      look(*early);
    }
  }

 protected:
  void MakeAnswer(Answer* answer) override {
    if (!is_degraded_) return;
    AnswerProblem(
        {503, GrpcStatus::kUnavailable,
         "the storage does not answer, so that what it has counted stays; only what was "
         "counted without it was forgotten; expected the same call again once it answers"},
        /*is_grpc=*/true, answer);
  }

 private:
  Store::Done done() {
    return [this](const Decision&) { Done(); };
  }
  void Begun(const std::optional<Decision>& early) {
    config_->rules->Submitted();
    if (early.has_value()) Done();
  }

  const std::shared_ptr<const CheckConfig> config_;  // keeps the limiter alive
  bool is_degraded_ = false;
};

class StatusCall final : public Gathering {
 public:
  StatusCall(std::shared_ptr<const CheckConfig> config, bool is_grpc)
      : config_(std::move(config)), is_grpc_(is_grpc) {
    Expect(1);
  }

  void Submit(const Asked& asked) {
    const tidegate::Request request = config_->rules->RequestOf(asked.attributes);
    std::string name;
    penalty_ = PenaltyOf(*config_, CallerOf(asked, &name), request);
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

// The id of a refund that its caller has named: others have another name, cost or attributes.
std::array<uint64_t, 2> IdOf(const Asked& asked) {
  std::map<std::string_view, std::string_view> values;
  for (const Attribute& attribute : asked.attributes) values[attribute.name] = attribute.value;
  std::string packed = "refund ";
  AppendText(asked.once, &packed);
  AppendNumber(static_cast<uint64_t>(asked.cost), 8, &packed);
  for (const auto& [name, value] : values) {
    AppendText(name, &packed);
    AppendText(value, &packed);
  }
  const Digest digest = Sha256(packed);
  Unpacker unpacker({reinterpret_cast<const char*>(digest.data()), digest.size()});
  const uint64_t first = unpacker.Number(8);
  return {first, unpacker.Number(8)};
}

bool RefundOf(const std::shared_ptr<const CheckConfig>& config, const Asked& asked,
              const Decision* hit, Answer* answer, const Later& later) {
  auto* const change = new Change(config);  // deletes itself
  change->Refund(asked, hit);
  return change->Submitted(answer, later);
}

bool HasRule(const RuleSet& rules, std::string_view id) {
  const auto has_id = [id](const Rule& rule) { return rule.id == id; };
  return std::any_of(rules.rules().begin(), rules.rules().end(), has_id);
}

}  // namespace

bool Refund(const std::shared_ptr<const CheckConfig>& config, Asked asked, Answer* answer,
            const Later& later) {
  if (asked.decision.empty()) {
    std::array<uint64_t, 2> id{};
    if (!asked.once.empty()) id = IdOf(asked);  // without the tier, which may change until a retry
    AddTier(*config, &asked);
    if (asked.once.empty()) return RefundOf(config, asked, nullptr, answer, later);
    return RefundOnce(config, asked, id, nullptr, answer, later);
  }
  const std::optional<DecisionToken> token = DecodedToken(asked.decision);
  if (!token.has_value()) {
    AnswerProblem(Problem::BadRequest("the decision is " + Quote(asked.decision) +
                                      "; expected the decision of a CheckResponse, unchanged"),
                  /*is_grpc=*/true, answer);
    return true;
  }
  if (asked.cost_is_given && asked.cost != token->cost) {
    AnswerProblem(Problem::BadRequest(absl::StrCat(
                      "the cost is ", asked.cost, " beside the decision of a check of cost ",
                      token->cost, "; expected ", token->cost, ", or none")),
                  /*is_grpc=*/true, answer);
    return true;
  }
  if (!token->MayBeOf(asked.attributes)) {
    AnswerProblem(
        Problem::BadRequest(
            "the attributes are not those of the decision's check; expected the same ones"),
        /*is_grpc=*/true, answer);
    return true;
  }
  asked.cost = token->cost;
  AddTier(*config, &asked);
  // The token names limits that were charged elsewhere by their position in the plan, which other
  // rules may change.
  const bool is_exact =
      token->hit.limits_elsewhere == 0 || token->generation == config->rules->generation();
  // What a fallback was charged has no records.
  if (token->hit.limits_elsewhere != 0) {
    return RefundOf(config, asked, is_exact ? &token->hit : nullptr, answer, later);
  }
  // Whatever name comes with it: it would be refunded once for each.
  return RefundOnce(config, asked, token->id(), &token->hit, answer, later);
}

bool Reset(const std::shared_ptr<const CheckConfig>& config, Asked asked, Answer* answer,
           const Later& later) {
  AddTier(*config, &asked);
  RuleLimiter::Ids only;
  for (const std::string_view id : asked.rule_ids) {
    if (!HasRule(config->rules->limiter().rules(), id)) {
      AnswerProblem(
          Problem::BadRequest("the rule is " + Quote(id) + "; expected the id of a rule in force"),
          /*is_grpc=*/true, answer);
      return true;
    }
    only.emplace_back(id);
  }
  auto* const change = new Change(config);  // deletes itself
  change->Reset(asked, only.empty() ? nullptr : &only);
  return change->Submitted(answer, later);
}

bool AnswerStatus(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, Asked asked,
                  Answer* answer, const Later& later) {
  AddTier(*config, &asked);
  auto* const call = new StatusCall(config, is_grpc);  // deletes itself
  call->Submit(asked);
  return call->Submitted(answer, later);
}

}  // namespace tidegate::server
