// The terms of a quota as lua/quota.lua reads them.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_QUOTA_TERMS_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_QUOTA_TERMS_H_

#include <cstdint>
#include <string>

#include "tidegate/quota.h"

namespace tidegate::redis {

// The bytes that the head of lua/quota.lua lists, for a call about `now_s`: of the calendar only
// the periods around it.
std::string TermsFor(const QuotaTerms& terms, int64_t now_s);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_QUOTA_TERMS_H_
