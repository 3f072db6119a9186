// Parse() accepts or refuses any text. The canonical text of an accepted limit parses to the same
// limit, and a list of limits parses to the limits of its parts.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tidegate/limit.h"

namespace tidegate {
namespace {

void Require(bool holds, const char* what, std::string_view text) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s: '%.*s'\n", what, static_cast<int>(text.size()), text.data());
  std::abort();
}

void CheckLimit(const Limit& limit) {
  // A limit with a count of 0 lets nothing through.
  Require(limit.count() >= 0 && limit.count() <= Limit::kMaxCount, "the count is within bounds",
          limit.ToString());
  Require(limit.period_ns() >= 1 && limit.period_ns() <= Limit::kMaxPeriodNs,
          "the period is within bounds", limit.ToString());
  Require((limit.capacity() >= 1 || limit.count() == 0) && limit.capacity() <= Limit::kMaxCount,
          "the capacity is within bounds", limit.ToString());
  Require(limit.depth_ns() >= 0 && limit.depth_ns() <= Limit::kMaxPeriodNs,
          "what a bucket holds is within bounds", limit.ToString());
  const absl::StatusOr<Limit> again =
      Limit::Parse(limit.ToString(), {.algorithm = limit.algorithm()});
  Require(again.ok(), "the canonical text can be read", limit.ToString());
  Require(*again == limit && again->period_ns() == limit.period_ns() &&
              again->burst() == limit.burst() && again->calendar() == limit.calendar() &&
              again->calendar_units() == limit.calendar_units(),
          "the canonical text means the same", limit.ToString());
}

void CheckText(std::string_view text, Algorithm algorithm) {
  const LimitSpec defaults{.algorithm = algorithm};
  const absl::StatusOr<Limit> limit = Limit::Parse(text, defaults);
  const absl::StatusOr<std::vector<Limit>> limits = Limit::ParseMany(text, defaults);
  if (limit.ok()) {
    CheckLimit(*limit);
    Require(limits.ok() && limits->size() == 1 && limits->front() == *limit,
            "one limit is a list of one", text);
  } else {
    Require(!limit.status().message().empty() && limit.status().message().size() < 600,
            "a refusal says why, in short", text);
  }
  if (!limits.ok()) return;
  std::string joined;
  for (const Limit& each : *limits) {
    CheckLimit(each);
    joined += (joined.empty() ? "" : "; ") + each.ToString();
  }
  Require(*Limit::ParseMany(joined, defaults) == *limits, "a list means the same again", joined);
}

}  // namespace
}  // namespace tidegate

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tidegate::Algorithm;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const Algorithm algorithm : {Algorithm::kTokenBucket, Algorithm::kFixedWindow,
                                    Algorithm::kSlidingWindow, Algorithm::kConcurrency}) {
    tidegate::CheckText(text, algorithm);
  }
  (void)tidegate::ParseAlgorithm(text);
  return 0;
}
