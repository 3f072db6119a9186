#include "redis/transport/io_thread.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/monotonic.h"
#include "redis/transport/connection.h"
#include "redis/transport/stream.h"

namespace tidegate::redis {
namespace {

// Longer than one turn of an event loop that queues hundreds of requests, so that a tick seldom
// splits them.
constexpr std::chrono::milliseconds kTick{5};
// The time until a late request is checked again.
constexpr std::chrono::milliseconds kRetry{1};
// How long the thread ticks after the last traffic.
constexpr std::chrono::milliseconds kActive{25};

}  // namespace

absl::Status IoThread::Serve(std::shared_ptr<Connection> connection) {
  const std::lock_guard<std::mutex> lock(mu_);
  try {
    if (wake_ == nullptr) wake_ = std::make_unique<Wake>();
    if (!started_) {
      std::thread([self = shared_from_this()] { self->Run(); }).detach();
      started_ = true;
    }
  } catch (const std::system_error& error) {
    return absl::CancelledError(absl::StrCat("cannot start a thread: ", error.what()));
  }
  added_.push_back(std::move(connection));
  return absl::OkStatus();
}

void IoThread::Stop() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    stopped_ = true;
  }
  Flush();
}

void IoThread::WakeFrom(Rest least) {
  Rest rest = rest_.load();
  if (rest < least) return;
  while (rest != Rest::kNone && !rest_.compare_exchange_weak(rest, Rest::kNone)) {
  }
  if (rest != Rest::kNone) wake_->Signal();
}

bool IoThread::ServeAll(std::vector<std::shared_ptr<Connection>>& connections) {
  bool busy = false;
  const auto is_over = [&busy](const std::shared_ptr<Connection>& connection) {
    const Connection::Turn turn = connection->Serve();
    busy |= turn != Connection::Turn::kIdle;
    return turn == Connection::Turn::kOver;
  };
  connections.erase(std::remove_if(connections.begin(), connections.end(), is_over),
                    connections.end());
  return busy;
}

void IoThread::Watch(const std::vector<std::shared_ptr<Connection>>& connections, bool ticking) {
  // Set before the connections are checked, so that requests queued after the check wake this
  // thread.
  rest_.store(ticking ? Rest::kTicking : Rest::kAsleep);
  bool ready = false;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    ready = !added_.empty() || (stopped_ && connections.empty());
  }
  const Instant now = MonotonicNow();
  Instant until = ticking ? now + kTick : Instant::max();
  std::vector<Connection::Watch> watches;
  std::vector<pollfd> polls{{wake_->fd(), POLLIN, 0}};
  for (const auto& connection : connections) {
    watches.push_back(connection->BeginWatch());
    const Connection::Watch& watch = watches.back();
    ready |= watch.ready;
    until = std::min(until, watch.deadline);
    // poll() ignores negative descriptors.
    polls.push_back({watch.events != 0 ? watch.stream->fd() : -1, watch.events, 0});
  }
  // A late request waits for another thread to read its reply.
  (void)Poll(polls.data(), polls.size(), ready ? Instant::min() : std::max(until, now + kRetry));
  rest_.store(Rest::kNone);
  if (polls[0].revents != 0) wake_->Clear();
  for (size_t i = 0; i < connections.size(); ++i) {
    connections[i]->EndWatch(watches[i], polls[i + 1].revents);
  }
}

void IoThread::Run() {
  std::vector<std::shared_ptr<Connection>> connections;
  Instant last_traffic = MonotonicNow();
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      std::move(added_.begin(), added_.end(), std::back_inserter(connections));
      added_.clear();
      if (stopped_ && connections.empty()) return;
    }
    const Instant now = MonotonicNow();
    if (ServeAll(connections)) {
      last_traffic = now;
    } else {
      Watch(connections, now - last_traffic < kActive);
    }
  }
}

}  // namespace tidegate::redis
