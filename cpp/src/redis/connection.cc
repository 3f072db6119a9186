#include "redis/connection_impl.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tidegate::redis {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(5);
// A connection whose oldest request has had no reply for so long is dead, even
// if nobody said so.
constexpr absl::Duration kSilence = absl::Seconds(1);
// After so long without traffic it is looked at before it is used.
constexpr absl::Duration kIdle = absl::Seconds(1);

std::atomic<int64_t> forks{0};

}  // namespace

int64_t Forks() {
  static const int once =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)once;
  return forks.load(std::memory_order_relaxed);
}

void Connection::Impl::Start() {
  absl::MutexLock lock(&mu_);
  StartConnecting();
}

void Connection::Impl::StartConnecting() {
  state_ = State::kConnecting;
  try {
    std::thread([self = shared_from_this()] { self->Connect(); }).detach();
    connecting_ = true;
  } catch (const std::system_error& error) {
    // The next call tries again.
    connecting_ = false;
    failed_ = true;
    failure_ = absl::StrCat("cannot start a thread: ", error.what());
  }
}

void Connection::Impl::Connect() {
  std::minstd_rand random(std::random_device{}());
  std::uniform_real_distribution<double> jitter(0.5, 1.0);
  absl::Duration backoff = kFirstBackoff;
  for (;;) {
    const absl::StatusOr<int> fd = Open(options_, absl::Now() + options_.connect_timeout);
    absl::MutexLock lock(&mu_);
    // The descriptor of the connection before may still be in use.
    while (state_ == State::kConnecting && dying_fd_ >= 0) changed_.Wait(&mu_);
    if (state_ == State::kStopped) {
      if (fd.ok()) close(*fd);
      return;
    }
    if (fd.ok()) {
      fd_ = *fd;
      ++generation_;
      reader_.reset(redisReaderCreate());
      last_use_ = absl::Now();
      failed_ = false;
      connecting_ = false;
      state_ = State::kUp;
      changed_.SignalAll();
      WakePump();
      return;
    }
    failed_ = true;
    failure_ = std::string(fd.status().message());
    changed_.SignalAll();
    WakePump();
    const absl::Time until = absl::Now() + backoff * jitter(random);
    while (state_ == State::kConnecting && !changed_.WaitWithDeadline(&mu_, until)) {
    }
    if (state_ == State::kStopped) return;
    backoff = std::min(backoff * 2, kLongestBackoff);
  }
}

void Connection::Impl::CloseIfUnused() {
  if (dying_fd_ < 0 || reading_ || writing_) return;
  close(dying_fd_);
  dying_fd_ = -1;
  changed_.SignalAll();
}

void Connection::Impl::Break(const std::string& why) {
  if (state_ != State::kUp) return;
  // Wakes a thread that polls it; the number must not be given to another file
  // before that thread has let go.
  (void)shutdown(fd_, SHUT_RDWR);
  dying_fd_ = std::exchange(fd_, -1);
  ++generation_;
  out_.clear();
  failure_ = why;
  for (const auto& pending : queue_) Finish(pending, absl::AbortedError(why));
  queue_.clear();
  CloseIfUnused();
  StartConnecting();
}

void Connection::Impl::Renew(const std::string& why) {
  absl::MutexLock lock(&mu_);
  Break(why);
}

void Connection::Impl::Stop() {
  absl::MutexLock lock(&mu_);
  if (state_ == State::kUp) Break("the store was closed");
  state_ = State::kStopped;
  changed_.SignalAll();
  WakePump();
}

void Connection::Impl::CheckUp() {
  if (state_ == State::kUp) {
    const absl::Time now = absl::Now();
    if (!queue_.empty() && now - queue_.front()->sent > kSilence) {
      Break("the server has fallen silent");
    } else if (queue_.empty() && !reading_ && now - last_use_ > kIdle) {
      char byte;
      const ssize_t n = recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      // Nothing was asked, so bytes are as wrong as an end.
      if (n >= 0 || errno != EAGAIN) Break("the server closed the connection");
    }
  }
  if (state_ == State::kConnecting && !connecting_) StartConnecting();
}

absl::Status Connection::Impl::AwaitUp(absl::Time deadline) {
  CheckUp();
  while (state_ == State::kConnecting && !failed_) {
    if (changed_.WaitWithDeadline(&mu_, deadline)) break;
  }
  return state_ == State::kUp ? absl::OkStatus() : absl::UnavailableError(failure_);
}

void Connection::Impl::Flush(absl::Time deadline) {
  if (writing_ || out_.empty()) return;
  writing_ = true;
  const uint64_t generation = generation_;
  const int fd = fd_;
  std::string bytes;
  size_t done = 0;
  int error = 0;
  while (generation == generation_ && error == 0 && !(done == bytes.size() && out_.empty())) {
    if (done == bytes.size()) {
      bytes.clear();
      bytes.swap(out_);
      done = 0;
    }
    mu_.Unlock();
    const ssize_t n = send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      // The server does not read. Its connection is of no use to anyone then.
      if (Poll(fd, POLLOUT, deadline) == 0) error = ETIMEDOUT;
    } else if (errno != EINTR) {
      error = errno;
    }
    mu_.Lock();
  }
  writing_ = false;
  if (generation != generation_) {
    CloseIfUnused();
  } else if (error == ETIMEDOUT) {
    out_.insert(0, bytes, done);
  } else if (error != 0) {
    Break("the connection broke while writing");
  }
}

void Connection::Impl::Read(absl::Time deadline, int wake_fd) {
  reading_ = true;
  const uint64_t generation = generation_;
  const int fd = fd_;
  // Nobody else touches it while this thread reads.
  redisReader* const reader = reader_.get();
  mu_.Unlock();
  std::vector<Reply> replies;
  const char* broken = nullptr;
  if (Poll(fd, POLLIN, deadline, wake_fd) != 0) broken = Receive(fd, reader, &replies);
  mu_.Lock();
  reading_ = false;
  if (generation != generation_) {
    CloseIfUnused();
    return;
  }
  if (!replies.empty()) last_use_ = absl::Now();
  for (Reply& reply : replies) {
    if (queue_.empty()) {
      broken = "the server sent a reply that nobody asked for";
      break;
    }
    const std::shared_ptr<Pending> pending = std::move(queue_.front());
    queue_.pop_front();
    Finish(pending, std::move(reply));
  }
  if (broken != nullptr) Break(broken);
}

const char* Connection::Impl::Receive(int fd, redisReader* reader, std::vector<Reply>* replies) {
  char buffer[65536];
  const ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (n == 0) return "the server closed the connection";
  if (n < 0) return errno == EAGAIN || errno == EINTR ? nullptr : "the connection broke";
  if (redisReaderFeed(reader, buffer, static_cast<size_t>(n)) != REDIS_OK) {
    return "the reply is too large";
  }
  for (;;) {
    void* made = nullptr;
    if (redisReaderGetReply(reader, &made) != REDIS_OK) {
      return "the server does not speak the protocol of Redis";
    }
    if (made == nullptr) return nullptr;
    replies->emplace_back(static_cast<redisReply*>(made));
  }
}

void Connection::Impl::Finish(const std::shared_ptr<Pending>& pending,
                              absl::StatusOr<Reply> reply) {
  pending->done = true;
  if (pending->abandoned) return;
  pending->reply = std::move(reply);
  if (pending->caller == nullptr) {
    pending->ready.Signal();
  } else {
    told_.push_back(pending);
    WakePump();
  }
}

void Connection::Impl::PassOn() {
  if (reading_) return;
  for (const auto& pending : queue_) {
    if (pending->abandoned) continue;
    if (pending->caller == nullptr) {
      pending->ready.Signal();
    } else {
      WakePump();
    }
    return;
  }
}

absl::StatusOr<Reply> Connection::Impl::Call(const std::string& request, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  if (absl::Status s = AwaitUp(deadline); !s.ok()) return s;
  if (queue_.size() >= options_.max_queue) {
    return absl::ResourceExhaustedError(
        absl::StrCat(queue_.size(), " calls wait for Redis; accepted are ", options_.max_queue));
  }
  const auto pending = std::make_shared<Pending>();
  pending->sent = absl::Now();
  last_use_ = pending->sent;
  out_.append(request);
  queue_.push_back(pending);
  Flush(deadline);
  while (!pending->done && absl::Now() < deadline) {
    if (reading_) {
      (void)pending->ready.WaitWithDeadline(&mu_, deadline);
    } else {
      Read(deadline);
    }
  }
  PassOn();
  if (!pending->done) {
    pending->abandoned = true;
    return absl::DeadlineExceededError("no answer in time");
  }
  return std::move(pending->reply);
}

Connection::Connection(const RedisOptions& options) : options_(options), impl_(nullptr) {
  (void)Current();
}

Connection::~Connection() {
  std::shared_ptr<Impl>* impl = impl_.load();
  if (!(*impl)->IsMine()) return;
  (*impl)->Stop();
  delete impl;
}

Connection::Impl& Connection::Current() {
  std::shared_ptr<Impl>* impl = impl_.load(std::memory_order_acquire);
  if (impl == nullptr || !(*impl)->IsMine()) [[unlikely]] {
    auto* made = new std::shared_ptr<Impl>(std::make_shared<Impl>(options_));
    if (impl_.compare_exchange_strong(impl, made, std::memory_order_acq_rel)) {
      (*made)->Start();
      return **made;
    }
    delete made;
  }
  return **impl;
}

absl::StatusOr<Reply> Connection::Call(const std::string& request, absl::Time deadline) {
  return Current().Call(request, deadline);
}

void Connection::Send(absl::Time deadline, std::unique_ptr<Caller> caller) {
  Current().Send(deadline, std::move(caller));
}

void Connection::Kick() { Current().Kick(); }

void Connection::Renew(const std::string& why) { Current().Renew(why); }

}  // namespace tidegate::redis
