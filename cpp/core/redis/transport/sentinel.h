// Asks sentinels for the current master of a service.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_SENTINEL_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_SENTINEL_H_

#include "absl/status/statusor.h"
#include "base/monotonic.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

// Asks the sentinels in options.nodes one after the other.
absl::StatusOr<RedisAddress> FindMaster(const RedisOptions& options, Instant deadline);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_SENTINEL_H_
