#include "server/checks/check_json.h"

#include <simdjson.h>

#include <array>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/checks/decision_values.h"
#include "server/json_text.h"
#include "tidegate/reservation.h"

namespace tidegate::server {

namespace {

namespace dom = simdjson::dom;

constexpr size_t kMostDepth = 4;
constexpr size_t kMostManyDepth = kMostDepth + 2;

constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kMembers = {{
    {"userId", "user"},
    {"apiKey", "api_key"},
    {"endpoint", "endpoint"},
    {"tier", "tier"},
    {"method", "method"},
    {"ip", "ip"},
}};

std::string_view KindOf(const dom::element& value) {
  switch (value.type()) {
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a boolean";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

// Reads a whole number, also one that is written as 5.0 or 1e3. Returns what else it is, or
// nothing.
std::string_view NotWhole(const dom::element& value, int64_t* number) {
  switch (value.type()) {
    case dom::element_type::INT64:
      return value.get(*number) == simdjson::SUCCESS ? "" : "a number";
    case dom::element_type::UINT64:
      return "2^63 or more";
    case dom::element_type::DOUBLE: {
      double real = 0;
      if (value.get(real) != simdjson::SUCCESS) return "a number";
      if (real >= 0x1p63) return "2^63 or more";
      if (real < -0x1p63) return "less than -2^63";
      *number = static_cast<int64_t>(real);
      return static_cast<double>(*number) == real ? "" : "a number with a fraction";
    }
    default:
      return KindOf(value);
  }
}

Problem WrongKind(std::string_view member, const dom::element& value, std::string_view expected) {
  return Problem::BadRequest(absl::StrCat("the member ", Quote(member), " is ", Absl(KindOf(value)),
                                          "; expected ", Absl(expected)));
}

std::string_view ReasonOf(simdjson::error_code error) {
  switch (error) {
    case simdjson::UTF8_ERROR:
      return "bytes that are not UTF-8";
    case simdjson::DEPTH_ERROR:
      return "values that are nested too deeply";
    case simdjson::NUMBER_ERROR:
      return "a number that is malformed or out of range";
    case simdjson::STRING_ERROR:
      return "a malformed string";
    case simdjson::UNCLOSED_STRING:
      return "a string without an end";
    case simdjson::UNESCAPED_CHARS:
      return "control characters in a string";
    case simdjson::EMPTY:
      return "nothing";
    default:
      return "malformed JSON";
  }
}

enum class Body : uint8_t { kCheck, kReserve, kSettle };

// Reads one body into `asked`.
class Reader {
 public:
  Reader(Asked* asked, bool may_have_surrogates, Body body = Body::kCheck, int64_t least_cost = 1)
      : asked_(*asked),
        may_have_surrogates_(may_have_surrogates),
        body_(body),
        least_cost_(least_cost) {}

  std::optional<Problem> Read(const dom::object& body) {
    for (const dom::key_value_pair member : body) {
      if (auto problem = ReadMember(member.key, member.value)) return problem;
    }
    return std::nullopt;
  }

 private:
  std::optional<Problem> ReadMember(std::string_view name, const dom::element& value) {
    if (name == "cost" && least_cost_ != kNoCost) return ReadCost(value);
    if (body_ == Body::kSettle) {
      if (name == "reservation") return ReadReservation(value);
      if (name == "usage" && least_cost_ == 0) return ReadUsage(value);
      return Problem::BadRequest(absl::StrCat("the member ", Quote(name),
                                              " is not known; expected reservation",
                                              least_cost_ == kNoCost ? ""
                                              : least_cost_ == 0     ? ", cost or usage"
                                                                     : " or cost"));
    }
    for (size_t i = 0; i < kMembers.size(); ++i) {
      if (kMembers[i].first == name) return ReadText(name, kMembers[i].second, value);
    }
    if (name == "attributes") return ReadAttributes(value);
    if (name == "outcomes" && body_ == Body::kCheck) return ReadOutcomes(value);
    if (name == "ttl" && body_ == Body::kReserve) return ReadTtl(value);
    return Problem::BadRequest(
        absl::StrCat("the member ", Quote(name),
                     " is not known; expected userId, apiKey, endpoint, tier, method, ip, cost, "
                     "attributes or ",
                     body_ == Body::kReserve ? "ttl" : "outcomes"));
  }

  std::optional<Problem> ReadReservation(const dom::element& value) {
    if (asked_.reservation.data() != nullptr) return Repeated("reservation");
    if (value.get(asked_.reservation) != simdjson::SUCCESS) {
      return WrongKind("reservation", value, "a string");
    }
    return std::nullopt;
  }

  std::optional<Problem> ReadUsage(const dom::element& value) {
    if (asked_.usage.has_value()) return Repeated("usage");
    if (value.is_null()) return std::nullopt;
    dom::object fields;
    if (value.get(fields) != simdjson::SUCCESS) {
      return WrongKind("usage", value, "an object of integers");
    }
    asked_.usage.emplace();
    for (const dom::key_value_pair field : fields) {
      int64_t used = 0;
      if (!field.value.is_null()) {
        const std::string_view given = NotWhole(field.value, &used);
        if (!given.empty()) return UsageProblem(field.key, given);
      }
      if (auto problem = asked_.Use(field.key, used)) return problem;
    }
    return std::nullopt;
  }

  std::optional<Problem> ReadTtl(const dom::element& value) {
    if (std::exchange(has_ttl_, true)) return Repeated("ttl");
    if (value.is_null()) return std::nullopt;
    double seconds = 0;
    if (value.get(seconds) != simdjson::SUCCESS) return TtlProblem(KindOf(value));
    const double ns = seconds * double{kSecondNs};
    if (!(ns >= double{kLeastTtlNs} && ns <= double{Reservation::kMostTtlNs})) {
      return TtlProblem(std::to_string(seconds));
    }
    asked_.ttl_ns = static_cast<int64_t>(ns);
    return std::nullopt;
  }

  std::optional<Problem> Repeated(std::string_view name) {
    return Problem::BadRequest(
        absl::StrCat("the member ", Quote(name), " was given twice; expected each member once"));
  }

  std::optional<Problem> ReadText(std::string_view member, std::string_view attribute,
                                  const dom::element& value) {
    if (value.is_null()) return std::nullopt;
    std::string_view text;
    if (value.get(text) != simdjson::SUCCESS) return WrongKind(member, value, "a string");
    if (may_have_surrogates_ && !simdjson::validate_utf8(text.data(), text.size())) {
      return Problem::BadRequest(absl::StrCat("the member ", Quote(member),
                                              " has half of a surrogate pair; expected text"));
    }
    if (asked_.Get(attribute).data() != nullptr) return Repeated(member);
    return asked_.Add(attribute, text);
  }

  std::optional<Problem> ReadAttributes(const dom::element& value) {
    if (std::exchange(has_attributes_, true)) return Repeated("attributes");
    if (value.is_null()) return std::nullopt;
    dom::object object;
    if (value.get(object) != simdjson::SUCCESS) {
      return WrongKind("attributes", value, "an object of strings");
    }
    for (const dom::key_value_pair member : object) {
      if (auto problem = ReadText(member.key, member.key, member.value)) return problem;
    }
    return std::nullopt;
  }

  std::optional<Problem> ReadCost(const dom::element& value) {
    if (std::exchange(has_cost_, true)) return Repeated("cost");
    if (value.is_null()) return std::nullopt;
    int64_t cost = 0;
    const std::string_view given = NotWhole(value, &cost);
    if (!given.empty()) return CostProblem(given, least_cost_);
    if (cost < least_cost_ || cost > kMostCost) {
      return CostProblem(std::to_string(cost), least_cost_);
    }
    asked_.cost = cost;
    asked_.cost_is_given = true;
    return std::nullopt;
  }

  std::optional<Problem> ReadOutcomes(const dom::element& value) {
    if (std::exchange(has_outcomes_, true)) return Repeated("outcomes");
    if (value.is_null()) return std::nullopt;
    if (value.get(asked_.wants_outcomes) != simdjson::SUCCESS) {
      return WrongKind("outcomes", value, "true or false");
    }
    return std::nullopt;
  }

  Asked& asked_;
  const bool may_have_surrogates_;
  const Body body_;
  const int64_t least_cost_;
  bool has_ttl_ = false;
  bool has_attributes_ = false;
  bool has_cost_ = false;
  bool has_outcomes_ = false;
};

// Each thread has parsers, whose memory is bounded by `most` bytes of a body.
struct Room {
  const size_t most;
  dom::parser parser{most};
  std::string padded;

  // If memory is short, parsing fails too.
  Room(size_t bytes, size_t depth) : most(bytes) { std::ignore = parser.allocate(bytes, depth); }

  // Returns the object that a body is. It lives until the thread reads the next body.
  std::optional<Problem> Read(std::string_view body, std::string_view example,
                              dom::object* object) {
    if (body.size() > most) {
      return Problem{413, GrpcStatus::kResourceExhausted,
                     absl::StrCat("the body has ", body.size(), " bytes; expected at most ", most)};
    }
    padded.assign(body);
    padded.append(simdjson::SIMDJSON_PADDING, ' ');
    dom::element element;
    const auto error = parser
                           .parse(reinterpret_cast<const uint8_t*>(padded.data()), body.size(),
                                  /*realloc_if_needed=*/false)
                           .get(element);
    if (error != simdjson::SUCCESS) {
      return Problem::BadRequest(absl::StrCat("the body has ", Absl(ReasonOf(error)),
                                              "; expected a JSON object such as ", Absl(example)));
    }
    if (element.get(*object) != simdjson::SUCCESS) {
      return Problem::BadRequest(
          absl::StrCat("the body is ", Absl(KindOf(element)), "; expected an object"));
    }
    return std::nullopt;
  }
};

bool MayHaveSurrogates(std::string_view body) { return body.find("\\u") != std::string_view::npos; }

std::optional<Problem> ReadChecks(const dom::array& list, bool may_have_surrogates,
                                  std::vector<Asked>* checks) {
  if (list.size() == 0) return Problem::BadRequest("no checks were given; expected 1 or more");
  if (list.size() > kMostChecks) {
    return Problem::BadRequest(
        absl::StrCat("more than ", kMostChecks, " checks were given; expected at most that many"));
  }
  checks->reserve(list.size());
  for (const dom::element value : list) {
    dom::object object;
    std::optional<Problem> problem;
    if (value.get(object) == simdjson::SUCCESS) {
      problem = Reader(&checks->emplace_back(), may_have_surrogates).Read(object);
    } else {
      problem =
          Problem::BadRequest(absl::StrCat("it is ", Absl(KindOf(value)), "; expected an object"));
      checks->emplace_back();
    }
    if (problem.has_value()) {
      problem->detail = absl::StrCat("check ", checks->size() - 1, ": ", problem->detail);
      return problem;
    }
  }
  return std::nullopt;
}

void AppendNullable(const std::optional<int64_t>& number, std::string* json) {
  if (number.has_value()) {
    absl::StrAppend(json, *number);
  } else {
    *json += "null";
  }
}

// "limit":…,"remaining":…,"resetTime":…
void AppendRoom(const Decision& d, std::string* json) {
  if (IsUnlimited(d)) {
    *json += R"("limit":null,"remaining":null,"resetTime":null)";
    return;
  }
  absl::StrAppend(json, R"("limit":)", d.limit->capacity(), R"(,"remaining":)", d.remaining(),
                  R"(,"resetTime":)", ResetTime(d));
}

// Appends the members without the braces.
void AppendMembers(const Decision& d, std::string* json) {
  *json += d.allowed ? R"("allowed":true,)" : R"("allowed":false,)";
  AppendRoom(d, json);
  *json += R"(,"retryAfter":)";
  AppendNullable(WaitSeconds(d), json);
  if (d.delay_ns > 0) {
    absl::StrAppend(json, R"(,"delayMs":)", (d.delay_ns + 999'999) / 1'000'000);
  }
  *json += d.degraded ? R"(,"degraded":true,"rule":)" : R"(,"degraded":false,"rule":)";
  if (d.limit->rule().empty()) {
    *json += "null";
  } else {
    AppendJsonString(d.limit->rule(), json);
  }
}

// For bodies of one request. A module that Python loads has little room for thread-local objects.
Room& RoomOfOne() {
  thread_local Room room(kMostJsonBytes, kMostDepth);
  return room;
}

}  // namespace

std::string_view AttributeOfMember(std::string_view member) {
  for (const auto& [name, attribute] : kMembers) {
    if (name == member) return attribute;
  }
  return {};
}

std::optional<Problem> ReadCheckJson(std::string_view body, Asked* asked) {
  dom::object object;
  if (auto problem =
          RoomOfOne().Read(body, R"({"userId": "42", "endpoint": "/api/posts"})", &object)) {
    return problem;
  }
  return Reader(asked, MayHaveSurrogates(body)).Read(object);
}

std::optional<Problem> ReadReserveJson(std::string_view body, Asked* asked) {
  dom::object object;
  if (auto problem = RoomOfOne().Read(body, R"({"userId": "42", "cost": 500})", &object))
    return problem;
  return Reader(asked, MayHaveSurrogates(body), Body::kReserve).Read(object);
}

std::optional<Problem> ReadSettleJson(std::string_view body, int64_t least_cost, Asked* asked) {
  dom::object object;
  if (auto problem =
          RoomOfOne().Read(body, R"({"reservation": "tgs1.AbC", "cost": 730})", &object)) {
    return problem;
  }
  if (auto problem = Reader(asked, false, Body::kSettle, least_cost).Read(object)) return problem;
  if (asked->reservation.data() == nullptr) {
    return Problem::BadRequest("the member \"reservation\" is missing; expected its token");
  }
  if (asked->usage.has_value()) {
    return asked->cost_is_given ? std::optional(CostAndUsage()) : std::nullopt;
  }
  if (least_cost != kNoCost && !asked->cost_is_given) {
    return Problem::BadRequest("the member \"cost\" is missing; expected what was used");
  }
  return std::nullopt;
}

std::optional<Problem> ReadCheckManyJson(std::string_view body, std::vector<Asked>* checks) {
  thread_local Room room(kMostManyJsonBytes, kMostManyDepth);
  dom::object object;
  if (auto problem = room.Read(body, R"({"checks": [{"userId": "42"}]})", &object)) return problem;
  bool has_checks = false;
  for (const dom::key_value_pair member : object) {
    if (member.key != "checks") {
      return Problem::BadRequest(
          absl::StrCat("the member ", Quote(member.key), " is not known; expected checks"));
    }
    if (std::exchange(has_checks, true)) {
      return Problem::BadRequest("the member \"checks\" was given twice; expected it once");
    }
    dom::array list;
    if (member.value.get(list) != simdjson::SUCCESS) {
      return WrongKind("checks", member.value, "a list of checks");
    }
    if (auto problem = ReadChecks(list, MayHaveSurrogates(body), checks)) return problem;
  }
  if (!has_checks) return Problem::BadRequest("the member \"checks\" is missing; expected a list");
  return std::nullopt;
}

void AppendDecisionJson(const Decision& decision, const Outcomes* outcomes, std::string* json) {
  AppendDecisionJson(decision, outcomes, {}, json);
}

void AppendDecisionJson(const Decision& decision, const Outcomes* outcomes, std::string_view extra,
                        std::string* json) {
  *json += '{';
  AppendMembers(decision, json);
  *json += extra;
  if (outcomes != nullptr) {
    *json += R"(,"outcomes":[)";
    for (size_t i = 0; i < outcomes->size(); ++i) {
      const Decision& outcome = (*outcomes)[i];
      *json += i == 0 ? R"({"name":)" : R"(,{"name":)";
      AppendJsonString(outcome.limit->name(), json);
      *json += outcome.limit->shadow() ? R"(,"shadow":true,)" : R"(,"shadow":false,)";
      AppendMembers(outcome, json);
      *json += '}';
    }
    *json += ']';
  }
  *json += '}';
}

void AppendStatusJson(const RuleSet& rules, const RuleLimiter::Status& status,
                      const std::optional<Penalty>& penalty, bool is_degraded, std::string* json) {
  *json += R"({"rules":[)";
  bool is_first = true;
  const auto append_row = [&](std::string_view endpoint, const RuleLimiter::RuleState& state) {
    const absl::Span<const Decision> outcomes(status.outcomes);
    const Decision* const tightest = Tightest(outcomes.subspan(state.first, state.count));
    // Customers would take a limit that refuses nothing for one of theirs.
    if (tightest != nullptr && tightest->limit->shadow()) return;
    *json += std::exchange(is_first, false) ? R"({"rule":)" : R"(,{"rule":)";
    AppendJsonString(rules.rules()[state.rule].id, json);
    *json += R"(,"endpoint":)";
    AppendJsonString(endpoint, json);
    *json += ',';
    if (tightest != nullptr) {
      AppendRoom(*tightest, json);
    } else {
      *json += R"("limit":null,"remaining":null,"resetTime":null)";
    }
    *json += '}';
  };
  for (const RuleLimiter::RuleState& state : status.rules) {
    if (state.endpoints.empty()) append_row("*", state);
    for (const std::string& endpoint : state.endpoints) append_row(endpoint, state);
  }
  *json += is_degraded ? R"(],"degraded":true)" : R"(],"degraded":false)";
  if (status.is_cut) *json += R"(,"truncated":true)";
  if (status.listed != nullptr) {
    *json += R"(,"list":{"name":)";
    AppendJsonString(status.listed->name, json);
    *json += status.listed->allows ? R"(,"allows":true})" : R"(,"allows":false})";
  }
  if (penalty.has_value()) {
    absl::StrAppend(json, R"(,"enforced":{"action":")", penalty->blocks ? "block" : "throttle",
                    R"(","until":)", CeilSeconds(penalty->end_ns()), R"(,"reason":)");
    AppendJsonString(penalty->reason, json);
    *json += '}';
  }
  *json += "}\n";
}

}  // namespace tidegate::server
