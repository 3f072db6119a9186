#include "server/front/listener.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tidegate::server {
namespace {

constexpr int kBacklog = 4096;  // the system lowers it to its own bound
constexpr int kSocketKind = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

absl::Status SystemError(const std::string& what) {
  const int error = errno;
  return absl::UnavailableError(absl::StrCat(what, ": ", std::generic_category().message(error)));
}

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), absl::StrCat(port).c_str(),
                                &hints, &found);
  if (error == 0) return Addresses(found);
  return absl::InvalidArgumentError(absl::StrCat("the host is \"", host, "\" (",
                                                 gai_strerror(error),
                                                 "); expected the address of an interface"));
}

void SetPort(sockaddr* address, int port) {
  const auto network = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = network;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = network;
  }
}

absl::StatusOr<Descriptor> Bind(const addrinfo& address, bool shared) {
  Descriptor socket(::socket(address.ai_family, kSocketKind, 0));
  if (!socket && errno == EAFNOSUPPORT) {
    return absl::UnimplementedError("The system has no such addresses");
  }
  if (!socket) return SystemError("No socket could be made");
  SetOption(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (shared) SetOption(socket.get(), SOL_SOCKET, SO_REUSEPORT, 1);
  if (address.ai_family == AF_INET6) SetOption(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    return SystemError("The address could not be bound");
  }
  return socket;
}

Listener ListenerOf(Descriptor socket, const std::string& unix_path) {
  const int fd = socket.get();
  return {std::move(socket), nullptr, unix_path, std::make_unique<NotInherited>(fd)};
}

// Sockets that share a port would not notice another process that shares it. So the first socket is
// bound exclusively, and then replaced.
absl::Status ListenAt(addrinfo* address, int count, int* port, std::vector<Listener>* listeners) {
  SetPort(address->ai_addr, *port);
  for (int i = count > 1 ? -1 : 0; i < count; ++i) {
    absl::StatusOr<Descriptor> socket = Bind(*address, i >= 0 && count > 1);
    if (!socket.ok()) return socket.status();
    Listener listener = ListenerOf(std::move(*socket), {});
    *port = PortOf(listener);
    SetPort(address->ai_addr, *port);
    if (i < 0) continue;
    if (listen(listener.socket.get(), kBacklog) != 0) {
      return SystemError("The address could not be listened at");
    }
    listeners->push_back(std::move(listener));
  }
  return absl::OkStatus();
}

// Whether a process accepts connections at the path.
bool IsListening(const sockaddr_un& address) {
  const Descriptor socket(::socket(AF_UNIX, kSocketKind, 0));
  const int result =
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  return result == 0 || errno != ECONNREFUSED;
}

absl::Status RemoveStale(const std::string& path, const sockaddr_un& address) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) return absl::OkStatus();
  if (!S_ISSOCK(status.st_mode)) {
    return absl::UnavailableError(absl::StrCat("the path of the socket is ", path,
                                               ", which is a file; expected a free path"));
  }
  if (IsListening(address)) {
    return absl::UnavailableError(
        absl::StrCat("the path of the socket is ", path,
                     ", at which another process listens; expected a free path"));
  }
  if (unlink(path.c_str()) != 0) return SystemError(absl::StrCat(path, " could not be removed"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Listener>> ListenTcp(const std::string& host, int port, int count) {
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("the port is ", port, "; expected 0 to 65535"));
  }
  const absl::StatusOr<Addresses> addresses = Resolve(host, port);
  if (!addresses.ok()) return addresses.status();
  std::vector<Listener> listeners;
  absl::Status missing;
  for (addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    const absl::Status status = ListenAt(address, count, &port, &listeners);
    if (absl::IsUnimplemented(status)) {
      missing = status;
    } else if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(host, " port ", port, ": ", status.message()));
    }
  }
  if (listeners.empty()) return missing;
  return listeners;
}

int PortOf(const Listener& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  (void)getsockname(listener.socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

absl::StatusOr<Listener> ListenUnix(const std::string& path, mode_t mode) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("the path of the socket is \"", path,
                                                   "\"; expected 1 to ",
                                                   sizeof address.sun_path - 1, " bytes"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  if (absl::Status status = RemoveStale(path, address); !status.ok()) return status;
  Descriptor socket(::socket(AF_UNIX, kSocketKind, 0));
  if (!socket) return SystemError("No socket could be made");
  Listener listener = ListenerOf(std::move(socket), path);
  (void)fchmod(listener.socket.get(), 0600);  // until the socket has its mode
  const int fd = listener.socket.get();
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      chmod(path.c_str(), mode) != 0 || listen(fd, kBacklog) != 0) {
    return SystemError(absl::StrCat(path, " could not be listened at"));
  }
  return listener;
}

absl::StatusOr<Listener> Adopt(int fd) {
  Descriptor socket(fd);
  int listens = 0;
  int kind = 0;
  socklen_t size = sizeof listens;
  const bool is_socket = getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 &&
                         getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size) == 0;
  if (!is_socket || listens == 0 || kind != SOCK_STREAM) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the descriptor ", fd, " is no socket that listens; expected a stream socket that does"));
  }
  if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0 ||
      fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return SystemError("The socket could not be taken over");
  }
  sockaddr_storage address{};
  size = sizeof address;
  (void)getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  std::string path;
  if (address.ss_family == AF_UNIX) {
    path = reinterpret_cast<const sockaddr_un*>(&address)->sun_path;
    if (path.empty()) path = "unix";  // it has no path, or an abstract one
  }
  Listener listener = ListenerOf(std::move(socket), path);
  listener.was_adopted = true;
  listener.stays_open = true;
  return listener;
}

std::string PeerOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[INET6_ADDRSTRLEN] = {};
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  if (address.ss_family == AF_INET) {
    (void)inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&address)->sin_addr, text,
                    sizeof text);
  } else if (address.ss_family == AF_INET6) {
    (void)inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr, text,
                    sizeof text);
  }
  return text;
}

}  // namespace tidegate::server
