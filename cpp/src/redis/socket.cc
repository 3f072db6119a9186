#include "redis/socket.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
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
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tidegate::redis {
namespace {

absl::Status Failed(const char* what, int error) {
  char text[128] = "";
#if defined(__GLIBC__)
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror_r(error, text, sizeof text)));
#else
  (void)strerror_r(error, text, sizeof text);
  return absl::UnavailableError(absl::StrCat(what, ": ", text));
#endif
}

absl::StatusOr<int> Connect(int family, const sockaddr* address, socklen_t size,
                            absl::Time deadline) {
  const int fd = socket(family, SOCK_STREAM, 0);
  if (fd < 0) return Failed("cannot make a socket", errno);
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
  if (error == 0) return fd;
  close(fd);
  return Failed("cannot connect", error);
}

absl::StatusOr<int> ConnectUnix(const std::string& path, absl::Time deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError("the path of the socket is too long");
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  return Connect(AF_UNIX, reinterpret_cast<const sockaddr*>(&address), sizeof address, deadline);
}

absl::StatusOr<int> ConnectTcp(const std::string& host, int port, absl::Time deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_UNSPEC;
  addrinfo* found = nullptr;
  if (const int e = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      e != 0) {
    return absl::UnavailableError(absl::StrCat("cannot resolve ", host, ": ", gai_strerror(e)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  absl::StatusOr<int> fd = absl::UnavailableError("no address");
  for (const addrinfo* a = found; a != nullptr && !fd.ok(); a = a->ai_next) {
    fd = Connect(a->ai_family, a->ai_addr, a->ai_addrlen, deadline);
  }
  return fd;
}

absl::Status WriteAll(int fd, const std::string& bytes, absl::Time deadline) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EAGAIN && errno != EINTR) {
      return Failed("cannot write", errno);
    } else if (Poll(fd, POLLOUT, deadline) == 0) {
      return absl::UnavailableError("no answer in time");
    }
  }
  return absl::OkStatus();
}

// Sends the commands and expects a reply to each that is no error.
absl::Status Handshake(int fd, const std::vector<std::vector<std::string>>& commands,
                       absl::Time deadline) {
  std::string request;
  for (const auto& command : commands) {
    absl::StrAppend(&request, "*", command.size(), "\r\n");
    for (const std::string& word : command) {
      absl::StrAppend(&request, "$", word.size(), "\r\n", word, "\r\n");
    }
  }
  if (absl::Status s = WriteAll(fd, request, deadline); !s.ok()) return s;
  const std::unique_ptr<redisReader, void (*)(redisReader*)> reader(redisReaderCreate(),
                                                                    redisReaderFree);
  size_t replies = 0;
  while (replies < commands.size()) {
    if (Poll(fd, POLLIN, deadline) == 0) return absl::UnavailableError("no answer in time");
    char buffer[4096];
    const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n == 0) return absl::UnavailableError("the server closed the connection");
    if (n < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      return Failed("cannot read", errno);
    }
    redisReaderFeed(reader.get(), buffer, static_cast<size_t>(n));
    void* made = nullptr;
    while (replies < commands.size()) {
      if (redisReaderGetReply(reader.get(), &made) != REDIS_OK) {
        return absl::UnavailableError("the server does not speak the protocol of Redis");
      }
      if (made == nullptr) break;
      const std::unique_ptr<redisReply, void (*)(void*)> reply(static_cast<redisReply*>(made),
                                                               freeReplyObject);
      // A name is a courtesy, which an ACL may forbid.
      if (reply->type == REDIS_REPLY_ERROR && commands[replies][0] != "CLIENT") {
        return absl::UnavailableError(absl::StrCat(
            commands[replies][0], " was refused: ", std::string(reply->str, reply->len)));
      }
      ++replies;
    }
  }
  return absl::OkStatus();
}

}  // namespace

int Poll(int fd, short events, absl::Time deadline, int wake_fd) {
  pollfd waits[2] = {{fd, events, 0}, {wake_fd, POLLIN, 0}};
  for (;;) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return 0;
    const int64_t ms = std::min<int64_t>(
        absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), 1'000'000);
    const int n = poll(waits, wake_fd < 0 ? 1 : 2, static_cast<int>(ms));
    if (n > 0) return waits[0].revents;
    if (n < 0 && errno != EINTR) return POLLERR;
  }
}

absl::StatusOr<int> Open(const RedisOptions& options, absl::Time deadline) {
  absl::StatusOr<int> fd = options.unix_path.empty()
                               ? ConnectTcp(options.host, options.port, deadline)
                               : ConnectUnix(options.unix_path, deadline);
  if (!fd.ok()) return fd;
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
  if (absl::Status s = Handshake(*fd, commands, deadline); !s.ok()) {
    close(*fd);
    return s;
  }
  return fd;
}

}  // namespace tidegate::redis
