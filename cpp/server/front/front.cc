#include "server/front/front.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/grpc/reflection.h"
#include "tidegate/process.h"

namespace tidegate::server {
namespace {

// Signals go to the threads of the program. A broken pipe is reported by the write itself.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

Front::Front(const FrontOptions& options) : options_(options), process_(ForkGeneration()) {}

Front::~Front() {
  Stop();
  if (is_ours()) return;
  // The threads do not exist in a child process, and their data may be in any state.
  for (std::thread& thread : threads_) thread.detach();
  for (std::unique_ptr<Loop>& loop : loops_) (void)loop.release();
}

bool Front::is_ours() const { return ForkGeneration() == process_; }

absl::Status Front::CheckNotStarted(const char* what) const {
  const std::lock_guard lock(mu_);
  if (loops_.empty() && !stopped_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " is called after start(); expected it before the front is started"));
}

absl::StatusOr<int> Front::Listen(const std::string& host, int port,
                                  const std::shared_ptr<Tls>& tls) {
  if (absl::Status status = CheckNotStarted("listen()"); !status.ok()) return status;
  absl::StatusOr<std::vector<Listener>> made = ListenTcp(host, port, options_.loops);
  if (!made.ok()) return made.status();
  const int bound = PortOf(made->front());
  for (size_t i = 0; i < made->size(); ++i) {
    if (i % static_cast<size_t>(options_.loops) == 0) listeners_.emplace_back();
    (*made)[i].tls = tls;
    listeners_.back().push_back(std::make_unique<Listener>(std::move((*made)[i])));
  }
  return bound;
}

absl::Status Front::ListenUnix(const std::string& path, mode_t mode, std::shared_ptr<Tls> tls) {
  if (absl::Status status = CheckNotStarted("listen_unix()"); !status.ok()) return status;
  absl::StatusOr<Listener> made = server::ListenUnix(path, mode);
  if (!made.ok()) return made.status();
  made->tls = std::move(tls);
  made->is_shared = true;
  listeners_.emplace_back();
  listeners_.back().push_back(std::make_unique<Listener>(std::move(*made)));
  return absl::OkStatus();
}

absl::Status Front::Adopt(const std::vector<int>& sockets, const std::shared_ptr<Tls>& tls) {
  absl::Status status = CheckNotStarted("adopt()");
  std::vector<std::unique_ptr<Listener>> group;
  for (const int fd : sockets) {
    absl::StatusOr<Listener> made = server::Adopt(fd);
    if (status.ok()) status = made.status();
    if (!status.ok()) continue;
    if (made->unix_path.empty()) made->tls = tls;
    made->is_shared = sockets.size() < static_cast<size_t>(options_.loops);
    group.push_back(std::make_unique<Listener>(std::move(*made)));
  }
  if (status.ok() && !group.empty()) listeners_.push_back(std::move(group));
  return status;
}

std::vector<int> Front::ShareSockets() {
  std::vector<int> sockets;
  const std::lock_guard lock(mu_);
  if (!is_ours() || stopped_) return sockets;
  for (const auto& group : listeners_) {
    for (const auto& listener : group) {
      listener->stays_open = true;
      if (listener->socket) sockets.push_back(listener->socket.get());
    }
  }
  return sockets;
}

void Front::UnshareSockets() {
  const std::lock_guard lock(mu_);
  if (!is_ours() || stopped_) return;
  for (const auto& group : listeners_) {
    for (const auto& listener : group) listener->stays_open = listener->was_adopted;
  }
}

absl::Status Front::Route(std::shared_ptr<RoutedService> service) {
  if (absl::Status status = CheckNotStarted("route()"); !status.ok()) return status;
  return routes_.Add(std::move(service));
}

absl::Status Front::Start() {
  if (absl::Status status = CheckNotStarted("start()"); !status.ok()) return status;
  if (listeners_.empty()) {
    return absl::FailedPreconditionError(
        "the front listens nowhere; expected listen() before start()");
  }
  if (options_.reflection && !routes_.GrpcServices().empty()) {
    absl::Status status = routes_.Add(std::make_shared<Reflection>(&routes_));
    if (!status.ok()) return status;
  }
  const std::lock_guard lock(mu_);
  try {
    StartThreads();
  } catch (const std::system_error& error) {
    for (const auto& loop : loops_) loop->Stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    loops_.clear();
    return absl::ResourceExhaustedError(absl::StrCat(
        "the loops cannot start: ", error.what(), "; expected threads and descriptors for them"));
  }
  return absl::OkStatus();
}

void Front::StartThreads() {
  for (int i = 0; i < options_.loops; ++i) {
    std::vector<Listener*> listeners;
    for (const auto& group : listeners_) {
      // Each socket has a loop, and each loop a socket, whichever are more.
      const auto loops = static_cast<size_t>(options_.loops);
      for (size_t j = static_cast<size_t>(i); j < std::max(group.size(), loops); j += loops) {
        listeners.push_back(group[j % group.size()].get());
      }
    }
    loops_.push_back(
        std::make_unique<Loop>(options_, &routes_, std::move(listeners), &open_, [this] {
          const std::lock_guard lock(mu_);
          drained_.notify_all();
        }));
  }
  const SignalsBlocked blocked;
  for (const auto& loop : loops_) {
    threads_.emplace_back([raw = loop.get()] {
      (void)pthread_setname_np(pthread_self(), "tidegate-front");
      raw->Run();
    });
  }
}

bool Front::AllDrained() const {
  return std::all_of(loops_.begin(), loops_.end(),
                     [](const auto& loop) { return loop->drained(); });
}

bool Front::Drain(Instant::duration time) {
  if (!is_ours()) return true;
  std::unique_lock lock(mu_);
  if (stopped_) return true;
  for (const auto& service : routes_.routed()) service->OnDrain();
  for (const auto& loop : loops_) loop->Drain();
  return drained_.wait_until(lock, MonotonicNow() + time,
                             [this] { return stopped_ || AllDrained(); });
}

void Front::Stop() {
  if (!is_ours()) return;
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mu_);
    if (stopped_) return;
    stopped_ = true;
    for (const auto& loop : loops_) loop->Stop();
    threads.swap(threads_);
    drained_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& group : listeners_) {
    for (const auto& listener : group) {
      // A child process may hold the socket too.
      if (listener->stays_open) continue;
      if (listener->socket) (void)shutdown(listener->socket.get(), SHUT_RDWR);
      if (!listener->unix_path.empty()) (void)unlink(listener->unix_path.c_str());
    }
  }
  listeners_.clear();
}

bool Front::running() const {
  if (!is_ours()) return false;
  const std::lock_guard lock(mu_);
  return !loops_.empty() && !stopped_;
}

std::vector<std::pair<std::string, uint64_t>> Front::Stats() const {
  std::vector<std::pair<std::string, uint64_t>> stats;
#define TIDEGATE_ADD(name) stats.emplace_back(#name, 0);
  TIDEGATE_FRONT_COUNTERS(TIDEGATE_ADD)
#undef TIDEGATE_ADD
  if (!is_ours()) return stats;
  const std::lock_guard lock(mu_);
  for (const auto& loop : loops_) {
    size_t i = 0;
#define TIDEGATE_SUM(name) stats[i++].second += loop->counters().name.read();
    TIDEGATE_FRONT_COUNTERS(TIDEGATE_SUM)
#undef TIDEGATE_SUM
  }
  return stats;
}

std::vector<Front::TimesOfCalls> Front::CallTimes() const {
  std::vector<TimesOfCalls> all;
  if (!is_ours()) return all;
  const std::lock_guard lock(mu_);
  for (const Service* const service : routes_.services()) {
    const TimedAs timed_as = service->timed_as();
    if (timed_as == TimedAs::kNothing) continue;
    for (const Protocol protocol : {Protocol::kHttp1, Protocol::kHttp2, Protocol::kGrpc}) {
      TimesOfCalls sum{timed_as, protocol, 0, std::vector<uint64_t>(Times::kBounds.size() + 1)};
      for (const auto& loop : loops_) {
        const Times& times = loop->counters().TimesOf(timed_as, protocol);
        sum.seconds += static_cast<double>(times.nanoseconds()) / 1e9;
        for (size_t i = 0; i < sum.counts.size(); ++i) sum.counts[i] += times.count(i);
      }
      all.push_back(std::move(sum));
    }
  }
  return all;
}

}  // namespace tidegate::server
