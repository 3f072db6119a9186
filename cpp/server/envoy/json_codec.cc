#include "server/envoy/json_codec.h"

#include <simdjson.h>

#include <limits>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "server/json_text.h"

namespace tidegate::server::envoy {

namespace {

namespace dom = simdjson::dom;
using dom::element;
using dom::element_type;

absl::Status Refuse(std::string_view field, std::string_view given, std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(field), " is ", Absl(given), "; expected ", Absl(expected)));
}

// Shortens `text` for a message, without splitting a character.
std::string Shortened(std::string_view text) {
  size_t end = 80;
  if (text.size() <= end) return std::string(text);
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80) --end;
  return absl::StrCat(Absl(text.substr(0, end)), "...");
}

std::string Shown(const element& value) { return Shortened(simdjson::minify(value)); }

// Calls `read` with the number of each field of `object` in `names`, in which each field has two
// adjacent spellings. Skips null.
absl::Status ForEachField(const element& value, std::string_view what,
                          absl::Span<const std::string_view> names,
                          absl::FunctionRef<absl::Status(size_t, const element&)> read) {
  dom::object object;
  if (value.get(object) != simdjson::SUCCESS) return Refuse(what, Shown(value), "an object");
  uint32_t seen = 0;
  for (const dom::key_value_pair field : object) {
    size_t i = 0;
    while (i < names.size() && names[i] != field.key) ++i;
    if (i == names.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", Shortened(field.key), "' is not a field of ", Absl(what)));
    }
    const size_t number = i / 2;
    if ((seen >> number & 1U) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("'", Absl(field.key), "' is given twice"));
    }
    seen |= 1U << number;
    if (field.value.is_null()) continue;
    if (absl::Status status = read(number, field.value); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadText(const element& value, std::string_view field, std::string_view* text) {
  if (value.get(*text) == simdjson::SUCCESS) return absl::OkStatus();
  return Refuse(field, Shown(value), "a text");
}

absl::Status ReadNumber(const element& value, std::string_view field, uint64_t most,
                        uint64_t* number) {
  std::string_view text;
  double real = 0;
  if (value.get(text) == simdjson::SUCCESS) {
    // SimpleAtoi would accept signs and spaces.
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    if (digits && absl::SimpleAtoi(Absl(text), number) && *number <= most) return absl::OkStatus();
  } else if (value.get(*number) == simdjson::SUCCESS) {
    if (*number <= most) return absl::OkStatus();
  } else if (value.type() == element_type::DOUBLE && value.get(real) == simdjson::SUCCESS) {
    // 5.0 and 1e3 are whole numbers.
    if (real >= 0 && real <= static_cast<double>(uint64_t{1} << 53) &&
        real == static_cast<double>(static_cast<uint64_t>(real)) &&
        static_cast<uint64_t>(real) <= most) {
      *number = static_cast<uint64_t>(real);
      return absl::OkStatus();
    }
  }
  return Refuse(field, Shown(value), absl::StrCat("a whole number from 0 to ", most));
}

template <typename Item, typename Read>
absl::Status ReadList(const element& value, std::string_view field, size_t most, Item* items,
                      Read read) {
  dom::array array;
  if (value.get(array) != simdjson::SUCCESS) return Refuse(field, Shown(value), "a list");
  for (const element each : array) {
    if (items->size() == most) {
      return Refuse(field, "longer", absl::StrCat("at most ", most, " of them"));
    }
    if (absl::Status status = read(each, &items->emplace_back()); !status.ok()) return status;
  }
  return absl::OkStatus();
}

constexpr uint64_t kMost32 = std::numeric_limits<uint32_t>::max();

absl::Status ReadEntry(const element& value, Entry* entry) {
  static constexpr std::string_view kNames[] = {"key", "key", "value", "value"};
  return ForEachField(value, "an entry", kNames, [&](size_t i, const element& field) {
    return i == 0 ? ReadText(field, "the key", &entry->key)
                  : ReadText(field, "the value", &entry->value);
  });
}

absl::Status ReadUnit(const element& value, Unit* unit) {
  std::string_view name;
  uint64_t number = 0;
  if (value.get(name) == simdjson::SUCCESS) {
    const auto named = UnitNamed(name);
    if (!named.has_value()) return Refuse("the unit", Shown(value), "SECOND, MINUTE, HOUR, ...");
    *unit = *named;
    return absl::OkStatus();
  }
  absl::Status status = ReadNumber(value, "the unit", kLastUnit, &number);
  if (status.ok()) *unit = static_cast<Unit>(number);
  return status;
}

absl::Status ReadLimit(const element& value, LimitOverride* limit) {
  static constexpr std::string_view kNames[] = {"requestsPerUnit", "requests_per_unit", "unit",
                                                "unit"};
  return ForEachField(value, "a limit", kNames, [&](size_t i, const element& field) {
    if (i == 1) return ReadUnit(field, &limit->unit);
    uint64_t number = 0;
    absl::Status status = ReadNumber(field, "requestsPerUnit", kMost32, &number);
    limit->requests_per_unit = static_cast<uint32_t>(number);
    return status;
  });
}

absl::Status ReadDescriptor(const element& value, Descriptor* descriptor) {
  static constexpr std::string_view kNames[] = {"entries",        "entries",         "limit",
                                                "limit",          "hitsAddend",      "hits_addend",
                                                "isNegativeHits", "is_negative_hits"};
  return ForEachField(value, "a descriptor", kNames, [&](size_t i, const element& field) {
    switch (i) {
      case 0:
        return ReadList(field, "entries", RateLimitRequest::kMostEntries, &descriptor->entries,
                        ReadEntry);
      case 1:
        return ReadLimit(field, &descriptor->limit.emplace());
      case 2:
        return ReadNumber(field, "hitsAddend", std::numeric_limits<uint64_t>::max(),
                          &descriptor->hits_addend.emplace());
      default:
        if (field.get(descriptor->is_negative_hits) == simdjson::SUCCESS) return absl::OkStatus();
        return Refuse("isNegativeHits", Shown(field), "true or false");
    }
  });
}

absl::Status ReadRequest(const element& value, RateLimitRequest* request) {
  static constexpr std::string_view kNames[] = {"domain",      "domain",     "descriptors",
                                                "descriptors", "hitsAddend", "hits_addend"};
  return ForEachField(value, "a RateLimitRequest", kNames, [&](size_t i, const element& field) {
    if (i == 0) return ReadText(field, "the domain", &request->domain);
    if (i == 1) {
      return ReadList(field, "descriptors", RateLimitRequest::kMostDescriptors,
                      &request->descriptors, ReadDescriptor);
    }
    uint64_t number = 0;
    absl::Status status = ReadNumber(field, "hitsAddend", kMost32, &number);
    request->hits_addend = static_cast<uint32_t>(number);
    return status;
  });
}

std::string_view NameOf(Code code) { return code == Code::kOverLimit ? "OVER_LIMIT" : "OK"; }

// Seconds with 0, 3, 6 or 9 digits after the point.
void AppendDuration(int64_t ns, std::string* json) {
  const int64_t part = ns % 1'000'000'000;
  absl::StrAppend(json, "\"", ns / 1'000'000'000);
  if (part % 1'000'000 == 0) {
    if (part != 0) absl::StrAppendFormat(json, ".%03d", part / 1'000'000);
  } else if (part % 1000 == 0) {
    absl::StrAppendFormat(json, ".%06d", part / 1000);
  } else {
    absl::StrAppendFormat(json, ".%09d", part);
  }
  json->append("s\"");
}

void AppendStatus(const DescriptorStatus& status, std::string* json) {
  absl::StrAppend(json, "{\"code\":\"", Absl(NameOf(status.code)), "\"");
  if (status.current_limit.has_value()) {
    absl::StrAppend(
        json, ",\"currentLimit\":{\"requestsPerUnit\":", status.current_limit->requests_per_unit);
    if (status.current_limit->unit != Unit::kUnknown) {
      absl::StrAppend(json, ",\"unit\":\"", Absl(NameOf(status.current_limit->unit)), "\"");
    }
    if (!status.current_limit->name.empty()) {
      json->append(",\"name\":");
      AppendJsonString(status.current_limit->name, json);
    }
    json->push_back('}');
  }
  if (status.current_limit.has_value() || status.limit_remaining != 0) {
    absl::StrAppend(json, ",\"limitRemaining\":", status.limit_remaining);
  }
  if (status.until_reset_ns.has_value()) {
    json->append(",\"durationUntilReset\":");
    AppendDuration(*status.until_reset_ns, json);
  }
  json->push_back('}');
}

// Calls `append` for each item, with commas between.
template <typename Items, typename Append>
void AppendList(std::string_view name, const Items& items, std::string* json, Append append) {
  absl::StrAppend(json, ",\"", Absl(name), "\":[");
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) json->push_back(',');
    is_first = false;
    append(item);
  }
  json->push_back(']');
}

}  // namespace

absl::Status ParseJson(std::string_view text, RateLimitRequest* request) {
  thread_local dom::parser parser;
  element root;
  if (const auto error = parser.parse(text.data(), text.size()).get(root);
      error != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body is not JSON: ", simdjson::error_message(error)));
  }
  if (absl::Status status = ReadRequest(root, request); !status.ok()) return status;
  return request->Check();
}

std::string WriteJson(const RateLimitResponse& response) {
  std::string json = absl::StrCat("{\"overallCode\":\"", Absl(NameOf(response.overall_code)), "\"");
  AppendList("statuses", response.statuses, &json,
             [&](const DescriptorStatus& status) { AppendStatus(status, &json); });
  if (!response.response_headers.empty()) {
    AppendList("responseHeadersToAdd", response.response_headers, &json, [&](const auto& header) {
      json.append("{\"key\":");
      AppendJsonString(header.first, &json);
      json.append(",\"value\":");
      AppendJsonString(header.second, &json);
      json.push_back('}');
    });
  }
  if (response.has_metadata()) {
    json.append(",\"dynamicMetadata\":");
    std::string asked = "{}";
    if (response.request != nullptr) {
      asked.clear();
      response.request->AppendJson(&asked);
    }
    asked.pop_back();  // the last brace: further fields follow
    json.append(asked);
    const bool has_more = response.has_quota_mode || !response.metadata.empty();
    if (asked.size() > 1 && has_more) json.push_back(',');
    if (!response.metadata.empty()) {
      json.append("\"metadata\":");
      response.metadata.AppendJson(&json);
      if (response.has_quota_mode) json.push_back(',');
    }
    if (response.has_quota_mode) json.append("\"quotaModeEnabled\":true");
    if (!response.quota_mode_violations.empty()) {
      AppendList("quotaModeViolations", response.quota_mode_violations, &json,
                 [&](uint32_t violation) { absl::StrAppend(&json, violation); });
    }
    json.push_back('}');
  }
  json.push_back('}');
  return json;
}

std::string WriteJsonError(std::string_view reason) {
  std::string json = "{\"error\":";
  AppendJsonString(reason, &json);
  json.push_back('}');
  return json;
}

}  // namespace tidegate::server::envoy
