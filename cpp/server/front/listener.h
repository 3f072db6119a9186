// Sockets that accept connections.
#ifndef TIDEGATE_SERVER_FRONT_LISTENER_H_
#define TIDEGATE_SERVER_FRONT_LISTENER_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/front/descriptor.h"
#include "server/front/not_inherited.h"
#include "server/front/tls.h"

namespace tidegate::server {

struct Listener {
  Descriptor socket;
  std::shared_ptr<Tls> tls;  // null without TLS
  std::string unix_path;     // empty for TCP
  std::unique_ptr<NotInherited> not_inherited;
  bool is_shared = false;    // several loops accept its connections
  bool was_adopted = false;  // it listened before the front had it
  bool stays_open = false;   // another process accepts its connections too
};

// Makes `count` sockets for each address of `host`, which share the port; "" means every address.
// Port 0 is any free port. Returns Unavailable if another process has the port.
absl::StatusOr<std::vector<Listener>> ListenTcp(const std::string& host, int port, int count);
// The port of a TCP socket.
int PortOf(const Listener& listener);

// Replaces a path that a dead process left behind. Returns Unavailable if a process listens there,
// or if the path is not a socket.
absl::StatusOr<Listener> ListenUnix(const std::string& path, mode_t mode);

// Takes a socket that listens already, and closes `fd` if it is none.
absl::StatusOr<Listener> Adopt(int fd);

// Options of sockets only improve them: a system that refuses one still serves.
inline void SetOption(int fd, int level, int name, int value) {
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

// The address of the client of a socket, without its port.
std::string PeerOf(int fd);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_LISTENER_H_
