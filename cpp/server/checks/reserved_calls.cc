#include "server/checks/reserved_calls.h"

#include <openssl/rand.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/checks/caller.h"
#include "server/checks/check_json.h"
#include "server/checks/check_proto.h"
#include "server/checks/decide.h"
#include "server/checks/gathering.h"
#include "server/checks/reservation_token.h"
#include "tidegate/reservation.h"

namespace tidegate::server {

namespace {

// Tries of a call whose reservation another one raises meanwhile.
constexpr int kMostTries = 8;
// The most bytes of attributes in a token, so that a body can hold it.
constexpr size_t kMostKeptBytes = size_t{32} << 10;

Problem NoAnswer(std::string_view what, std::string_view expected) {
  return {503, GrpcStatus::kUnavailable,
          absl::StrCat("the store did not answer, and the ", Absl(what),
                       " was made or not; expected ", Absl(expected))};
}

Problem NotKnown() {
  return {
      410, GrpcStatus::kNotFound,
      "the reservation is not known (any more): its ttl is over, or the store has lost it, and "
      "it stays at its estimate, or it was settled a while ago; expected a call within its ttl"};
}

// Without `units` it is a release, which gives back the requests that were counted too. `found` may
// be such a request then, and is equal for a commit of nothing that follows a release.
Problem SettledBefore(Op op, int64_t found, std::optional<int64_t> units) {
  std::string how;
  if (op == Op::kRaise) {
    how = " and was not raised; expected an extension before it is settled";
  } else if (!units.has_value()) {
    how = " by a commit; expected no release after it";
  } else if (found == 0 && *units == 0) {
    how = " by a release; expected no commit after it";
  } else {
    how = absl::StrCat(" at ", found, " units; expected the same number, or no second call");
  }
  return {409, GrpcStatus::kFailedPrecondition,
          absl::StrCat("the reservation was settled before,", how)};
}

// One call of a reservation, as often as it takes.
class ReservedCall final : public Gathering {
 public:
  ReservedCall(std::shared_ptr<const CheckConfig> config, Op op, bool is_grpc)
      : config_(std::move(config)),
        op_(op),
        is_grpc_(is_grpc),
        reservation_(std::make_shared<Reservation>()) {
    Expect(1);
  }

  // Reserves the cost of a request.
  void Reserve(Asked* asked) {
    AddTier(*config_, asked);
    const tidegate::Request request = config_->rules->RequestOf(asked->attributes);
    size_t bytes = 0;
    const auto& names = config_->rules->limiter().rules().attribute_names();
    for (const Attribute& attribute : asked->attributes) {
      if (std::find(names.begin(), names.end(), attribute.name) == names.end()) continue;
      bytes += attribute.name.size() + attribute.value.size();
      token_.attributes.emplace_back(attribute.name, attribute.value);
    }
    if (bytes > kMostKeptBytes) {
      return End(Problem::BadRequest(absl::StrCat("the attributes that the rules read have ", bytes,
                                                  " bytes; expected at most ", kMostKeptBytes,
                                                  " for a reservation")));
    }
    std::string name;
    const Caller caller = CallerOf(*asked, &name);
    caller_.Keep(caller);
    checked_.cost = asked->cost;
    checked_.penalty = PenaltyOf(*config_, caller, request);
    token_.factor = static_cast<uint32_t>(checked_.factor());
    RAND_bytes(reinterpret_cast<unsigned char*>(token_.id.data()), sizeof token_.id);
    reservation_->ttl_ns = asked->ttl_ns;
    if (checked_.is_blocked()) return Decided(checked_.penalty->Refusal());
    units_ = asked->cost;
    Submit();
  }

  // Settles or raises the reservation of a token. Without `cost` gives all back; a usage stands in
  // its place.
  void OfToken(std::string_view text, std::optional<int64_t> cost,
               const decltype(Asked::usage)& usage = std::nullopt) {
    std::optional<ReservationToken> token = DecodedReservation(text);
    if (!token.has_value()) {
      return End(Problem::BadRequest(absl::StrCat("the reservation is ", Quote(text),
                                                  "; expected the token of one, unchanged")));
    }
    token_ = *std::move(token);
    if (usage.has_value()) {
      const auto units =
          config_->rules->limiter().UnitsOfUsage(Request(), token_.admitted_ns, *usage);
      if (!units.ok()) return End(Problem::BadRequest(std::string(units.status().message())));
      cost = std::min(*units, Reservation::kMostUnits);
    }
    units_ = cost;
    TakeParts();
    Submit();
  }

  // Gives back what was charged without a reservation, unless `id` was given back before.
  void Refund(const Asked& asked, const std::array<uint64_t, 2>& id, const Decision* hit) {
    for (const Attribute& attribute : asked.attributes) {
      token_.attributes.emplace_back(attribute.name, attribute.value);
    }
    token_.id = id;
    token_.admitted_ns = hit != nullptr ? hit->at_ns : config_->rules->limiter().store().NowNs();
    reservation_->makes_records = true;
    reservation_->ttl_ns = kRefundKnownNs;
    units_ = asked.cost;
    Submit();
  }

 protected:
  void MakeAnswer(Answer* answer) override {
    if (problem_.has_value()) return AnswerProblem(*problem_, is_grpc_, answer);
    if (reservation_->makes_records) return;
    const Decision& decision = checked_.decision;
    if (op_ == Op::kSettle) {
      if (is_grpc_) return AppendSettleResponse(decision, &answer->body);
      AppendDecisionJson(decision, nullptr, absl::StrCat(",\"charged\":", decision.charged),
                         &answer->body);
      answer->body += '\n';
      return;
    }
    std::string text;
    if (decision.allowed && HasRecords()) text = Encoded(token_);
    if (is_grpc_) return AppendReserveResponse(decision, text, &answer->body);
    AddRateFields(decision, {}, kPlainFields | config_->context->options.more_fields, answer);
    answer->http_status = decision.allowed ? 200 : config_->context->options.refused_status;
    // A token needs no escapes.
    text = text.empty() ? "null" : absl::StrCat("\"", text, "\"");
    AppendDecisionJson(decision, nullptr, absl::StrCat(",\"reservation\":", text), &answer->body);
    answer->body += '\n';
  }

 private:
  tidegate::Request Request() const {
    Attributes attributes;
    for (const auto& [name, value] : token_.attributes) attributes.push_back({name, value});
    return config_->rules->RequestOf(attributes);
  }

  // Finds the parts of the token among the counts of the rules now.
  void TakeParts() {
    const RuleLimiter& limiter = config_->rules->limiter();
    for (const std::string& name : limiter.CountsOf(Request(), token_.admitted_ns)) {
      const uint64_t count = DigestOfCount(name);
      const auto part = std::find_if(token_.parts.begin(), token_.parts.end(),
                                     [&](const auto& each) { return each.count == count; });
      reservation_->parts.push_back({Reservation::kNone, 0, Found::kNothing, 0});
      if (part != token_.parts.end()) {
        reservation_->parts.back() = {part->units, part->until_ns, Found::kNothing, 0};
      }
    }
  }

  // What the call has charged, for the next one.
  void KeepParts() {
    token_.admitted_ns = reservation_->admitted_ns;
    token_.parts.clear();
    const RuleLimiter& limiter = config_->rules->limiter();
    const std::vector<std::string> names = limiter.CountsOf(Request(), token_.admitted_ns);
    if (names.size() != reservation_->parts.size()) return;  // a schedule began in between
    for (size_t i = 0; i < names.size(); ++i) {
      const Reservation::Part& part = reservation_->parts[i];
      const int64_t units = op_ == Op::kRaise && part.units >= 0 ? part.found_units : part.units;
      token_.parts.push_back({DigestOfCount(names[i]), units, part.until_ns});
    }
  }

  bool HasRecords() const {
    return std::any_of(token_.parts.begin(), token_.parts.end(),
                       [](const auto& part) { return part.units != Reservation::kNone; });
  }

  // Once the store has the call, its answer may end this object.
  void Submit() {
    const std::shared_ptr<BoundRules> rules = config_->rules;
    reservation_->id = token_.id;
    reservation_->admitted_ns = token_.admitted_ns;
    auto begun = rules->limiter().SubmitReserved(
        op_, Request(), units_, reservation_,
        [this](const Decision& decision) { Decided(decision); }, token_.factor);
    rules->Submitted();
    if (!begun.ok()) {
      return End(Problem{400, GrpcStatus::kInvalidArgument, std::string(begun.status().message())});
    }
    if (begun->has_value()) Decided(**begun);
  }

  void Decided(const Decision& decision) {
    checked_.decision = decision;
    if (op_ == Op::kReserve) {
      KeepParts();
      Count(*config_->context, Op::kHit, caller_.view(), checked_);
      return Done();
    }
    if (Has(Found::kOther) && --tries_ > 0) return Again();
    if (const auto problem = ProblemOf()) return End(*problem);
    if (op_ == Op::kRaise && decision.allowed) KeepParts();
    if (op_ == Op::kSettle) checked_.decision.SetCharged(ChargedInAll());
    Done();
  }

  // The least that a limit has charged for the reservation. Of those that count requests that is
  // one, which says nothing of the cost.
  int64_t ChargedInAll() const {
    const int64_t least = checked_.decision.charged;
    const auto& rules = config_->rules->limiter().rules().rules();
    const bool any_of_requests = std::any_of(rules.begin(), rules.end(),
                                             [](const Rule& rule) { return rule.counts_requests; });
    return least == 1 && any_of_requests ? units_.value_or(0) : least;
  }

  bool Has(Found found) const {
    return std::any_of(reservation_->parts.begin(), reservation_->parts.end(),
                       [found](const Reservation::Part& part) {
                         return part.units != Reservation::kNone && part.found == found;
                       });
  }

  // Why the call did nothing.
  std::optional<Problem> ProblemOf() const {
    const bool no_answer = Has(Found::kNoAnswer) || Has(Found::kOther);
    if (no_answer && op_ == Op::kRaise) {
      return NoAnswer("extension", "a commit, which settles the reservation in both cases");
    }
    if (no_answer) {
      return NoAnswer(reservation_->makes_records ? "refund" : "call",
                      "the same call again, which is made once");
    }
    if (reservation_->makes_records) return std::nullopt;
    const bool is_known = Has(Found::kOpen) || Has(Found::kAgain) || Has(Found::kSettled);
    if (Has(Found::kNothing) || !is_known) return NotKnown();
    for (const Reservation::Part& part : reservation_->parts) {
      if (part.found == Found::kSettled) {
        return SettledBefore(op_, part.found_units, units_);
      }
    }
    return std::nullopt;
  }

  // With the units that the records have.
  void Again() {
    for (Reservation::Part& part : reservation_->parts) {
      if (part.units != Reservation::kNone) part.units = part.found_units;
    }
    const std::shared_ptr<BoundRules> rules = config_->rules;
    Submit();
    rules->Flush();
  }

  void End(Problem problem) {
    problem_ = std::move(problem);
    Done();
  }

  const std::shared_ptr<const CheckConfig> config_;  // keeps the limiter alive
  const Op op_;
  const bool is_grpc_;
  const std::shared_ptr<Reservation> reservation_;
  ReservationToken token_;
  std::optional<int64_t> units_;  // without what a penalty adds
  Checked checked_;
  KeptCaller caller_;
  int tries_ = kMostTries;
  std::optional<Problem> problem_;
};

template <typename Begin>
bool Call(const std::shared_ptr<const CheckConfig>& config, Op op, bool is_grpc, Answer* answer,
          const Later& later, Begin begin) {
  auto* const call = new ReservedCall(config, op, is_grpc);  // deletes itself
  begin(call);
  return call->Submitted(answer, later);
}

}  // namespace

bool Reserve(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, Asked asked,
             Answer* answer, const Later& later) {
  return Call(config, Op::kReserve, is_grpc, answer, later,
              [&](ReservedCall* call) { call->Reserve(&asked); });
}

bool Commit(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, const Asked& asked,
            Answer* answer, const Later& later) {
  return Call(config, Op::kSettle, is_grpc, answer, later, [&](ReservedCall* call) {
    call->OfToken(asked.reservation, asked.cost, asked.usage);
  });
}

bool Extend(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, const Asked& asked,
            Answer* answer, const Later& later) {
  return Call(config, Op::kRaise, is_grpc, answer, later,
              [&](ReservedCall* call) { call->OfToken(asked.reservation, asked.cost); });
}

bool Release(const std::shared_ptr<const CheckConfig>& config, bool is_grpc, const Asked& asked,
             Answer* answer, const Later& later) {
  return Call(config, Op::kSettle, is_grpc, answer, later,
              [&](ReservedCall* call) { call->OfToken(asked.reservation, std::nullopt); });
}

bool RefundOnce(const std::shared_ptr<const CheckConfig>& config, const Asked& asked,
                const std::array<uint64_t, 2>& id, const Decision* hit, Answer* answer,
                const Later& later) {
  return Call(config, Op::kSettle, /*is_grpc=*/true, answer, later,
              [&](ReservedCall* call) { call->Refund(asked, id, hit); });
}

}  // namespace tidegate::server
