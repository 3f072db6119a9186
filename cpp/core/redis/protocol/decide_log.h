// The decisions of logs, from the summary of a log that a script returns.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_DECIDE_LOG_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_DECIDE_LOG_H_

#include <cstddef>
#include <cstdint>

#include "redis/protocol/scripts.h"
#include "tidegate/store.h"

namespace tidegate::redis {

// Does what Judge() and StepLog() in log.cc do.
Decision DecideLog(const Charge& charge, const Answer& answer, size_t index, bool charged);
// Does what StepLogCharge() in log.cc does.
Decision DecideLogOfUsed(const Charge& charge, const Answer& answer, size_t index,
                         int64_t most_debt);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_DECIDE_LOG_H_
