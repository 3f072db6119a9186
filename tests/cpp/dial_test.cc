// Connections to servers with several addresses, and what is said of failures.
#include "redis/transport/dial.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "redis/health/failure_log.h"

namespace tidegate::redis {
namespace {

using std::chrono::seconds;

// Listens at a port of this host.
class Listener {
 public:
  explicit Listener(int backlog) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    address_.family = AF_INET;
    address_.bytes = {};
    address_.size = sizeof(sockaddr_in);
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::memcpy(&address_.bytes, &in, sizeof in);
    EXPECT_EQ(bind(fd_, Bytes(), address_.size), 0);
    EXPECT_EQ(listen(fd_, backlog), 0);
    socklen_t size = sizeof address_.bytes;
    EXPECT_EQ(getsockname(fd_, Bytes(), &size), 0);
  }
  ~Listener() { Close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  int fd() const { return fd_; }
  const Address& address() const { return address_; }

 private:
  sockaddr* Bytes() { return reinterpret_cast<sockaddr*>(&address_.bytes); }

  int fd_;
  Address address_{};
};

// An address that drops every attempt to connect, since its queue is full.
class BlackHole {
 public:
  BlackHole() : listener_(0) {
    // Until one waits: this one did not fit.
    for (bool fits = true; fits;) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
      fillers_.push_back(fd);
      const Address& address = listener_.address();
      (void)connect(fd, reinterpret_cast<const sockaddr*>(&address.bytes), address.size);
      pollfd wait{fd, POLLOUT, 0};
      fits = poll(&wait, 1, 50) == 1;
    }
  }
  ~BlackHole() {
    for (const int fd : fillers_) close(fd);
  }
  BlackHole(const BlackHole&) = delete;
  BlackHole& operator=(const BlackHole&) = delete;

  const Address& address() const { return listener_.address(); }

 private:
  Listener listener_;
  std::vector<int> fillers_;
};

// Answers the first bytes of each connection with `reply`, and keeps it open.
class Server {
 public:
  explicit Server(std::string reply) : listener_(16), reply_(std::move(reply)) {
    thread_ = std::thread([this] {
      std::vector<int> clients;
      for (int fd = 0; (fd = accept(listener_.fd(), nullptr, nullptr)) >= 0;) {
        clients.push_back(fd);
        ++connections_;
        char bytes[1024];
        if (recv(fd, bytes, sizeof bytes, 0) > 0) {
          (void)send(fd, reply_.data(), reply_.size(), MSG_NOSIGNAL);
        }
      }
      for (const int fd : clients) close(fd);
    });
  }
  ~Server() {
    shutdown(listener_.fd(), SHUT_RDWR);
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  const Address& address() const { return listener_.address(); }
  int connections() const { return connections_; }

 private:
  Listener listener_;
  const std::string reply_;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Stream>> DialOf(std::vector<Address> addresses,
                                               seconds time = seconds(20)) {
  RedisOptions options;
  options.timeout = absl::Milliseconds(50);
  return DialFirst(options, std::move(addresses), MonotonicNow() + time);
}

TEST(DialTest, AnAddressThatDropsEverythingDelaysTheNextByAPause) {
  const BlackHole hole;
  const Server server("+OK\r\n");
  const Instant begin = MonotonicNow();
  const auto stream = DialOf({hole.address(), server.address()});
  EXPECT_TRUE(stream.ok()) << stream.status();
  // The first one alone would have taken all of the 20 s.
  EXPECT_LT(MonotonicNow() - begin, seconds(10));
}

TEST(DialTest, AnAddressThatRefusesIsPassedOver) {
  Listener gone(1);
  gone.Close();
  const Server server("+OK\r\n");
  EXPECT_TRUE(DialOf({gone.address(), server.address()}).ok());
  const auto none = DialOf({gone.address(), gone.address()});
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(none.status().message().find("Connection refused"), std::string::npos);
}

TEST(DialTest, AnAddressThatAcceptsAndIsSilentLeavesTimeForTheNext) {
  const Listener silent(16);
  const Server server("+OK\r\n");
  const auto stream = DialOf({silent.address(), server.address()}, seconds(1));
  EXPECT_TRUE(stream.ok()) << stream.status();
  const auto none = DialOf({silent.address()}, seconds(0));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
}

TEST(DialTest, ARefusalOfTheServerIsFinal) {
  const Server wrong("-NOAUTH Authentication required.\r\n");
  const Server other("+OK\r\n");
  const auto stream = DialOf({wrong.address(), other.address()});
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(stream.status().message().find("NOAUTH"), std::string::npos);
  EXPECT_EQ(other.connections(), 0);
}

TEST(FailureLogTest, TheFirstFailureIsReportedAndThenOneInAMinute) {
  std::vector<std::string> said;
  FailureLog log([&](const std::string& message) { said.push_back(message); });
  const Instant start{std::chrono::hours(5)};
  log.Add("one", start);
  log.Add("two", start + seconds(1));
  log.Add("three", start + seconds(59));
  EXPECT_EQ(said, std::vector<std::string>{"Redis failed (one); calls are decided without it"});
  log.Add("four", start + seconds(60));
  log.Add("five", start + seconds(200));
  ASSERT_EQ(said.size(), 3U);
  EXPECT_EQ(said[1],
            "Redis failed (four); calls are decided without it; 2 more failures since the last "
            "message");
  EXPECT_EQ(said[2], "Redis failed (five); calls are decided without it");
}

}  // namespace
}  // namespace tidegate::redis
