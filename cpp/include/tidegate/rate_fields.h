// The rate-limit header fields of HTTP responses: their names, and what decisions say in them, for
// the web adapters. The service still writes those of its own answers
// (server/checks/rate_headers.h, server/envoy/rate_limit_call.h).
#ifndef TIDEGATE_RATE_FIELDS_H_
#define TIDEGATE_RATE_FIELDS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "tidegate/decision.h"

namespace tidegate {

enum class RateField : uint8_t { kLimit, kRemaining, kReset, kPolicy, kRateLimit, kRetryAfter };
inline constexpr size_t kRateFields = 6;

// In their usual case; HTTP/2 and ASGI have them in lower case.
inline constexpr std::array<std::string_view, kRateFields> kRateFieldNames = {
    "X-RateLimit-Limit", "X-RateLimit-Remaining",
    "X-RateLimit-Reset", "RateLimit-Policy",
    "RateLimit",         "Retry-After"};
constexpr std::string_view NameOf(RateField field) {
  return kRateFieldNames[static_cast<size_t>(field)];
}
std::string LowerNameOf(RateField field);

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
};

// For a response that is sent at `now_ns` and was decided at `decided_ns`, both by one clock.
inline RateFieldValues RateFieldValuesOf(const Decision& d, int64_t decided_ns, int64_t now_ns,
                                         double extra_s = 0) {
  // An instant that has passed is sent as now.
  const auto later = [&](int64_t span_ns) {
    return std::max(InstantAfter(decided_ns, span_ns), now_ns);
  };
  RateFieldValues values{d.remaining(), CeilSeconds(later(d.reset_after_ns)), std::nullopt,
                         WaitSeconds(d, extra_s)};
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

// `list`, a List of RFC 9651, with those members of `policies` whose names it does not have.
std::string WithPolicies(std::string_view list, std::string_view policies);

// `list`, a List too, with the member of RateLimit that begins with `start`. Of two members with
// one name, the one with less room is kept.
std::string WithState(std::string_view list, std::string_view start, const RateFieldValues& values);

}  // namespace tidegate

#endif  // TIDEGATE_RATE_FIELDS_H_
