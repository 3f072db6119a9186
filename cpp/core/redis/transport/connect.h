// Makes the sockets of connections.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_CONNECT_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_CONNECT_H_

#include <sys/socket.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/monotonic.h"
#include "redis/transport/stream.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

struct Address {
  int family;
  sockaddr_storage bytes;
  socklen_t size;
};

// The addresses of the server that `options` name: those of its host, or that of its Unix socket.
absl::StatusOr<std::vector<Address>> AddressesOf(const RedisOptions& options);

// Connects to the first of `addresses` that accepts, and removes it from them. Each has `pause`
// before the next one is tried as well (RFC 8305): a name may have an address that never answers.
absl::StatusOr<std::unique_ptr<Stream>> ConnectFirst(std::vector<Address>* addresses,
                                                     absl::Duration pause, Instant deadline);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_CONNECT_H_
