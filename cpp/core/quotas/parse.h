// The grammar of quotas, whose words are separated by blanks:
//
//   quota := 'quota' COUNT '/' UNIT ['anchor' [MONTH '-'] DAY] ['in' ZONE]
//            ['rollover' UNITS] ['rollover' PERCENT '%'] ['for' N 'periods']
//            ['first' ('full' | 'prorated')]
//
// in which UNIT is day, week, month, quarter or year.
#ifndef TIDEGATE_SRC_QUOTAS_PARSE_H_
#define TIDEGATE_SRC_QUOTAS_PARSE_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "tidegate/limit.h"

namespace tidegate {

// Whether a text begins like a quota.
bool IsQuota(std::string_view text);
absl::StatusOr<Limit> ParseQuota(std::string_view text, const LimitSpec& defaults);

}  // namespace tidegate

#endif  // TIDEGATE_SRC_QUOTAS_PARSE_H_
