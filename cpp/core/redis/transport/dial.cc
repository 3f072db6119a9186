#include "redis/transport/dial.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "redis/protocol/error_reply.h"
#include "redis/protocol/scripts.h"
#include "redis/transport/sentinel.h"

namespace tidegate::redis {
namespace {

std::string Message(const char* what, int error) {
  char text[128] = "";
#if defined(__GLIBC__)
  return absl::StrCat(what, ": ", strerror_r(error, text, sizeof text));
#else
  (void)strerror_r(error, text, sizeof text);
  return absl::StrCat(what, ": ", text);
#endif
}

absl::StatusOr<std::unique_ptr<Stream>> Connect(int family, const sockaddr* address, socklen_t size,
                                                Instant deadline) {
  const int fd = socket(family, SOCK_STREAM, 0);
  // The process lacks something, perhaps descriptors; the server is not to blame.
  if (fd < 0) return absl::CancelledError(Message("cannot make a socket", errno));
  (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int one = 1;
  if (family != AF_UNIX) (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
#if defined(SO_NOSIGPIPE)
  (void)setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
  int error = connect(fd, address, size) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    error = ETIMEDOUT;
    if (Poll(fd, POLLOUT, deadline) != 0) {
      socklen_t length = sizeof error;
      (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
    }
  }
  if (error == 0) return std::make_unique<Stream>(fd);
  close(fd);
  return absl::UnavailableError(Message("cannot connect", error));
}

absl::StatusOr<std::unique_ptr<Stream>> ConnectUnix(const std::string& path, Instant deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError("the path of the socket is too long");
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return Connect(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof address, deadline);
}

absl::StatusOr<std::unique_ptr<Stream>> ConnectTcp(const std::string& host, int port,
                                                   Instant deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_UNSPEC;
  addrinfo* found = nullptr;
  if (const int e = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      e != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve ", host, ": ", gai_strerror(e)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  absl::StatusOr<std::unique_ptr<Stream>> stream = absl::UnavailableError("no address");
  for (const addrinfo* a = found; a != nullptr && !stream.ok(); a = a->ai_next) {
    stream = Connect(a->ai_family, a->ai_addr, a->ai_addrlen, deadline);
  }
  return stream;
}

// The sentinels' answer may still be a replica after a failover.
absl::StatusOr<std::unique_ptr<Stream>> DialMaster(RedisOptions options, Instant deadline) {
  const absl::StatusOr<RedisAddress> master = FindMaster(options, deadline);
  if (!master.ok()) return master.status();
  options.topology = Topology::kStandalone;
  options.host = master->host;
  options.port = master->port;
  absl::StatusOr<std::unique_ptr<Stream>> stream = Dial(options, deadline);
  if (!stream.ok()) return stream;
  const auto role = Exchange(**stream, {{"ROLE"}}, deadline);
  if (!role.ok()) return role.status();
  const redisReply& reply = *role->front();
  if (reply.type == REDIS_REPLY_ARRAY && reply.elements > 0 &&
      reply.element[0]->type == REDIS_REPLY_STRING &&
      std::string_view(reply.element[0]->str, reply.element[0]->len) != "master") {
    return absl::UnavailableError(
        absl::StrCat(options.host, ":", options.port, " is no master yet"));
  }
  return stream;
}

}  // namespace

absl::StatusOr<std::vector<Reply>> Exchange(Stream& stream,
                                            const std::vector<std::vector<std::string>>& commands,
                                            Instant deadline) {
  std::string request;
  for (const auto& command : commands) request += Format(command);
  for (size_t done = 0; done < request.size();) {
    const ssize_t n = stream.Write(request.data() + done, request.size() - done);
    if (n < 0) return absl::UnavailableError("the connection broke while writing");
    if (n == 0 && Poll(stream.fd(), POLLOUT, deadline) == 0) {
      return absl::UnavailableError("no answer in time");
    }
    done += static_cast<size_t>(n);
  }
  std::vector<Reply> replies;
  while (replies.size() < commands.size()) {
    if (Poll(stream.fd(), POLLIN, deadline) == 0) {
      return absl::UnavailableError("no answer in time");
    }
    if (const char* broken = stream.Read(&replies)) {
      // The server may have sent the reason.
      const bool told = !replies.empty() && replies.back()->type == REDIS_REPLY_ERROR;
      return absl::UnavailableError(told ? replies.back()->str : broken);
    }
  }
  return replies;
}

absl::StatusOr<RedisOptions> WithPassword(const RedisOptions& options) {
  RedisOptions with = options;
  if (options.password_source) {
    absl::StatusOr<std::string> password = options.password_source();
    if (!password.ok()) return absl::CancelledError(password.status().message());
    with.password = *std::move(password);
    with.password_source = nullptr;
  }
  return with;
}

absl::StatusOr<std::unique_ptr<Stream>> Dial(const RedisOptions& options, Instant deadline) {
  if (options.topology == Topology::kSentinel) return DialMaster(options, deadline);
  absl::StatusOr<std::unique_ptr<Stream>> stream =
      options.unix_path.empty() ? ConnectTcp(options.host, options.port, deadline)
                                : ConnectUnix(options.unix_path, deadline);
  if (!stream.ok()) return stream;
  if (options.tls.has_value()) {
    if (absl::Status s = (*stream)->StartTls(options, options.host, deadline); !s.ok()) return s;
  }
  std::vector<std::vector<std::string>> commands;
  if (!options.password.empty() || !options.username.empty()) {
    commands.push_back({"AUTH"});
    if (!options.username.empty()) commands.back().push_back(options.username);
    commands.back().push_back(options.password);
  }
  if (options.database != 0) commands.push_back({"SELECT", std::to_string(options.database)});
  if (!options.client_name.empty()) {
    commands.push_back({"CLIENT", "SETNAME", options.client_name});
  }
  const auto replies = Exchange(**stream, commands, deadline);
  if (!replies.ok()) return replies.status();
  for (size_t i = 0; i < commands.size(); ++i) {
    const redisReply& reply = *(*replies)[i];
    if (reply.type == REDIS_REPLY_ERROR && RefusesConnection({reply.str, reply.len})) {
      return absl::UnavailableError(
          absl::StrCat("the connection was refused: ", std::string(reply.str, reply.len)));
    }
    // The name is optional: an ACL may forbid it.
    if (reply.type == REDIS_REPLY_ERROR && commands[i][0] != "CLIENT") {
      return absl::UnavailableError(
          absl::StrCat(commands[i][0], " was refused: ", std::string(reply.str, reply.len)));
    }
  }
  return stream;
}

}  // namespace tidegate::redis
