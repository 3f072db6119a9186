// Who is the master of a service now, by those who watch it.
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
