#include "server/front/front.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>

#include "server/front/date.h"
#include "testing.h"

namespace tidegate::server {
namespace {

using ::tidegate::testing::Eventually;

// A service that answers from its own thread.
class Elsewhere final : public RoutedService {
 public:
  Elsewhere() : thread_([this] { Run(); }) {}
  ~Elsewhere() override {
    {
      const std::lock_guard lock(mu_);
      ending_ = true;
    }
    came_.notify_all();
    thread_.join();
  }
  std::vector<Route> routes() const override { return {{"POST", "/later"}}; }
  TimedAs timed_as() const override { return TimedAs::kEnvoy; }
  bool Handle(const Request& request, Answer*, const Later& later) override {
    const std::lock_guard lock(mu_);
    calls_.emplace_back(later(), request.body);
    came_.notify_all();
    return false;
  }

 private:
  void Run() {
    std::unique_lock lock(mu_);
    while (!ending_) {
      came_.wait(lock, [this] { return ending_ || !calls_.empty(); });
      std::deque<std::pair<std::unique_ptr<Pending>, std::string>> calls;
      calls.swap(calls_);
      lock.unlock();
      for (auto& [pending, body] : calls) {
        Answer answer;
        answer.body = body;
        pending->Send(std::move(answer));
      }
      lock.lock();
    }
  }

  std::mutex mu_;
  std::condition_variable came_;
  std::deque<std::pair<std::unique_ptr<Pending>, std::string>> calls_;
  bool ending_ = false;
  std::thread thread_;
};

Descriptor Connect(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

std::string Ask(int fd, const std::string& body) {
  const std::string request =
      "POST /later HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) < 0) return {};
  std::string answer;
  char buffer[4096];
  while (!answer.ends_with("\r\n\r\n" + body)) {
    const ssize_t read = recv(fd, buffer, sizeof buffer, 0);
    if (read <= 0) break;
    answer.append(buffer, static_cast<size_t>(read));
  }
  return answer;
}

uint64_t Count(const Front& front, const std::string& name) {
  for (const auto& [known, count] : front.Stats()) {
    if (known == name) return count;
  }
  return 0;
}

TEST(TimesTest, ABucketHasTheTimesUpToItsBound) {
  using std::chrono::microseconds;
  Times times;
  for (const auto time : {microseconds(0), microseconds(10), microseconds(11),
                          microseconds(1'000'000), microseconds(1'000'001)}) {
    times.Add(time);
  }
  std::vector<uint64_t> counts;
  for (size_t i = 0; i <= Times::kBounds.size(); ++i) counts.push_back(times.count(i));
  std::vector<uint64_t> expected(Times::kBounds.size() + 1);
  expected[0] = 2;
  expected[1] = expected[Times::kBounds.size() - 1] = expected[Times::kBounds.size()] = 1;
  EXPECT_EQ(counts, expected);
  EXPECT_EQ(times.nanoseconds(), 2'000'022'000U);
  EXPECT_TRUE(std::is_sorted(Times::kBounds.begin(), Times::kBounds.end()));
}

TEST(FrontTest, LoopsSendTheAnswersOfOtherThreads) {
  FrontOptions options;
  options.loops = 2;
  Front front(options);
  ASSERT_TRUE(front.Route(std::make_shared<Elsewhere>()).ok());
  const absl::StatusOr<int> port = front.Listen("127.0.0.1", 0, nullptr);
  ASSERT_TRUE(port.ok());
  ASSERT_TRUE(front.Start().ok());
  std::vector<std::thread> clients;
  std::atomic<int> right{0};
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&, i] {
      const Descriptor socket = Connect(*port);
      for (int j = 0; j < 50; ++j) {
        const std::string body = std::to_string(i) + "-" + std::to_string(j);
        right += Ask(socket.get(), body).ends_with("\r\n\r\n" + body);
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return !front.Stats().empty() && right >= 20; }));
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(right, 300);
  EXPECT_EQ(Count(front, "answers_later"), 300U);
  for (const Front::TimesOfCalls& times : front.CallTimes()) {
    EXPECT_EQ(times.service, TimedAs::kEnvoy);
    const bool is_http1 = times.protocol == Protocol::kHttp1;
    EXPECT_EQ(std::accumulate(times.counts.begin(), times.counts.end(), uint64_t{0}),
              is_http1 ? 300U : 0U);
    EXPECT_EQ(times.seconds > 0, is_http1);
  }
  EXPECT_EQ(front.CallTimes().size(), 3U) << "of one service that is timed, and of no other";
  EXPECT_TRUE(front.Drain(seconds(60)));
  // A drain does not wait for clients to see that their connections were closed.
  EXPECT_TRUE(Eventually([&] { return Count(front, "connections_open") == 0; }));
}

TEST(FrontTest, StopsUnderLoad) {
  for (int round = 0; round < 10; ++round) {
    FrontOptions options;
    options.loops = 2;
    auto front = std::make_unique<Front>(options);
    ASSERT_TRUE(front->Route(std::make_shared<Elsewhere>()).ok());
    const absl::StatusOr<int> port = front->Listen("127.0.0.1", 0, nullptr);
    ASSERT_TRUE(port.ok());
    ASSERT_TRUE(front->Start().ok());
    std::atomic<int> answered{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 3; ++i) {
      clients.emplace_back([&] {
        const Descriptor socket = Connect(*port);
        while (Ask(socket.get(), "x").ends_with("x")) ++answered;
      });
    }
    EXPECT_TRUE(Eventually([&] { return answered >= 5; }));
    if (round % 2 == 0) front->Stop();
    front = nullptr;
    for (std::thread& client : clients) client.join();
  }
}

TEST(FrontTest, DropsAnAnswerAfterItHasStopped) {
  class Keeps final : public RoutedService {
   public:
    std::vector<Route> routes() const override { return {{"POST", "/later"}}; }
    bool Handle(const Request&, Answer*, const Later& later) override {
      pending = later();
      came = true;
      return false;
    }
    std::unique_ptr<Pending> pending;
    std::atomic<bool> came{false};
  };
  const auto service = std::make_shared<Keeps>();
  auto front = std::make_unique<Front>(FrontOptions{});
  ASSERT_TRUE(front->Route(service).ok());
  const absl::StatusOr<int> port = front->Listen("127.0.0.1", 0, nullptr);
  ASSERT_TRUE(port.ok());
  ASSERT_TRUE(front->Start().ok());
  std::thread client([&] { (void)Ask(Connect(*port).get(), "x"); });
  ASSERT_TRUE(Eventually([&] { return service->came.load(); }));
  front = nullptr;
  client.join();
  service->pending->Send({});
}

TEST(FrontTest, RefusesAnInvalidRouteWithAReason) {
  class Wrong final : public RoutedService {
   public:
    explicit Wrong(Route route) : route_(std::move(route)) {}
    std::vector<Route> routes() const override { return {route_}; }
    bool Handle(const Request&, Answer*, const Later&) override { return true; }

   private:
    const Route route_;
  };
  for (const Route& route : {Route{"GET", "path"}, Route{"", "/Method"}, Route{"", "a.B/C"},
                             Route{"", "/a.B/"}, Route{"", "/a/B/C"}}) {
    Front front(FrontOptions{});
    EXPECT_TRUE(absl::IsInvalidArgument(front.Route(std::make_shared<Wrong>(route)))) << route.path;
  }
}

TEST(HttpDateTest, IsInEnglish) { EXPECT_EQ(HttpDate(784111777), "Sun, 06 Nov 1994 08:49:37 GMT"); }

}  // namespace
}  // namespace tidegate::server
