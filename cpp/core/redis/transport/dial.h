// Makes connections to servers.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_DIAL_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_DIAL_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/monotonic.h"
#include "redis/transport/connect.h"
#include "redis/transport/stream.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

// `options` with the current password of password_source. Cancelled if it returns none.
absl::StatusOr<RedisOptions> WithPassword(const RedisOptions& options);

// Resolves the name, connects, agrees on TLS, authenticates, selects the database and
// names the connection, which is ready for commands then. Messages hold no secret.
absl::StatusOr<std::unique_ptr<Stream>> Dial(const RedisOptions& options, Instant deadline);
// The same for the addresses of the server, of which at least one is given. One that does not
// accept, or does not answer then, leaves time for the others.
absl::StatusOr<std::unique_ptr<Stream>> DialFirst(const RedisOptions& options,
                                                  std::vector<Address> addresses, Instant deadline);

// Sends commands and waits for a reply to each, which may be an error.
absl::StatusOr<std::vector<Reply>> Exchange(Stream& stream,
                                            const std::vector<std::vector<std::string>>& commands,
                                            Instant deadline);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_DIAL_H_
