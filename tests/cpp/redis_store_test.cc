// The Redis store under load, for the detectors of races and leaks: blocking threads and
// asynchronous calls share one connection, which servers close and a probe opens again. Tests in
// Python check the decisions.
#include "tidegate/redis_store.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <atomic>
#include <csignal>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "base/monotonic.h"
#include "redis/transport/client.h"
#include "redis/transport/single_server.h"
#include "testing.h"
#include "tidegate/limiter.h"

namespace tidegate::testing {
namespace {

constexpr int64_t kYear = 365 * 86400 * kSecond;

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

// A Redis server for each test. It stores nothing on disk.
class Server {
 public:
  Server() : port_(FreePort()), argument_(std::to_string(port_)) { Start(); }
  ~Server() { Kill(); }

  int port() const { return port_; }
  void Start() {
    const char* const arguments[] = {
        "redis-server", "--port", argument_.c_str(), "--bind", "127.0.0.1", "--save", "",
        "--appendonly", "no",     "--daemonize",     "no",     nullptr};
    pid_ = fork();
    if (pid_ == 0) {
#if defined(__linux__)
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // the server ends even if this process is killed
#endif
      const int null = open("/dev/null", O_WRONLY);
      dup2(null, 1);
      dup2(null, 2);
      execvp(arguments[0], const_cast<char* const*>(arguments));
      _exit(127);
    }
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  const int port_;
  const std::string argument_;
  pid_t pid_ = 0;
};

class RedisStoreTest : public ::testing::Test {
 protected:
  std::shared_ptr<RedisStore> Store(absl::Duration timeout) {
    RedisOptions options;
    options.port = server_.port();
    options.timeout = timeout;
    options.connect_timeout = absl::Seconds(20);
    options.breaker_open = absl::Milliseconds(50);
    options.on_breaker = [this](bool, const std::string&) { ++changes_; };
    options.on_script_error = [this](const std::string& why) { script_errors_.push_back(why); };
    auto store = RedisStore::Create(options);
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE(Eventually([&] { return (*store)->Ping().ok(); }));
    return *std::move(store);
  }

  static std::unique_ptr<Limiter> Limit(const std::shared_ptr<RedisStore>& store, int64_t count) {
    auto limiter = Limiter::Create({MakeLimit(count, kYear)}, store, nullptr, "test");
    EXPECT_TRUE(limiter.ok()) << limiter.status();
    return *std::move(limiter);
  }

  std::atomic<int> changes_{0};
  std::vector<std::string> script_errors_;
  Server server_;
};

// Makes `n` asynchronous calls, and returns how many were allowed.
int64_t HitWithoutWaiting(Limiter& limiter, int n) {
  std::atomic<int64_t> passed{0};
  absl::BlockingCounter left(n);
  const auto done = [&](const Decision& d) {
    passed += d.allowed;
    left.DecrementCount();
  };
  for (int i = 0; i < n; ++i) {
    if (const auto early = limiter.Submit(Op::kHit, "k", 1, nullptr, done)) done(*early);
  }
  limiter.Flush();
  left.Wait();
  return passed;
}

TEST_F(RedisStoreTest, BlockingAndAsynchronousCallsAdmitExactlyTheLimit) {
  const auto store = Store(absl::Seconds(60));
  const auto limiter = Limit(store, 2000);
  std::atomic<int64_t> passed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < 300; ++call) passed += limiter->Hit("k").allowed;
    });
  }
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int batch = 0; batch < 10; ++batch) passed += HitWithoutWaiting(*limiter, 50);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(passed, 2000);
  EXPECT_EQ(store->stats().degraded, 0);
  EXPECT_EQ(store->stats().script_errors, 0);
}

TEST_F(RedisStoreTest, ReconnectsAfterAServerDiesUnderLoad) {
  const auto store = Store(absl::Milliseconds(200));
  const auto limiter = Limit(store, 1'000'000);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      while (!stop) {
        (void)(i % 2 == 0 ? limiter->Hit("k").allowed : HitWithoutWaiting(*limiter, 20) > 0);
        (void)store->stats();
        absl::SleepFor(absl::Milliseconds(1));
      }
    });
  }
  for (int round = 0; round < 3; ++round) {
    const int64_t opened = store->stats().breaker_opened;
    server_.Kill();
    EXPECT_TRUE(Eventually([&] { return store->stats().breaker_opened > opened; }));
    server_.Start();
    EXPECT_TRUE(Eventually([&] { return !limiter->Hit("k").degraded; }));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(changes_, 6);
  EXPECT_EQ(store->stats().script_errors, 0);
}

// The reply to a PING that was submitted.
class Pinger final : public redis::Caller {
 public:
  Pinger(Instant deadline, std::promise<absl::StatusOr<redis::Reply>>& reply)
      : Caller(deadline), reply_(reply) {}
  std::string Request() override { return kPing; }
  void Done(absl::StatusOr<redis::Reply> reply) override { reply_.set_value(std::move(reply)); }

  static constexpr const char* kPing = "*1\r\n$4\r\nPING\r\n";

 private:
  std::promise<absl::StatusOr<redis::Reply>>& reply_;
};

TEST_F(RedisStoreTest, ARequestWhoseTimePassedBeforeItWasSubmittedIsStillSent) {
  RedisOptions options;
  options.port = server_.port();
  options.timeout = absl::Seconds(20);
  options.connect_timeout = absl::Seconds(20);
  redis::SingleServer client(options);
  const auto connected = [&] {
    return client.Call(0, Pinger::kPing, MonotonicIn(absl::Seconds(20))).ok();
  };
  ASSERT_TRUE(Eventually(connected));
  // The deadline of a process that was suspended after it computed it.
  const Instant past = MonotonicIn(absl::Seconds(-5));
  const auto reply = client.Call(0, Pinger::kPing, past);
  EXPECT_TRUE(reply.ok()) << reply.status();
  std::promise<absl::StatusOr<redis::Reply>> later;
  client.Send(0, std::make_unique<Pinger>(past, later));
  client.Kick();
  const auto async_reply = later.get_future().get();
  EXPECT_TRUE(async_reply.ok()) << async_reply.status();
}

TEST_F(RedisStoreTest, ReportsScriptErrorsEverMoreRarely) {
  const auto store = Store(absl::Seconds(60));
  const auto limiter = Limit(store, 10);
  EXPECT_FALSE(limiter->Hit("k").degraded);
  const auto reply = store->Command(
      {"EVAL", "return redis.call('SET', redis.call('KEYS', 'test:*')[1], 'foreign')", "0"},
      absl::Seconds(60));
  ASSERT_TRUE(reply.ok() && std::get<std::string>(reply->value) == "OK");
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(limiter->Hit("k").degraded);
  EXPECT_EQ(script_errors_.size(), 3);
  EXPECT_TRUE(absl::StrContains(script_errors_.back(), "(script error 4): "));
  EXPECT_EQ(store->stats().script_errors, 7);
  EXPECT_EQ(changes_, 0);
}

TEST(RedisStoreEndTest, AStoreWithLeasesWaitsAsItsUserSays) {
  for (const bool leased : {false, true}) {
    int waits = 0;
    RedisOptions options;
    options.port = FreePort();
    options.lease = leased ? absl::Milliseconds(200) : absl::ZeroDuration();
    options.while_ending = [&](absl::FunctionRef<void()> wait) {
      ++waits;
      wait();
    };
    auto store = RedisStore::Create(std::move(options));
    ASSERT_TRUE(store.ok());
    store->reset();
    EXPECT_EQ(waits, leased ? 1 : 0);
  }
}

TEST_F(RedisStoreTest, CanBeDestroyedWithCallsInFlight) {
  for (int round = 0; round < 20; ++round) {
    const auto told = std::make_shared<std::atomic<int>>(0);
    int early = 0;
    {
      const auto store = Store(absl::Seconds(60));
      const auto limiter = Limit(store, 1'000'000);
      for (int i = 0; i < 50; ++i) {
        early += limiter->Submit(Op::kHit, "k", 1, nullptr, [told](const Decision&) { ++*told; })
                     .has_value();
      }
      limiter->Flush();
      // The limits must live until every call has its answer (redis_store.h).
      ASSERT_TRUE(Eventually([&] { return *told + early == 50; }));
    }
  }
}

}  // namespace
}  // namespace tidegate::testing
