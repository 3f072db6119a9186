#include "server/checks/check_proto.h"

#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "absl/strings/str_cat.h"
#include "server/checks/decision_values.h"
#include "tidegate/reservation.h"

namespace tidegate::server {

namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::pbf_writer;

std::string_view View(const protozero::data_view& view) { return {view.data(), view.size()}; }

Problem Malformed(std::string_view what) {
  return Problem::BadRequest(
      absl::StrCat("the message is malformed", std::string(what), "; expected one of tidegate.v1"));
}

Problem WrongType(uint32_t field) {
  return Problem::BadRequest(absl::StrCat("field ", field,
                                          " has another wire type than its definition; expected a "
                                          "message of tidegate.v1"));
}

// The value replaces an earlier one of the same name, as in any map of protobuf.
std::optional<Problem> ReadAttribute(pbf_reader entry, Asked* asked) {
  std::string_view name;
  std::string_view value;
  while (entry.next()) {
    if (entry.tag() > 2) {
      entry.skip();
    } else if (entry.wire_type() != pbf_wire_type::length_delimited) {
      return WrongType(entry.tag());
    } else {
      std::string_view& place = entry.tag() == 1 ? name : value;
      place = View(entry.get_view());
    }
  }
  for (Attribute& known : asked->attributes) {
    if (known.name != name) continue;
    asked->attributes.erase(&known);
    break;
  }
  return asked->Add(name, value);
}

std::optional<Problem> ReadCost(int64_t cost, Asked* asked) {
  if (cost < 0 || cost > kMostCost) return CostProblem(std::to_string(cost));
  asked->cost_is_given = cost != 0;
  asked->cost = cost == 0 ? 1 : cost;
  return std::nullopt;
}

// google.protobuf.Duration.
std::optional<Problem> ReadTtl(pbf_reader reader, Asked* asked) {
  int64_t seconds = 0;
  int64_t ns = 0;
  while (reader.next()) {
    if (reader.tag() > 2) {
      reader.skip();
    } else if (reader.wire_type() != pbf_wire_type::varint) {
      return WrongType(reader.tag());
    } else if (reader.tag() == 1) {
      seconds = reader.get_int64();
    } else {
      ns = reader.get_int32();
    }
  }
  const bool is_sound = seconds >= 0 && seconds <= Reservation::kMostTtlNs / kSecondNs && ns >= 0 &&
                        ns < kSecondNs && seconds * kSecondNs + ns >= kLeastTtlNs &&
                        seconds * kSecondNs + ns <= Reservation::kMostTtlNs;
  if (!is_sound) return TtlProblem(absl::StrCat(seconds, " s and ", ns, " ns"));
  asked->ttl_ns = seconds * kSecondNs + ns;
  return std::nullopt;
}

// An entry of a map of names to int64.
std::optional<Problem> ReadUsed(pbf_reader entry, Asked* asked) {
  std::string_view field;
  int64_t used = 0;
  while (entry.next()) {
    if (entry.tag() > 2) {
      entry.skip();
    } else if (entry.wire_type() !=
               (entry.tag() == 1 ? pbf_wire_type::length_delimited : pbf_wire_type::varint)) {
      return WrongType(entry.tag());
    } else if (entry.tag() == 1) {
      field = View(entry.get_view());
    } else {
      used = entry.get_int64();
    }
  }
  return asked->Use(field, used);
}

std::optional<Problem> ReadSettle(pbf_reader reader, int64_t least_cost, Asked* asked) {
  int64_t cost = 0;
  while (reader.next()) {
    if (reader.tag() == 1) {
      if (reader.wire_type() != pbf_wire_type::length_delimited) return WrongType(1);
      asked->reservation = View(reader.get_view());
    } else if (reader.tag() == 2 && least_cost != kNoCost) {
      if (reader.wire_type() != pbf_wire_type::varint) return WrongType(2);
      cost = reader.get_int64();
    } else if (reader.tag() == 3 && least_cost == 0) {
      if (reader.wire_type() != pbf_wire_type::length_delimited) return WrongType(3);
      if (auto problem = ReadUsed(reader.get_message(), asked)) return problem;
    } else {
      reader.skip();
    }
  }
  if (cost != 0 && asked->usage.has_value()) return CostAndUsage();
  if (cost < least_cost || cost > kMostCost) {
    return CostProblem(std::to_string(cost), least_cost);
  }
  asked->cost = cost;
  return std::nullopt;
}

std::optional<Problem> Read(Message message, pbf_reader reader, Asked* asked) {
  while (reader.next()) {
    const uint32_t field = reader.tag();
    const bool is_text = reader.wire_type() == pbf_wire_type::length_delimited;
    const bool is_number = reader.wire_type() == pbf_wire_type::varint;
    const bool has_cost = message != Message::kReset && message != Message::kStatus;
    if (field == 1) {
      if (!is_text) return WrongType(field);
      if (auto problem = ReadAttribute(reader.get_message(), asked)) return problem;
    } else if (field == 2 && has_cost) {
      if (!is_number) return WrongType(field);
      if (auto problem = ReadCost(reader.get_int64(), asked)) return problem;
    } else if (field == 2 && message == Message::kReset) {
      if (!is_text) return WrongType(field);
      asked->rule_ids.push_back(View(reader.get_view()));
      if (asked->rule_ids.size() > kMostRules) {
        return Problem::BadRequest(absl::StrCat("more than ", kMostRules,
                                                " rules were given; expected at most that many"));
      }
    } else if (field == 3 && message == Message::kCheck) {
      if (!is_number) return WrongType(field);
      // get_bool() would read beyond the end of a message that is cut off.
      asked->wants_outcomes = reader.get_uint64() != 0;
    } else if (field == 3 && message == Message::kRefund) {
      if (!is_text) return WrongType(field);
      asked->decision = View(reader.get_view());
    } else if (field == 3 && message == Message::kReserve) {
      if (!is_text) return WrongType(field);
      if (auto problem = ReadTtl(reader.get_message(), asked)) return problem;
    } else if (field == 4 && message == Message::kRefund) {
      if (!is_text) return WrongType(field);
      asked->once = View(reader.get_view());
      if (asked->once.empty() || asked->once.size() > kMostOnceBytes) {
        return Problem::BadRequest(absl::StrCat("the token of the refund has ", asked->once.size(),
                                                " bytes; expected 1 to ", kMostOnceBytes));
      }
    } else {
      reader.skip();
    }
  }
  return std::nullopt;
}

// Calls `read`, and turns exceptions of protozero about a malformed message into a problem.
template <typename ReadIt>
std::optional<Problem> Caught(ReadIt read) {
  try {
    return read();
  } catch (const protozero::exception& error) {
    return Malformed(absl::StrCat(": ", error.what()));
  }
}

void AddText(pbf_writer& writer, uint32_t field, std::string_view text) {
  if (!text.empty()) writer.add_bytes(field, text.data(), text.size());
}

// google.protobuf.Duration and Timestamp: seconds 1, nanos 2.
void AddTime(pbf_writer& writer, uint32_t field, int64_t ns) {
  pbf_writer time(writer, field);
  if (ns / kSecondNs != 0) time.add_int64(1, ns / kSecondNs);
  if (ns % kSecondNs != 0) time.add_int32(2, static_cast<int32_t>(ns % kSecondNs));
}

void AddRetryAfter(pbf_writer& writer, uint32_t field, const Decision& d) {
  if (!d.allowed && d.retry_after_ns != Decision::kNever) AddTime(writer, field, d.retry_after_ns);
}

void AddOutcome(pbf_writer& writer, uint32_t field, const Decision& outcome) {
  pbf_writer message(writer, field);
  AddText(message, 1, outcome.limit->name());
  AddText(message, 2, outcome.limit->rule());
  if (outcome.allowed) message.add_bool(3, true);
  if (outcome.limit->shadow()) message.add_bool(4, true);
  message.add_int64(5, outcome.limit->capacity());
  message.add_int64(6, outcome.remaining());
  AddRetryAfter(message, 7, outcome);
  AddTime(message, 8, outcome.reset_after_ns);
}

void AddPenalty(pbf_writer& writer, uint32_t field, const Penalty& penalty) {
  pbf_writer message(writer, field);
  message.add_enum(1, penalty.blocks ? 2 : 1);
  AddText(message, 2, penalty.reason);
  AddTime(message, 3, penalty.left_ns);
  AddTime(message, 4, penalty.end_ns());
}

}  // namespace

std::optional<Problem> ReadRequest(Message message, std::string_view body, Asked* asked) {
  return Caught([&] { return Read(message, pbf_reader(body.data(), body.size()), asked); });
}

std::optional<Problem> ReadSettleRequest(std::string_view body, int64_t least_cost, Asked* asked) {
  return Caught(
      [&] { return ReadSettle(pbf_reader(body.data(), body.size()), least_cost, asked); });
}

std::optional<Problem> ReadCheckMany(std::string_view body, std::vector<Asked>* checks) {
  return Caught([&]() -> std::optional<Problem> {
    pbf_reader reader(body.data(), body.size());
    while (reader.next()) {
      if (reader.tag() != 1) {
        reader.skip();
        continue;
      }
      if (reader.wire_type() != pbf_wire_type::length_delimited) return WrongType(1);
      if (checks->size() == kMostChecks) {
        return Problem::BadRequest(absl::StrCat("more than ", kMostChecks,
                                                " checks were given; expected at most that many"));
      }
      if (auto problem = Read(Message::kCheck, reader.get_message(), &checks->emplace_back())) {
        problem->detail = absl::StrCat("check ", checks->size() - 1, ": ", problem->detail);
        return problem;
      }
    }
    if (checks->empty()) return Problem::BadRequest("no checks were given; expected 1 or more");
    return std::nullopt;
  });
}

void AppendCheckResponse(const Decision& decision, const Outcomes* outcomes, std::string_view token,
                         std::string* body) {
  pbf_writer writer(*body);
  if (decision.allowed) writer.add_bool(1, true);
  if (!IsUnlimited(decision)) {
    writer.add_int64(2, decision.limit->capacity());
    writer.add_int64(3, decision.remaining());
    AddRetryAfter(writer, 4, decision);
    AddTime(writer, 5, decision.reset_after_ns);
    AddTime(writer, 6, InstantAfter(decision.at_ns, decision.reset_after_ns));
    if (decision.delay_ns > 0) AddTime(writer, 7, decision.delay_ns);
  }
  AddText(writer, 8, decision.limit->rule());
  if (decision.degraded) writer.add_bool(9, true);
  if (outcomes != nullptr) {
    for (const Decision& outcome : *outcomes) AddOutcome(writer, 10, outcome);
  }
  AddText(writer, 11, token);
}

void AppendReserveResponse(const Decision& decision, std::string_view reservation,
                           std::string* body) {
  std::string answer;
  AppendCheckResponse(decision, nullptr, {}, &answer);
  pbf_writer writer(*body);
  writer.add_message(1, answer.data(), answer.size());
  AddText(writer, 2, reservation);
}

void AppendSettleResponse(const Decision& decision, std::string* body) {
  std::string answer;
  AppendCheckResponse(decision, nullptr, {}, &answer);
  pbf_writer writer(*body);
  writer.add_message(1, answer.data(), answer.size());
  if (decision.charged > 0) writer.add_int64(2, decision.charged);
}

void AppendAnswer(std::string_view check_response, std::string* body) {
  pbf_writer(*body).add_message(1, check_response.data(), check_response.size());
}

void AppendStatusResponse(const RuleSet& rules, const RuleLimiter::Status& status,
                          const std::optional<Penalty>& penalty, bool is_degraded,
                          std::string* body) {
  pbf_writer writer(*body);
  for (const RuleLimiter::RuleState& state : status.rules) {
    pbf_writer rule(writer, 1);
    AddText(rule, 1, rules.rules()[state.rule].id);
    for (const std::string& endpoint : state.endpoints) AddText(rule, 2, endpoint);
    for (uint32_t i = 0; i < state.count; ++i) {
      AddOutcome(rule, 3, status.outcomes[state.first + i]);
    }
  }
  if (status.listed != nullptr) {
    AddText(writer, 2, status.listed->name);
    if (status.listed->allows) writer.add_bool(3, true);
  }
  if (status.is_cut) writer.add_bool(4, true);
  if (is_degraded) writer.add_bool(5, true);
  if (penalty.has_value()) AddPenalty(writer, 6, *penalty);
}

}  // namespace tidegate::server
