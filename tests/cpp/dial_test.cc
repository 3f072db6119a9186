// Connections to servers with several addresses, calls that nobody answers, and what is said of
// failures.
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

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "redis/health/failure_log.h"
#include "redis/transport/connection.h"
#include "redis/transport/cpu_waits.h"
#include "redis/transport/io_thread.h"
#include "testing.h"

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

TEST(CpuWaitsTest, AThreadIsStarvedThatWaitedForLongAndForNoLessThanItRan) {
  const auto ms = [](int64_t n) { return std::chrono::milliseconds(n); };
  EXPECT_FALSE(WasStarved({}, {}, ms(50)));
  EXPECT_TRUE(WasStarved({}, {ms(50), ms(50)}, ms(50)));
  EXPECT_FALSE(WasStarved({}, {ms(51), ms(50)}, ms(50)));
  EXPECT_FALSE(WasStarved({}, {ms(1), ms(49)}, ms(50)));
  EXPECT_FALSE(WasStarved({ms(9), ms(30)}, {ms(10), ms(79)}, ms(50)));
  EXPECT_TRUE(WasStarved({ms(900), ms(10)}, {ms(910), ms(60)}, ms(50)));
}

#if defined(__linux__)
TEST(CpuWaitsTest, TheKernelCountsHowLongAThreadRan) {
  const CpuTimes before = CpuTimesOfThread();
  EXPECT_TRUE(testing::Eventually([&] { return CpuTimesOfThread().ran > before.ran; }));
  EXPECT_GE(CpuTimesOfThread().waited, before.waited);
}
#endif

// A thread that has waited for an hour more at each reading.
CpuTimes EverMoreWaits() {
  static std::atomic<int> readings{0};
  return {{}, std::chrono::hours(++readings)};
}
CpuTimes NoWaits() { return {}; }

// A connection to a server that accepts it, answers once, and is silent then.
class SilentTest : public ::testing::Test {
 protected:
  static constexpr absl::Duration kTimeout = absl::Milliseconds(50);

  ~SilentTest() override {
    if (connection_ != nullptr) connection_->Stop();
    io_->Stop();
  }

  void Connect(CpuTimes (*cpu_times)()) {
    const auto* const in = reinterpret_cast<const sockaddr_in*>(&server_.address().bytes);
    options_.port = ntohs(in->sin_port);
    options_.timeout = kTimeout;
    options_.connect_timeout = absl::Seconds(20);
    connection_ = std::make_shared<Connection>(options_, io_, cpu_times);
    connection_->Start();
    ASSERT_TRUE(testing::Eventually([&] { return connection_->ShowsLife(); }));  // it is up
  }
  // How long a call takes to fail, and one that does not wait.
  Instant::duration CallFor() {
    const Instant begin = MonotonicNow();
    const auto reply = connection_->Call("PING\r\n", 1, begin + Chrono(kTimeout));
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kDeadlineExceeded);
    return MonotonicNow() - begin;
  }
  Instant::duration SendFor() {
    class Ping final : public Caller {
     public:
      Ping(Instant deadline, absl::Notification* over, absl::Status* status)
          : Caller(deadline), over_(over), status_(status) {}
      std::string Request() override { return "PING\r\n"; }
      void Done(absl::StatusOr<Reply> reply) override {
        *status_ = reply.status();
        over_->Notify();
      }

     private:
      absl::Notification* const over_;
      absl::Status* const status_;
    };
    absl::Notification over;
    absl::Status status;
    const Instant begin = MonotonicNow();
    connection_->Send(std::make_unique<Ping>(begin + Chrono(kTimeout), &over, &status));
    io_->Flush();
    over.WaitForNotification();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    return MonotonicNow() - begin;
  }

  const Server server_{"+OK\r\n"};
  RedisOptions options_;
  const std::shared_ptr<IoThread> io_ = std::make_shared<IoThread>();
  std::shared_ptr<Connection> connection_;
};

TEST_F(SilentTest, AThreadThatHadNoProcessorWaitsForOneMoreTimeout) {
  Connect(EverMoreWaits);
  EXPECT_GE(CallFor(), Chrono(2 * kTimeout));
}

TEST_F(SilentTest, TheThreadThatHadNoProcessorForOthersWaitsForOneMoreTimeout) {
  Connect(EverMoreWaits);
  EXPECT_GE(SendFor(), Chrono(2 * kTimeout));
}

TEST_F(SilentTest, ACallEndsWithoutAnAnswer) {
  Connect(NoWaits);
  EXPECT_GE(CallFor(), Chrono(kTimeout));
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
