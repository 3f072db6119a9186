// The grammar of quotas, whose words are separated by blanks:
//
//   quota := 'quota' COUNT '/' UNIT ['anchor' [MONTH '-'] DAY] ['in' ZONE]
//            ['rollover' UNITS] ['rollover' PERCENT '%'] ['for' N 'periods']
//            ['first' ('full' | 'prorated')] {'was' COUNT 'until' INSTANT}
//
// in which UNIT is day, week, month, quarter or year, and INSTANT is a date or a time of RFC 3339.
#ifndef TIDEGATE_SRC_QUOTAS_PARSE_H_
#define TIDEGATE_SRC_QUOTAS_PARSE_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tidegate/limit.h"

namespace tidegate {

bool HasQuota(const std::vector<Limit>& limits);
// Whether a text begins like a quota.
bool IsQuota(std::string_view text);
absl::StatusOr<Limit> ParseQuota(std::string_view text, const LimitSpec& defaults);

}  // namespace tidegate

#endif  // TIDEGATE_SRC_QUOTAS_PARSE_H_
