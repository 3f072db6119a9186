#include "redis/protocol/scripts.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "algorithms/debt.h"
#include "base/time_units.h"
#include "leases/table.h"
#include "quotas/step.h"
#include "redis/lua.inc"
#include "redis/protocol/decide_log.h"
#include "redis/protocol/digest.h"
#include "redis/protocol/keys.h"
#include "redis/protocol/lease_words.h"
#include "redis/protocol/quota_terms.h"
#include "redis/protocol/replies.h"
#include "tidegate/step.h"

namespace tidegate::redis {
namespace {

// The algorithms of lua/, one bit each.
struct Part {
  std::string_view name;
  std::string_view text;
};
constexpr std::array<Part, 5> kParts = {{
    {"bucket", lua::bucket},
    {"fixed", lua::fixed_window},
    {"sliding", lua::sliding_window},
    {"log", lua::log},
    {"quota", lua::quota},
}};

size_t PartOf(const Limit& limit) {
  switch (limit.algorithm()) {
    case Algorithm::kFixedWindow:
      return 1;
    case Algorithm::kSlidingWindow:
      return 2;
    case Algorithm::kSlidingLog:
    case Algorithm::kConcurrency:
      return 3;
    case Algorithm::kQuota:
      return 4;
    default:
      return 0;
  }
}

// The numbers of each state in a reply that has the units that nodes hold.
constexpr size_t kWide = 8;

size_t StateSize(const Limit& limit, bool wide) {
  if (wide) return kWide;
  return HasCell(limit.algorithm()) ? 4 : IsLog(limit.algorithm()) ? 6 : 1;
}

bool IsText(const redisReply& reply) { return reply.type == REDIS_REPLY_STRING; }

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

// The script, with the constants that it shares with the core.
std::string WithConstants(std::string_view script) {
  return absl::StrReplaceAll(Absl(script),
                             {{"TOLERANCE_US", absl::StrCat(kClockToleranceNs / kMicrosecondNs)},
                              {"TOLERANCE", absl::StrCat(kClockToleranceNs)}});
}

// Empty if no limit has a letter of its own.
std::string LettersOf(const Request& request) {
  std::string letters;
  for (const Charge& charge : request.plan) letters += LetterOf(request.op, charge);
  return letters.find_first_not_of('e') == std::string::npos ? "" : letters;
}

// Whether all keys of the request are deleted. A reset keeps what a quota has beyond its usage.
bool IsDeletion(const Request& request) {
  const bool forgets = request.op == "forget";
  const auto keeps_some = [&](const Charge& charge) {
    const Limit& limit = charge.limit->limit;
    return (request.keeps_leases && IsBucket(limit.algorithm())) ||
           (!forgets && limit.quota() != nullptr);
  };
  return (forgets || request.op == "reset") &&
         std::none_of(request.plan.begin(), request.plan.end(), keeps_some);
}

// The name of the limit's algorithm in lua/.
std::string_view NameOf(const Request& request, const Limit& limit) {
  const bool gives_back =
      request.op == "refund" || request.op == "release" || request.op == "extend";
  if (limit.algorithm() != Algorithm::kConcurrency || !gives_back) {
    return kParts[PartOf(limit)].name;
  }
  return request.late ? "late_places" : "places";
}

bool IsOfUsed(const Request& request) { return request.op == "charge"; }

// The arguments that the head of lua/quota.lua lists.
void AppendQuota(Words* words, const Request& request, const Charge& charge) {
  const Limit& limit = charge.limit->limit;
  const int64_t now_ns = request.server_time ? request.host_ns : request.now_ns;
  words->Add(limit.count());
  words->Add(std::min(charge.cost, Limit::kMaxCount));
  words->Add(TermsFor(*limit.quota(), now_ns / kSecondNs));
}

}  // namespace

char LetterOf(std::string_view op, const Charge& charge) {
  const Limit& limit = charge.limit->limit;
  const bool is_of_hit = op == "hit" || op == "peek" || op == "reserve" || op == "raise";
  if (is_of_hit && limit.IsOversize(charge.cost)) return limit.shadow() ? 'p' : 'o';
  return limit.shadow() ? 's' : 'e';
}

void AppendLimit(Words* words, const Request& request, const Charge& charge) {
  const Limit& limit = charge.limit->limit;
  if (const char letter = LetterOf(request.op, charge); letter == 'o' || letter == 'p') {
    Request own = request;
    own.op = "charge";
    own.owes = true;
    return AppendLimit(words, own, charge);
  }
  const size_t part = PartOf(limit);
  const int64_t debt = request.owes ? limit.max_debt() : 0;
  words->Add(NameOf(request, limit));
  if (part == 0) {
    words->AddInstant(limit.depth_ns());
    words->Add(limit.depth_fraction());
    words->Add(limit.denominator());
    // `charge` has the units wanted, each of which costs T, in place of `never`.
    const bool of_used = IsOfUsed(request);
    words->Add(of_used                       ? std::min(charge.cost, limit.burst() + debt)
               : charge.cost > limit.burst() ? 1
                                             : 0);
    const bool gives_back = request.op == "refund" || request.op == "release";
    const int64_t back =
        limit.keeps_count() ? Limit::kMaxKeptCount : limit.burst() + limit.max_debt();
    const int64_t most = gives_back ? back : limit.burst();
    const Interval interval = CostInterval(limit, of_used ? 1 : std::min(charge.cost, most));
    words->AddInstant(interval.ns);
    words->Add(interval.fraction);
    words->Add(limit.keeps_count() ? limit.count() : 0);
    words->Add(limit.span_parts());
    const int64_t period_ns = limit.keeps_count() ? limit.period_ns() : 0;
    words->Add(absl::StrCat(limit.step_ns() / kSecondNs, " ", limit.step_ns() % kSecondNs, " ",
                            limit.step_fraction(), " ", period_ns / kSecondNs, " ",
                            period_ns % kSecondNs));
    if (IsLease(request)) AppendQuestion(words, request, charge);
    if (of_used) {
      const Interval all = CostInterval(limit, limit.burst() + debt);
      words->AddInstant(all.ns);
      words->Add(all.fraction);
    }
    return;
  }
  if (part == 4) {
    AppendQuota(words, request, charge);
    if (IsOfUsed(request)) words->Add(debt);
    return;
  }
  words->AddInstant(limit.period_ns());
  if (part == 1) {
    const int64_t months = limit.calendar() == Calendar::kNone   ? 0
                           : limit.calendar() == Calendar::kYear ? 12 * limit.calendar_units()
                                                                 : limit.calendar_units();
    words->Add(months);
  }
  words->Add(limit.count());
  // A refund of more than the count is cut to it, unless a limit with another number may have
  // charged more; scripts are exact only below 2^53.
  const bool charges = request.op != "refund" && request.op != "release";
  const int64_t most = !charges   ? Limit::kMaxCount
                       : debt > 0 ? std::min(limit.count() + debt, Limit::kMaxCount)
                                  : limit.count() + 1;
  words->Add(std::min(charge.cost, most));
  if (part == 3) words->AddInstant(request.admitted_ns);
  if (part != 3 && IsLease(request)) AppendQuestion(words, request, charge);
  if (IsOfUsed(request)) words->Add(debt);
}

namespace {

CellState CellOf(const Limit& limit, const std::array<int64_t, 8>& state) {
  CellState cell{static_cast<uint64_t>(state[0] * kSecondNs + state[1]),
                 static_cast<uint64_t>(state[2])};
  if (limit.keeps_count()) {
    cell.w1 = (static_cast<uint64_t>(state[2]) & 0xffffffff) | static_cast<uint64_t>(state[3])
                                                                   << 32;
  }
  if (limit.algorithm() == Algorithm::kSlidingWindow) {
    cell.w1 = static_cast<uint64_t>(state[2]) << 32 | static_cast<uint64_t>(state[3]);
  } else if (!limit.keeps_count()) {
    const auto code = static_cast<uint64_t>(state[3]);
    cell.w1 |= IsBucket(limit.algorithm()) ? DebtBitsOf(code) : code << kDebtShift;
  }
  return cell;
}

Decision DecideQuota(const Charge& charge, const Answer& answer, size_t index, bool peek) {
  const Limit& limit = charge.limit->limit;
  QuotaState state = answer.quotas[index];
  if (peek) return PeekQuota(limit, std::move(state), answer.now_ns, charge.cost);
  uint8_t happened = 0;
  const Decision decision = StepQuota(limit, &state, answer.now_ns, charge.cost, &happened);
  if (happened != 0 && answer.allowed) charge.limit->events->Push(charge.key, happened, state);
  return decision;
}

// The state of a quota that refuses one unit, as FullLater() reads it. Nothing for a quota with an
// id: the state would be taken for that of other quotas of the id; nor for a debt, which it lacks.
std::optional<CellState> UsedUpQuota(const Charge& charge, const Answer& answer, size_t index) {
  const Limit& limit = charge.limit->limit;
  if (charge.cost != 1 || !limit.id().empty()) return std::nullopt;
  const Decision decision = PeekQuota(limit, answer.quotas[index], answer.now_ns, 1);
  if (decision.allowed || decision.debt() > 0 || decision.retry_after_ns == Decision::kNever) {
    return std::nullopt;
  }
  const auto until = static_cast<uint64_t>(answer.now_ns + decision.retry_after_ns);
  return CellState{until, until};
}

// The states of quotas are texts, all else integers.
absl::Status CheckTypes(const redisReply& reply, absl::Span<const Charge> plan, bool wide) {
  size_t at = 0;
  const auto expect = [&](size_t number, bool (*is)(const redisReply&)) {
    for (const size_t end = at + number; at < end; ++at) {
      if (!is(*reply.element[at])) return false;
    }
    return true;
  };
  bool good = expect(3, IsInteger);
  for (const Charge& charge : plan) {
    const Limit& limit = charge.limit->limit;
    const size_t texts = limit.quota() == nullptr ? 0 : 1;
    good = good && expect(texts, IsText) && expect(StateSize(limit, wide) - texts, IsInteger);
  }
  return good && expect(reply.elements - at, IsInteger) ? absl::OkStatus() : ForeignReply();
}

// The decision on one unit of a log that is full until `state.w0` and not empty until `state.w1`,
// or of a quota that is used up until then.
Decision FullLater(const Charge& charge, const CellState& state, int64_t now_ns) {
  const Limit& limit = charge.limit->limit;
  Decision d;
  d.limit = &limit;
  d.used_units = limit.count();
  d.retry_after_ns = static_cast<int64_t>(state.w0) - now_ns;
  d.reset_after_ns = std::max<int64_t>(static_cast<int64_t>(state.w1) - now_ns, 0);
  d.behind = charge.cost != 1 || d.retry_after_ns <= 0;
  return d;
}

}  // namespace

Scripts::Script Scripts::ScriptOf(size_t set, std::string_view tail) {
  Script script;
  std::string& text = script.text;
  std::string names = "local algorithms = {";
  text = absl::StrCat(Absl(lua::arithmetic), Absl(lua::value));
  // A script runs its definitions at each call, so it has no more than it needs.
  constexpr size_t kWindows = 1 << 1 | 1 << 2;
  constexpr size_t kOwe = 1 | kWindows | 1 << 3;
  if ((set & 1) != 0) text += lua::slots;
  if ((set & kWindows) != 0) text += lua::floor_to;
  if ((set & kOwe) != 0) text += lua::debt;
  for (size_t i = 0; i < kParts.size(); ++i) {
    if ((set >> i & 1) == 0) continue;
    text += kParts[i].text;
    for (const std::string_view piece :
         {kParts[i].name, std::string_view(" = "), kParts[i].name, std::string_view(", ")}) {
      names += piece;
    }
    if (kParts[i].name == "log") names += "places = log, late_places = log, ";
  }
  text += names + "}\n";
  text += lua::call;
  text += tail;
  text = WithConstants(text);
  script.digest = Sha1InHex(text);
  return script;
}

Scripts::Scripts() {
  for (size_t set = 1; set < scripts_.size(); ++set) scripts_[set] = ScriptOf(set, lua::plan);
  // A short script has the full one of its algorithm, for the states that only that understands.
  const auto short_script = [this](std::string_view text, size_t set) {
    const std::string full = absl::StrCat("(function(KEYS, ARGV)\n", scripts_[set].text, "end)");
    Script script{absl::StrReplaceAll(WithConstants(text), {{"PLAN_LUA", full}}), {}};
    script.digest = Sha1InHex(script.text);
    return script;
  };
  bucket_hits_ = short_script(lua::bucket_hits, 1 << 0);
  fixed_hits_ = short_script(lua::fixed_hits, 1 << 1);
  bucket_plan_ = short_script(lua::bucket_plan, 1 << 0);
}

std::string Scripts::Command(const Request& request, Form form, bool by_text) const {
  if (IsOfHits(form)) return HitsCommand(form, request.plan, request.margin_ms, by_text);
  if (form == Form::kBucketPlan) return BucketPlanCommand(request, by_text);
  if (IsDeletion(request)) {
    Words words;
    words.Add("DEL");
    for (const Charge& charge : request.plan) words.Add(RedisKey(*charge.limit, charge.key));
    return words.Finish();
  }
  size_t set = 0;
  for (const Charge& charge : request.plan) set |= size_t{1} << PartOf(charge.limit->limit);
  if (request.reservation != nullptr) return ReservedCommand(request, set, by_text);
  Words words;
  words.Add(by_text ? "EVAL" : "EVALSHA");
  words.Add(by_text ? scripts_[set].text : scripts_[set].digest);
  words.Add(static_cast<int64_t>(request.plan.size()));
  for (const Charge& charge : request.plan) words.Add(RedisKey(*charge.limit, charge.key));
  words.Add(IsLease(request) ? std::string_view("lease") : request.op);
  if (request.server_time) {
    for (int i = 0; i < 2; ++i) words.Add("");
  } else {
    words.AddInstant(request.now_ns);
  }
  words.Add(request.confirmed ? 1 : 0);
  words.Add(request.margin_ms);
  words.Add(LettersOf(request));
  for (const Charge& charge : request.plan) AppendLimit(&words, request, charge);
  if (request.top_up != nullptr) {
    words.Add(request.top_up->units);
    words.Add(request.top_up->expires_s);
    words.Add(request.top_up->priority + QuotaTopUp::kMostPriority);
  }
  return words.Finish();
}

namespace {

// Whether lua/bucket_hits.lua, which counts in whole microseconds, can charge a bucket of a plan.
bool IsPlainBucket(const Charge& charge) {
  const Limit& limit = charge.limit->limit;
  const Interval cost = CostInterval(limit, charge.cost);
  return limit.depth_fraction() == 0 && limit.depth_ns() % kMicrosecondNs == 0 &&
         cost.fraction == 0 && cost.ns % kMicrosecondNs == 0;
}

// The same for a fixed window. Its end is below 2^53 microseconds, since a period is at most 100
// years.
bool IsPlainWindow(const Charge& charge) {
  const Limit& limit = charge.limit->limit;
  return limit.algorithm() == Algorithm::kFixedWindow && limit.calendar() == Calendar::kNone &&
         !limit.shadow() && !limit.IsOversize(charge.cost) &&
         limit.period_ns() % kMicrosecondNs == 0;
}

}  // namespace

Form Scripts::FormOf(const Request& request) {
  if (request.op != "hit" || !request.server_time || !request.askings.empty()) return Form::kFull;
  if (request.plan.size() == 1 && IsPlainWindow(request.plan[0])) return Form::kFixedHits;
  if (!std::all_of(request.plan.begin(), request.plan.end(), IsOfBucketPlan)) return Form::kFull;
  return request.plan.size() == 1 && IsPlainBucket(request.plan[0]) ? Form::kBucketHits
                                                                    : Form::kBucketPlan;
}

absl::StatusOr<Answer> Scripts::Parse(const redisReply& reply, const Request& request, Form form) {
  if (IsDeletion(request)) {
    if (!IsInteger(reply)) return ForeignReply();
    return Answer();
  }
  if (request.op == "reset" || request.op == "forget") {
    if (reply.type != REDIS_REPLY_ARRAY) return ForeignReply();
    return Answer();
  }
  if (form == Form::kFull) return ParseFull(reply, request);
  if (form == Form::kBucketPlan) return ParseBucketPlan(reply, request);
  return std::move(ParseHits(reply, form, request.plan).front());
}

absl::StatusOr<Answer> Scripts::ParseFull(const redisReply& reply, const Request& request) {
  const absl::Span<const Charge> plan = request.plan;
  const bool of_used = IsOfUsed(request);
  const size_t more = request.reservation != nullptr ? 3 : of_used || IsLease(request) ? 1 : 0;
  const bool wide = reply.elements == 3 + (more + kWide) * plan.size();
  size_t expected = 3 + more * plan.size();
  for (const Charge& charge : plan) expected += StateSize(charge.limit->limit, wide);
  if (reply.type != REDIS_REPLY_ARRAY || reply.elements != expected) return ForeignReply();
  if (absl::Status status = CheckTypes(reply, plan, wide); !status.ok()) return status;
  const auto number = [&](size_t i) { return static_cast<int64_t>(reply.element[i]->integer); };
  if ((number(0) != 0 && number(0) != 1) || number(1) < 0 ||
      number(1) > kMaxInstantNs / kSecondNs || number(2) < 0 || number(2) >= kSecondNs) {
    return ForeignReply();
  }
  for (size_t i = 3; i < expected; ++i) {
    if (IsText(*reply.element[i])) continue;
    if (number(i) < 0 || number(i) >= int64_t{1} << 53) return ForeignValue();
  }
  // Seconds beyond this do not fit 64 bits of nanoseconds.
  constexpr int64_t kLastSecond = 9'223'372'035;
  Answer answer;
  answer.allowed = number(0) == 1;
  answer.now_ns = number(1) * kSecondNs + number(2);
  size_t at = 3;
  for (const Charge& charge : plan) {
    std::array<int64_t, 8>& state = answer.states.emplace_back();
    const size_t size = StateSize(charge.limit->limit, wide);
    if (charge.limit->limit.quota() != nullptr) {
      const redisReply& text = *reply.element[at];
      std::optional<QuotaState> quota = UnpackQuota({text.str, text.len});
      if (!quota.has_value()) return ForeignValue();
      answer.quotas.resize(answer.states.size());
      answer.quotas.back() = *std::move(quota);
      at += size;
      continue;
    }
    for (size_t i = 0; i < size; ++i) state[i] = number(at + i);
    const Limit& limit = charge.limit->limit;
    const bool is_log = IsLog(limit.algorithm());
    const bool has_code = !limit.keeps_count() && (IsBucket(limit.algorithm()) ||
                                                   limit.algorithm() == Algorithm::kFixedWindow);
    if (has_code && state[3] > static_cast<int64_t>(kMostDebtCode)) return ForeignValue();
    if (state[0] > kLastSecond || state[1] >= kSecondNs ||
        (is_log && (state[4] > kLastSecond || state[5] >= kSecondNs)) ||
        (!is_log && state[4] / 1'000'000 > kLastSecond)) {
      return ForeignValue();
    }
    at += size;
  }
  for (size_t i = 0; IsLease(request) && i < plan.size(); ++i) {
    answer.granted.push_back(number(at + i));
    if (answer.granted.back() > WantOf(request, i)) return ForeignValue();
  }
  for (size_t i = 0; of_used && i < plan.size(); ++i) {
    const int64_t units = number(at + i);
    const Limit& limit = plan[i].limit->limit;
    const int64_t debt = request.owes ? limit.max_debt() : 0;
    const int64_t most = limit.quota() == nullptr ? limit.capacity() + debt : plan[i].cost;
    if (units > std::min(plan[i].cost, most)) return ForeignValue();
    answer.charged.push_back(units);
  }
  for (size_t i = 0; request.reservation != nullptr && i < plan.size(); ++i, at += 3) {
    if (number(at) > static_cast<int64_t>(Found::kOther)) return ForeignReply();
    answer.records.push_back({static_cast<Found>(number(at)), number(at + 1), number(at + 2)});
  }
  return answer;
}

Decision Scripts::Decide(const Charge& charge, const Answer& answer, size_t index, bool peek) {
  const Limit& limit = charge.limit->limit;
  if (IsLog(limit.algorithm())) {
    return DecideLog(charge, answer, index, !peek && answer.allowed);
  }
  if (limit.quota() != nullptr) return DecideQuota(charge, answer, index, peek);
  const CellState cell = CellOf(limit, answer.states[index]);
  CellState ignored;
  Decision d = peek ? Peek(limit, cell, answer.now_ns, charge.cost)
                    : Step(limit, cell, answer.now_ns, charge.cost, &ignored);
  if (!d.allowed && d.retry_after_ns != Decision::kNever) {
    d.retry_after_ns = std::max(d.retry_after_ns, WaitUnderCap(charge, answer, index));
  }
  return d;
}

Decision Scripts::DecideUsed(Op op, const Charge& charge, const Answer& answer, size_t index) {
  const Limit& limit = charge.limit->limit;
  const int64_t units = answer.charged[index];
  const int64_t most_debt = MostDebt(op, limit);
  if (IsLog(limit.algorithm())) return DecideLogOfUsed(charge, answer, index, most_debt);
  Decision d;
  if (limit.quota() != nullptr) {
    QuotaState state = answer.quotas[index];
    uint8_t happened = 0;
    d = StepQuotaCharge(limit, &state, answer.now_ns, charge.cost, most_debt, &happened);
    if (happened != 0 && answer.allowed) charge.limit->events->Push(charge.key, happened, state);
  } else {
    CellState ignored;
    d = StepCharge(limit, CellOf(limit, answer.states[index]), answer.now_ns, charge.cost,
                   most_debt, &ignored);
  }
  d.allowed = d.charged == units || limit.keeps_count() || d.behind;
  d.charged = units;
  return d;
}

std::optional<CellState> Scripts::Steppable(const Charge& charge, const Answer& answer,
                                            size_t index) {
  const Limit& limit = charge.limit->limit;
  const auto& state = answer.states[index];
  if (limit.algorithm() == Algorithm::kConcurrency) return std::nullopt;
  if (limit.quota() != nullptr) return UsedUpQuota(charge, answer, index);
  // A log that is full under one number may have room under another number of its id.
  if (IsLog(limit.algorithm()) && !limit.id().empty()) return std::nullopt;
  if (limit.algorithm() != Algorithm::kSlidingLog) return CellOf(limit, state);
  // A full log: the instants at which one unit ends, and the last.
  if (charge.cost != 1 || state[2] != limit.count()) return std::nullopt;
  return CellState{static_cast<uint64_t>(state[4] * kSecondNs + state[5]),
                   static_cast<uint64_t>(state[0] * kSecondNs + state[1])};
}

Decision Scripts::StepLater(const Charge& charge, const CellState& state, int64_t now_ns) {
  const Limit& limit = charge.limit->limit;
  if (!HasCell(limit.algorithm())) return FullLater(charge, state, now_ns);
  CellState ignored;
  return Step(limit, state, now_ns, charge.cost, &ignored);
}

Decision Scripts::PeekLater(const Charge& charge, const CellState& state, int64_t now_ns) {
  const Limit& limit = charge.limit->limit;
  if (!HasCell(limit.algorithm())) return FullLater(charge, state, now_ns);
  return Peek(limit, state, now_ns, charge.cost);
}

}  // namespace tidegate::redis
