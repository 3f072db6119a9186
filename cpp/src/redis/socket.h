// Sockets, with deadlines. Non-blocking throughout.
#ifndef TIDEGATE_REDIS_SOCKET_H_
#define TIDEGATE_REDIS_SOCKET_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

// Waits for `events`; the events that came, 0 when the time is up or `wake_fd` is
// readable.
int Poll(int fd, short events, absl::Time deadline, int wake_fd = -1);

// Resolves the name, connects, authenticates, selects the database and names the
// connection. The descriptor of what is ready for commands. Messages hold no
// secret.
absl::StatusOr<int> Open(const RedisOptions& options, absl::Time deadline);

}  // namespace tidegate::redis

#endif  // TIDEGATE_REDIS_SOCKET_H_
