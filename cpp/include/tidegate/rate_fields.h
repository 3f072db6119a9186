// The rate-limit header fields of HTTP responses: their names, what decisions say in them, and the
// one place that writes them, for the web adapters and for all answers of the service.
#ifndef TIDEGATE_RATE_FIELDS_H_
#define TIDEGATE_RATE_FIELDS_H_

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "tidegate/decision.h"
#include "tidegate/limit.h"

namespace tidegate {

enum class RateField : uint8_t {
  kLimit,
  kRemaining,
  kReset,
  kPolicy,
  kRateLimit,
  kRetryAfter,
  kLimitRequests,
  kRemainingRequests,
  kResetRequests,
  kLimitTokens,
  kRemainingTokens,
  kResetTokens,
};
inline constexpr size_t kRateFields = 12;

// In their usual case, and as HTTP/2 and ASGI have them.
inline constexpr std::array<std::string_view, kRateFields> kRateFieldNames = {
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "RateLimit-Policy",
    "RateLimit",
    "Retry-After",
    "X-RateLimit-Limit-Requests",
    "X-RateLimit-Remaining-Requests",
    "X-RateLimit-Reset-Requests",
    "X-RateLimit-Limit-Tokens",
    "X-RateLimit-Remaining-Tokens",
    "X-RateLimit-Reset-Tokens"};
inline constexpr std::array<std::string_view, kRateFields> kLowerRateFieldNames = {
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "ratelimit-policy",
    "ratelimit",
    "retry-after",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens"};
constexpr std::string_view NameOf(RateField field) {
  return kRateFieldNames[static_cast<size_t>(field)];
}
constexpr std::string_view LowerNameOf(RateField field) {
  return kLowerRateFieldNames[static_cast<size_t>(field)];
}

// A set of fields, with a bit for each.
using RateFieldSet = unsigned;
constexpr RateFieldSet SetOf(RateField field) { return 1U << static_cast<unsigned>(field); }
inline constexpr RateFieldSet kXRateLimitFields =
    SetOf(RateField::kLimit) | SetOf(RateField::kRemaining) | SetOf(RateField::kReset);
// Those of draft-ietf-httpapi-ratelimit-headers.
inline constexpr RateFieldSet kIetfFields =
    SetOf(RateField::kPolicy) | SetOf(RateField::kRateLimit);

// Those that clients of OpenAI read. A limit has three of them, by what it counts.
inline constexpr RateFieldSet kRequestsFields = SetOf(RateField::kLimitRequests) |
                                                SetOf(RateField::kRemainingRequests) |
                                                SetOf(RateField::kResetRequests);
inline constexpr RateFieldSet kTokensFields = SetOf(RateField::kLimitTokens) |
                                              SetOf(RateField::kRemainingTokens) |
                                              SetOf(RateField::kResetTokens);
inline constexpr RateFieldSet kOpenAiFields = kRequestsFields | kTokensFields;
// kTokensFields for a limit whose id, or that of its rule, has "token" in it, in either case; else
// kRequestsFields.
RateFieldSet OpenAiFieldsOf(const Limit& limit);

// The largest Integer of RFC 9651, section 3.3.1. Larger values are sent as this.
inline constexpr int64_t kMaxFieldInteger = 999'999'999'999'999;

inline int64_t CeilSeconds(int64_t ns) {
  constexpr int64_t kSecond = 1'000'000'000;
  return ns / kSecond + (ns % kSecond > 0 ? 1 : 0);
}

inline int64_t InstantAfter(int64_t ns, int64_t span_ns) {
  int64_t sum = 0;
  return __builtin_add_overflow(ns, span_ns, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

// Whole seconds to wait after a refusal, `extra_s` included; none if the call was allowed, or can
// never pass.
inline std::optional<int64_t> WaitSeconds(const Decision& d, double extra_s = 0) {
  if (d.allowed || d.retry_after_ns == Decision::kNever) return std::nullopt;
  return CeilSeconds(
      InstantAfter(d.retry_after_ns, static_cast<int64_t>(std::ceil(extra_s * 1e9))));
}

// The numbers in the fields of one response.
struct RateFieldValues {
  int64_t remaining;
  int64_t reset_s;                // the instant at which the key is full again
  std::optional<int64_t> more_s;  // the time until more is left; none if that never happens
  std::optional<int64_t> wait_s;  // WaitSeconds()
  int64_t full_after_ns = 0;      // the time until the key is full again
};

// For a response that is sent at `now_ns` and was decided at `decided_ns`, both by one clock.
inline RateFieldValues RateFieldValuesOf(const Decision& d, int64_t decided_ns, int64_t now_ns,
                                         double extra_s = 0) {
  // An instant that has passed is sent as now.
  const auto later = [&](int64_t span_ns) {
    return std::max(InstantAfter(decided_ns, span_ns), now_ns);
  };
  const int64_t full_ns = later(d.reset_after_ns);
  RateFieldValues values{d.remaining(), CeilSeconds(full_ns), std::nullopt, WaitSeconds(d, extra_s),
                         full_ns - now_ns};
  if (values.wait_s.has_value()) {
    // If two different waits were sent, a client could take the smaller one and come back too
    // early.
    values.more_s = values.wait_s;
  } else if (d.limit->capacity() > 0) {
    values.more_s = CeilSeconds(later(d.more_after_ns()) - now_ns);
  }
  return values;
}

// `text`, which is printable ASCII, as a String of RFC 9651, section 4.1.6.
std::string StructuredString(std::string_view text);

// The member of RateLimit-Policy for a limit. Quota and window are those that the limit states. A
// window that is not a whole number of seconds is rounded up, since a client that paces itself by
// the window must not be too fast.
std::string PolicyMember(const Limit& limit);

// The member of RateLimit for a limit: StateStart(), which is the same for all responses, and
// StateRest(). WriteStateRest() writes the latter to `at`, which has room for kMaxStateRest bytes,
// and returns its end.
std::string StateStart(const Limit& limit);
std::string StateRest(const RateFieldValues& values);
inline constexpr size_t kMaxStateRest = 64;
char* WriteStateRest(const RateFieldValues& values, char* at);

// A span as clients of OpenAI read it, such as 20ms, 8.64s and 6m0s, in milliseconds, rounded up.
// Written to `at`, which has room for kMaxDuration bytes; returns its end.
inline constexpr size_t kMaxDuration = 32;
char* WriteDuration(int64_t ns, char* at);

// `list`, a List of RFC 9651, with those members of `policies` whose names it does not have.
std::string WithPolicies(std::string_view list, std::string_view policies);

// `list`, a List too, with the member of RateLimit that begins with `start`. Of two members with
// one name, the one with less room is kept.
std::string WithState(std::string_view list, std::string_view start, const RateFieldValues& values);

// The texts about one limit that are the same in all responses.
struct RateFieldTexts {
  // The most bytes of StateStart(): Limit has names of at most 200, each of which may be escaped.
  static constexpr size_t kMaxStateStart = 512;

  RateFieldTexts() = default;
  // Has the texts that the fields of `set` need.
  explicit RateFieldTexts(const Limit& limit, RateFieldSet set = ~0U);

  std::string capacity;
  std::string policy;       // PolicyMember(), of several limits joined
  std::string state_start;  // StateStart()
  RateFieldSet openai = 0;  // OpenAiFieldsOf()
};

// Calls put(field, value) for those fields of `set` that clients of OpenAI read of this limit.
template <typename Put>
void WriteOpenAiFields(const RateFieldTexts& texts, const RateFieldValues& values, RateFieldSet set,
                       Put&& put) {
  const RateFieldSet own = set & texts.openai;
  if (own == 0) return;
  const bool tokens = texts.openai == kTokensFields;
  const RateField limit = tokens ? RateField::kLimitTokens : RateField::kLimitRequests;
  const RateField remaining = tokens ? RateField::kRemainingTokens : RateField::kRemainingRequests;
  const RateField reset = tokens ? RateField::kResetTokens : RateField::kResetRequests;
  std::array<char, kMaxDuration> room;
  const auto put_until = [&](RateField field, const char* end) {
    put(field, std::string_view(room.data(), static_cast<size_t>(end - room.data())));
  };
  const auto wants = [own](RateField field) { return (own & SetOf(field)) != 0; };
  if (wants(limit)) put(limit, std::string_view(texts.capacity));
  if (wants(remaining)) {
    char* const end = room.data() + room.size();
    put_until(remaining, std::to_chars(room.data(), end, values.remaining).ptr);
  }
  if (wants(reset)) put_until(reset, WriteDuration(values.full_after_ns, room.data()));
}

// Calls put(field, value) for each field of `set` that the response has, in the order of RateField;
// Retry-After only after a refusal that ends with time. Those of kOpenAiFields that are not of the
// limit are left out.
template <typename Put>
void WriteRateFields(const RateFieldTexts& texts, const RateFieldValues& values, RateFieldSet set,
                     Put&& put) {
  std::array<char, RateFieldTexts::kMaxStateStart + kMaxStateRest> room;
  const auto put_until = [&](RateField field, const char* end) {
    put(field, std::string_view(room.data(), static_cast<size_t>(end - room.data())));
  };
  const auto wants = [set](RateField field) { return (set & SetOf(field)) != 0; };
  const auto put_number = [&](RateField field, int64_t number) {
    if (wants(field)) {
      put_until(field, std::to_chars(room.data(), room.data() + room.size(), number).ptr);
    }
  };
  if (wants(RateField::kLimit)) put(RateField::kLimit, std::string_view(texts.capacity));
  put_number(RateField::kRemaining, values.remaining);
  put_number(RateField::kReset, values.reset_s);
  if (wants(RateField::kPolicy)) put(RateField::kPolicy, std::string_view(texts.policy));
  if (wants(RateField::kRateLimit)) {
    char* const rest = std::copy(texts.state_start.begin(), texts.state_start.end(), room.data());
    put_until(RateField::kRateLimit, WriteStateRest(values, rest));
  }
  if (values.wait_s.has_value()) put_number(RateField::kRetryAfter, *values.wait_s);
  WriteOpenAiFields(texts, values, set, put);
}

// The outcome with the least left of those limits that `decision`'s own limit does not count with,
// if one of them counts tokens and the other requests: its OpenAI fields stand beside those of
// `decision`. Null if there is none. Limits in shadow have no fields.
template <typename IsShown>
const Decision* BesideForOpenAi(const Decision& decision, absl::Span<const Decision> outcomes,
                                IsShown is_shown) {
  const RateFieldSet own = OpenAiFieldsOf(*decision.limit);
  const Decision* beside = nullptr;
  for (const Decision& each : outcomes) {
    if (each.limit->shadow() || OpenAiFieldsOf(*each.limit) == own || !is_shown(each)) continue;
    if (beside == nullptr || each.remaining() < beside->remaining()) beside = &each;
  }
  return beside;
}

}  // namespace tidegate

#endif  // TIDEGATE_RATE_FIELDS_H_
