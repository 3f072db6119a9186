// The request and the response of Envoy's rate limit service, independent of their encoding.
#ifndef TIDEGATE_SERVER_ENVOY_RATE_LIMIT_MESSAGE_H_
#define TIDEGATE_SERVER_ENVOY_RATE_LIMIT_MESSAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "server/envoy/metadata.h"

namespace tidegate::server::envoy {

// Numbered as on the wire.
enum class Unit : uint8_t {
  kUnknown = 0,
  kSecond = 1,
  kMinute = 2,
  kHour = 3,
  kDay = 4,
  kMonth = 5,
  kYear = 6,
  kWeek = 7,
};
inline constexpr uint64_t kLastUnit = 7;

// Returns a name such as "SECOND".
std::string_view NameOf(Unit unit);
std::optional<Unit> UnitNamed(std::string_view name);
// The length of a unit; months of Envoy have 30 days and years 365. 0 for kUnknown.
int64_t PeriodNs(Unit unit);

struct Entry {
  std::string_view key;
  std::string_view value;
};

// A limit that the request itself sends.
struct LimitOverride {
  uint32_t requests_per_unit = 0;
  Unit unit = Unit::kUnknown;
};

struct Descriptor {
  absl::InlinedVector<Entry, 4> entries;
  std::optional<LimitOverride> limit;
  std::optional<uint64_t> hits_addend;  // its own, which Envoy sends where a route names its hits
  bool is_negative_hits = false;
};

// A request. Its texts are views of the parsed bytes. Keys and values may have any bytes.
struct RateLimitRequest {
  static constexpr size_t kMostDescriptors = 256;
  static constexpr size_t kMostEntries = 64;  // in a descriptor
  static constexpr uint64_t kMostHits = uint64_t{1} << 32;

  std::string_view domain;
  absl::InlinedVector<Descriptor, 4> descriptors;
  uint32_t hits_addend = 0;

  // Checks what must hold in every encoding. An error says what was given and what is expected.
  absl::Status Check() const;
  // The hits of a descriptor: its own, or those of the request, which are 1 unless given.
  uint64_t HitsOf(const Descriptor& descriptor) const;
};

// Numbered as on the wire.
enum class Code : uint8_t { kUnknown = 0, kOk = 1, kOverLimit = 2 };

struct CurrentLimit {
  uint32_t requests_per_unit = 0;
  Unit unit = Unit::kUnknown;
  std::string_view name;
};

struct DescriptorStatus {
  Code code = Code::kOk;
  std::optional<CurrentLimit> current_limit;
  uint32_t limit_remaining = 0;
  std::optional<int64_t> until_reset_ns;
};

struct RateLimitResponse {
  Code overall_code = Code::kOk;
  absl::InlinedVector<DescriptorStatus, 4> statuses;
  absl::InlinedVector<std::pair<std::string_view, std::string>, 3> response_headers;
  // Whether a limit in quota mode counted the request, and which descriptors exceeded their quota.
  bool has_quota_mode = false;
  absl::InlinedVector<uint32_t, 4> quota_mode_violations;
  Metadata metadata;                        // of the descriptors that are within their limits
  std::unique_ptr<const Metadata> request;  // what was asked, if the service tells it

  bool has_metadata() const { return has_quota_mode || !metadata.empty() || request != nullptr; }
};

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_SERVER_ENVOY_RATE_LIMIT_MESSAGE_H_
