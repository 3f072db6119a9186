#include "server/envoy/rate_limit_message.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

namespace tidegate::server::envoy {

namespace {

struct UnitInfo {
  std::string_view name;
  int64_t seconds;
};

constexpr int64_t kDaySeconds = 86'400;

constexpr std::array<UnitInfo, kLastUnit + 1> kUnits = {{
    {"UNKNOWN", 0},
    {"SECOND", 1},
    {"MINUTE", 60},
    {"HOUR", 3600},
    {"DAY", kDaySeconds},
    {"MONTH", 30 * kDaySeconds},
    {"YEAR", 365 * kDaySeconds},
    {"WEEK", 7 * kDaySeconds},
}};

const UnitInfo& InfoOf(Unit unit) { return kUnits[static_cast<size_t>(unit)]; }

}  // namespace

std::string_view NameOf(Unit unit) { return InfoOf(unit).name; }

std::optional<Unit> UnitNamed(std::string_view name) {
  const auto* const found =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const UnitInfo& u) { return u.name == name; });
  if (found == kUnits.end()) return std::nullopt;
  return static_cast<Unit>(found - kUnits.begin());
}

int64_t PeriodNs(Unit unit) { return InfoOf(unit).seconds * 1'000'000'000; }

absl::Status RateLimitRequest::Check() const {
  if (domain.empty()) {
    return absl::InvalidArgumentError("the domain is empty; expected the name of a domain");
  }
  if (descriptors.empty()) {
    return absl::InvalidArgumentError("there is no descriptor; expected at least one");
  }
  for (size_t i = 0; i < descriptors.size(); ++i) {
    const Descriptor& descriptor = descriptors[i];
    if (HitsOf(descriptor) > kMostHits) {
      return absl::InvalidArgumentError(absl::StrCat("descriptor ", i, " has hits_addend ",
                                                     HitsOf(descriptor), "; expected at most ",
                                                     kMostHits));
    }
    if (descriptor.limit.has_value() && descriptor.limit->unit == Unit::kUnknown) {
      return absl::InvalidArgumentError(absl::StrCat("the limit of descriptor ", i,
                                                     " has no unit; expected SECOND, MINUTE, HOUR, "
                                                     "DAY, WEEK, MONTH or YEAR"));
    }
  }
  return absl::OkStatus();
}

uint64_t RateLimitRequest::HitsOf(const Descriptor& descriptor) const {
  return descriptor.hits_addend.value_or(std::max<uint32_t>(hits_addend, 1));
}

}  // namespace tidegate::server::envoy
