#include "redis/transport/connect.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

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

// A socket on its way to an address.
class Attempt {
 public:
  // Begins to connect.
  explicit Attempt(const Address& address)
      : address_(&address), fd_(socket(address.family, SOCK_STREAM, 0)) {
    if (fd_ < 0) {
      // The process lacks something, perhaps descriptors; the server is not to blame.
      status_ = absl::CancelledError(Message("cannot make a socket", errno));
      return;
    }
    (void)fcntl(fd_, F_SETFD, FD_CLOEXEC);
    (void)fcntl(fd_, F_SETFL, fcntl(fd_, F_GETFL) | O_NONBLOCK);
    const int one = 1;
    if (address.family != AF_UNIX) {
      (void)setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    (void)setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
#if defined(SO_NOSIGPIPE)
    (void)setsockopt(fd_, SOL_SOCKET, SO_NOSIGPIPE, &one, sizeof one);
#endif
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&address.bytes), address.size) != 0) {
      End(errno);
    }
  }
  ~Attempt() {
    if (fd_ >= 0) close(fd_);
  }
  Attempt(Attempt&& other) noexcept
      : address_(other.address_),
        fd_(std::exchange(other.fd_, -1)),
        is_under_way_(other.is_under_way_),
        status_(std::move(other.status_)) {}
  Attempt& operator=(Attempt&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(fd_, other.fd_);
    std::swap(is_under_way_, other.is_under_way_);
    std::swap(status_, other.status_);
    return *this;
  }

  const Address* address() const { return address_; }
  int fd() const { return fd_; }
  bool is_under_way() const { return is_under_way_; }
  const absl::Status& status() const { return status_; }

  // Call it once the socket can be written to.
  void Finish() {
    int error = 0;
    socklen_t length = sizeof error;
    (void)getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length);
    End(error);
  }
  std::unique_ptr<Stream> Take() { return std::make_unique<Stream>(std::exchange(fd_, -1)); }

 private:
  void End(int error) {
    is_under_way_ = error == EINPROGRESS;
    if (error != 0 && !is_under_way_) {
      status_ = absl::UnavailableError(Message("cannot connect", error));
    }
  }

  const Address* address_;
  int fd_;
  bool is_under_way_ = false;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> ConnectFirst(std::vector<Address>* addresses,
                                                     absl::Duration pause, Instant deadline) {
  std::vector<Attempt> attempts;
  size_t begun = 0;
  Instant next = Instant::min();
  absl::Status failure = absl::UnavailableError(Message("cannot connect", ETIMEDOUT));
  for (;;) {
    if (begun < addresses->size() && (attempts.empty() || MonotonicNow() >= next)) {
      attempts.emplace_back((*addresses)[begun++]);
      next = MonotonicIn(pause);
    }
    for (auto attempt = attempts.begin(); attempt != attempts.end();) {
      if (attempt->is_under_way()) {
        ++attempt;
      } else if (attempt->status().ok()) {
        std::unique_ptr<Stream> stream = attempt->Take();
        addresses->erase(addresses->begin() + (attempt->address() - addresses->data()));
        return stream;
      } else {
        failure = attempt->status();
        attempt = attempts.erase(attempt);
      }
    }
    if (attempts.empty()) {
      if (begun == addresses->size() || absl::IsCancelled(failure)) return failure;
      continue;
    }
    std::vector<pollfd> polls;
    for (const Attempt& attempt : attempts) polls.push_back({attempt.fd(), POLLOUT, 0});
    const Instant until = begun < addresses->size() ? std::min(next, deadline) : deadline;
    if (Poll(polls.data(), polls.size(), until) == 0 && until == deadline) return failure;
    for (size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents != 0) attempts[i].Finish();
    }
  }
}

absl::StatusOr<std::vector<Address>> AddressesOf(const RedisOptions& options) {
  if (!options.unix_path.empty()) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (options.unix_path.size() >= sizeof address.sun_path) {
      return absl::InvalidArgumentError("the path of the socket is too long");
    }
    std::copy(options.unix_path.begin(), options.unix_path.end(), address.sun_path);
    Address unix{AF_UNIX, {}, sizeof address};
    std::memcpy(&unix.bytes, &address, sizeof address);
    return std::vector<Address>{unix};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_family = AF_UNSPEC;
  addrinfo* found = nullptr;
  if (const int e =
          getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
      e != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve ", options.host, ": ", gai_strerror(e)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    addresses.push_back({a->ai_family, {}, a->ai_addrlen});
    std::memcpy(&addresses.back().bytes, a->ai_addr, a->ai_addrlen);
  }
  return addresses;
}

}  // namespace tidegate::redis
