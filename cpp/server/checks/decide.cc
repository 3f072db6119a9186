#include "server/checks/decide.h"

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/checks/caller.h"
#include "server/checks/check_json.h"
#include "server/checks/check_proto.h"
#include "server/checks/decision_token.h"
#include "server/checks/decision_values.h"
#include "server/checks/gathering.h"
#include "tidegate/rate_fields.h"

namespace tidegate::server {

namespace {

void Record(const CheckContext& context, const Caller& caller, const Checked& checked) {
  if (context.recorder == nullptr) return;
  const Decision& decision = checked.decision;
  Recorded recorded{caller.user, caller.endpoint, {}, caller.tier, caller.ip, {}};
  recorded.sums.allowed = decision.allowed ? 1 : 0;
  recorded.sums.refused = decision.allowed ? 0 : 1;
  recorded.sums.degraded = decision.degraded ? 1 : 0;
  recorded.sums.cost = decision.allowed ? checked.cost : 0;
  if (!decision.allowed) recorded.rule = decision.limit->rule();
  context.recorder->Record(recorded);
  recorded.sums = {.refused_in_shadow = 1};
  for (const Decision& outcome : checked.outcomes) {
    if (outcome.allowed || !outcome.limit->shadow()) continue;
    // The limits of a rule are adjacent, and a request counts once for each rule.
    if (recorded.rule == outcome.limit->rule() && !recorded.rule.empty()) continue;
    recorded.rule = outcome.limit->rule();
    context.recorder->Record(recorded);
  }
}

}  // namespace

void AddRateFields(const Decision& decision, absl::Span<const Decision> outcomes, RateFieldSet set,
                   Answer* answer) {
  if (IsUnlimited(decision)) return;
  const auto put = [answer](RateField field, std::string_view value) {
    answer->headers.emplace_back(LowerNameOf(field), value);
  };
  const auto values = [](const Decision& d) { return RateFieldValuesOf(d, d.at_ns, d.at_ns); };
  WriteRateFields(RateFieldTexts(*decision.limit, set), values(decision), set, put);
  if ((set & kOpenAiFields) == 0) return;
  const auto is_shown = [](const Decision& each) { return !IsUnlimited(each); };
  const Decision* const beside = BesideForOpenAi(decision, outcomes, is_shown);
  if (beside == nullptr) return;
  WriteOpenAiFields(RateFieldTexts(*beside->limit, kOpenAiFields), values(*beside), set, put);
}

void Count(CheckContext& context, Op op, const Caller& caller, const Checked& checked) {
  if (op != Op::kHit) return;
  CheckCounters& counters = context.counters;
  CheckCounters::Add(checked.decision.allowed ? counters.allowed : counters.refused);
  if (checked.decision.degraded) CheckCounters::Add(counters.degraded);
  if (checked.penalty.has_value()) {
    CheckCounters::Add(checked.penalty->blocks ? counters.blocked : counters.throttled);
  }
  Record(context, caller, checked);
}

namespace {

bool HasToken(Op op, Form form) {
  return op == Op::kHit && (form == Form::kGrpc || form == Form::kGrpcMany);
}

void AppendGrpc(const CheckConfig& config, Op op, const Checked& checked, std::string* body) {
  std::string token;
  if (op == Op::kHit && checked.decision.allowed) {
    static std::atomic<uint32_t> number{0};
    token = Encoded({config.rules->generation(), number.fetch_add(1, std::memory_order_relaxed),
                     checked.mark, checked.cost, checked.decision});
  }
  AppendCheckResponse(checked.decision, checked.wants_outcomes ? &checked.outcomes : nullptr, token,
                      body);
}

void AnswerHttp(const CheckConfig& config, Form form, const Checked& checked, Answer* answer) {
  const CheckOptions& options = config.context->options;
  const Decision& decision = checked.decision;
  const RateFieldSet usual = form == Form::kGateway ? kPlainFields | kIetfFields : kPlainFields;
  AddRateFields(decision, checked.outcomes, usual | options.more_fields, answer);
  if (form == Form::kGateway) {
    answer->http_status = decision.allowed ? 204 : options.auth_refused_status;
    return;
  }
  answer->http_status = decision.allowed ? 200 : options.refused_status;
  AppendDecisionJson(decision, checked.wants_outcomes ? &checked.outcomes : nullptr, &answer->body);
  answer->body += '\n';
}

void AddToAnswer(const CheckConfig& config, Op op, Form form, const Checked& checked,
                 Answer* answer) {
  if (form == Form::kGrpc) {
    AppendGrpc(config, op, checked, &answer->body);
  } else if (form == Form::kGrpcMany) {
    std::string one;
    AppendGrpc(config, op, checked, &one);
    AppendAnswer(one, &answer->body);
  } else if (form == Form::kRestMany) {
    answer->body += answer->body.empty() ? R"({"answers":[)" : ",";
    AppendDecisionJson(checked.decision, checked.wants_outcomes ? &checked.outcomes : nullptr,
                       &answer->body);
  } else {
    AnswerHttp(config, form, checked, answer);
  }
}

// Called after the last check.
void EndAnswer(Form form, Answer* answer) {
  if (form == Form::kRestMany) answer->body += "]}\n";
}

Decision DecisionOn(const RuleLimiter& limiter, Op op, const tidegate::Request& request,
                    Checked* checked) {
  if (checked->is_blocked()) return checked->penalty->Refusal();
  const int64_t factor = checked->factor();
  return op == Op::kHit ? limiter.Hit(request, checked->cost, &checked->outcomes, factor)
                        : limiter.Peek(request, checked->cost, &checked->outcomes, factor);
}

bool DecideAtOnce(const CheckConfig& config, Op op, Form form, absl::Span<Asked> asked,
                  Answer* answer) {
  const RuleLimiter& limiter = config.rules->limiter();
  Checked checked;
  for (Asked& one : asked) {
    if (HasToken(op, form)) checked.mark = MarkOf(one.attributes);
    AddTier(config, &one);
    checked.cost = one.cost;
    checked.wants_outcomes = one.wants_outcomes;
    checked.outcomes.clear();
    std::string name;
    const Caller caller = CallerOf(one, &name);
    const tidegate::Request request = config.rules->RequestOf(one.attributes);
    checked.penalty = PenaltyOf(config, caller, request);
    checked.decision = DecisionOn(limiter, op, request, &checked);
    Count(*config.context, op, caller, checked);
    AddToAnswer(config, op, form, checked, answer);
  }
  EndAnswer(form, answer);
  return true;
}

// Checks in flight, which the store answers later.
class Flight final : public Gathering {
 public:
  Flight(std::shared_ptr<const CheckConfig> config, Op op, Form form, size_t checks)
      : config_(std::move(config)), op_(op), form_(form), checks_(checks) {
    Expect(checks);
  }

  void Submit(size_t i, Asked* asked) {
    One& one = checks_[i];
    if (HasToken(op_, form_)) one.checked.mark = MarkOf(asked->attributes);
    AddTier(*config_, asked);
    one.checked.cost = asked->cost;
    one.checked.wants_outcomes = asked->wants_outcomes;
    std::string name;
    const Caller caller = CallerOf(*asked, &name);
    one.caller.Keep(caller);
    const tidegate::Request request = config_->rules->RequestOf(asked->attributes);
    one.checked.penalty = PenaltyOf(*config_, caller, request);
    if (one.checked.is_blocked()) return Decided(i, one.checked.penalty->Refusal());
    const auto early = config_->rules->limiter().Submit(
        op_, request, asked->cost, nullptr, &one.checked.outcomes,
        [this, i](const Decision& decision) { Decided(i, decision); }, one.checked.factor());
    if (early.has_value()) Decided(i, *early);
  }

 protected:
  void MakeAnswer(Answer* answer) override {
    for (const One& one : checks_) AddToAnswer(*config_, op_, form_, one.checked, answer);
    EndAnswer(form_, answer);
  }

 private:
  struct One {
    Checked checked;
    KeptCaller caller;
  };

  void Decided(size_t i, const Decision& decision) {
    One& one = checks_[i];
    one.checked.decision = decision;
    Count(*config_->context, op_, one.caller.view(), one.checked);
    Done();
  }

  const std::shared_ptr<const CheckConfig> config_;
  const Op op_;
  const Form form_;
  std::vector<One> checks_;
};

}  // namespace

void AddTier(const CheckConfig& config, Asked* asked) {
  if (config.tiers == nullptr || asked->Get("tier").data() != nullptr) return;
  const std::string_view user = asked->Get("user");
  if (user.data() == nullptr) return;
  const std::string_view tier = config.tiers->Of(user);
  if (tier.data() != nullptr) asked->attributes.push_back({"tier", tier});
}

std::optional<Penalty> PenaltyOf(const CheckConfig& config, const Caller& caller,
                                 const tidegate::Request& request) {
  if (config.penalties == nullptr) return std::nullopt;
  auto penalty = config.penalties->Of(caller.user, caller.ip);
  if (penalty.has_value() && config.rules->limiter().IsOnAllowList(request)) return std::nullopt;
  return penalty;
}

bool Decide(const std::shared_ptr<const CheckConfig>& config, Op op, Form form,
            absl::Span<Asked> asked, Answer* answer, const Later& later) {
  if (!config->rules->blocks()) return DecideAtOnce(*config, op, form, asked, answer);
  auto* const flight = new Flight(config, op, form, asked.size());  // deletes itself
  for (size_t i = 0; i < asked.size(); ++i) flight->Submit(i, &asked[i]);
  config->rules->Submitted();
  return flight->Submitted(answer, later);
}

}  // namespace tidegate::server
