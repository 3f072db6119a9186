#include "server/checks/rate_headers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/checks/decision_values.h"

namespace tidegate::server {

namespace {

// The largest Integer of RFC 9651.
constexpr int64_t kMostInteger = 999'999'999'999'999;

// Quotes `text`, which is printable ASCII, as a String of RFC 9651.
std::string StructuredString(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted += '"';
}

}  // namespace

void AddXRateLimit(const Decision& decision, Answer* answer) {
  if (IsUnlimited(decision)) return;
  auto& headers = answer->headers;
  headers.emplace_back("x-ratelimit-limit", absl::StrCat(decision.limit->capacity()));
  headers.emplace_back("x-ratelimit-remaining", absl::StrCat(decision.remaining()));
  headers.emplace_back("x-ratelimit-reset", absl::StrCat(ResetTime(decision)));
  if (const auto wait = RetrySeconds(decision)) {
    headers.emplace_back("retry-after", absl::StrCat(*wait));
  }
}

void AddRateLimit(const Decision& decision, Answer* answer) {
  if (IsUnlimited(decision)) return;
  const Limit& limit = *decision.limit;
  const std::string name = StructuredString(limit.name());
  const bool is_concurrency = limit.algorithm() == Algorithm::kConcurrency;
  answer->headers.emplace_back("ratelimit-policy",
                               absl::StrCat(name, ";q=", std::min(limit.count(), kMostInteger),
                                            is_concurrency ? ";qu=\"concurrent-requests\"" : "",
                                            ";w=", CeilSeconds(limit.period_ns())));
  std::string state = absl::StrCat(name, ";r=", std::min(decision.remaining(), kMostInteger));
  if (const auto more = MoreSeconds(decision)) {
    absl::StrAppend(&state, ";t=", std::min(*more, kMostInteger));
  }
  answer->headers.emplace_back("ratelimit", std::move(state));
}

}  // namespace tidegate::server
