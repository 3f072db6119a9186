#include "redis/connection_impl.h"

#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "redis/dial.h"

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
    absl::StatusOr<std::unique_ptr<Stream>> stream =
        Dial(options_, absl::Now() + options_.connect_timeout);
    absl::MutexLock lock(&mu_);
    if (state_ == State::kStopped) return;
    if (stream.ok()) {
      stream_ = *std::move(stream);
      last_use_ = absl::Now();
      failed_ = false;
      connecting_ = false;
      state_ = State::kUp;
      changed_.SignalAll();
      WakePump();
      return;
    }
    failed_ = true;
    failure_ = std::string(stream.status().message());
    changed_.SignalAll();
    WakePump();
    const absl::Time until = absl::Now() + backoff * jitter(random);
    while (state_ == State::kConnecting && !changed_.WaitWithDeadline(&mu_, until)) {
    }
    if (state_ == State::kStopped) return;
    backoff = std::min(backoff * 2, kLongestBackoff);
  }
}

void Connection::Impl::Break(const std::string& why) {
  if (state_ != State::kUp) return;
  stream_->Shutdown();
  stream_.reset();
  out_.clear();
  failure_ = why;
  for (const auto& pending : queue_) Finish(pending, absl::AbortedError(why));
  queue_.clear();
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
      if (stream_->IsOver()) Break("the server closed the connection");
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
  const std::shared_ptr<Stream> stream = stream_;
  std::string bytes;
  size_t done = 0;
  bool broken = false;
  bool late = false;
  while (stream == stream_ && !broken && !late && !(done == bytes.size() && out_.empty())) {
    if (done == bytes.size()) {
      bytes.clear();
      bytes.swap(out_);
      done = 0;
    }
    mu_.Unlock();
    const ssize_t n = stream->Write(bytes.data() + done, bytes.size() - done);
    broken = n < 0;
    if (n > 0) done += static_cast<size_t>(n);
    // The server does not read.
    late = n == 0 && Poll(stream->fd(), POLLOUT, deadline) == 0;
    mu_.Lock();
  }
  writing_ = false;
  if (stream != stream_) {
    // Others may have left this thread what is for the connection after it.
    if (state_ == State::kUp) Flush(deadline);
    return;
  }
  if (late) out_.insert(0, bytes, done);
  if (broken) Break("the connection broke while writing");
}

void Connection::Impl::Read(absl::Time deadline, int wake_fd) {
  reading_ = true;
  const std::shared_ptr<Stream> stream = stream_;
  mu_.Unlock();
  std::vector<Reply> replies;
  const char* broken = nullptr;
  if (Poll(stream->fd(), POLLIN, deadline, wake_fd) != 0) broken = stream->Read(&replies);
  mu_.Lock();
  reading_ = false;
  if (stream != stream_) return;
  if (!replies.empty()) last_use_ = absl::Now();
  for (Reply& reply : replies) {
    if (queue_.empty()) {
      broken = "the server sent a reply that nobody asked for";
      break;
    }
    if (--queue_.front()->replies > 0) continue;
    const std::shared_ptr<Pending> pending = std::move(queue_.front());
    queue_.pop_front();
    Finish(pending, std::move(reply));
  }
  if (broken != nullptr) Break(broken);
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

absl::StatusOr<Reply> Connection::Impl::Call(const std::string& request, int replies,
                                             absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  if (absl::Status s = AwaitUp(deadline); !s.ok()) return s;
  if (queue_.size() >= options_.max_queue) {
    return absl::ResourceExhaustedError(
        absl::StrCat(queue_.size(), " calls wait for Redis; accepted are ", options_.max_queue));
  }
  const auto pending = std::make_shared<Pending>();
  pending->replies = replies;
  pending->sent = absl::Now();
  last_use_ = pending->sent;
  out_.append(request);
  queue_.push_back(pending);
  Flush(deadline);
  while (!pending->done && absl::Now() < deadline) {
    if (reading_ || state_ != State::kUp) {
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

absl::StatusOr<Reply> Connection::Exchange(const std::string& request, int replies,
                                           absl::Time deadline) {
  return Current().Call(request, replies, deadline);
}

void Connection::Send(uint16_t, absl::Time deadline, std::unique_ptr<Caller> caller) {
  Current().Send(deadline, std::move(caller));
}

void Connection::Kick() { Current().Kick(); }

void Connection::Renew(const std::string& why) { Current().Renew(why); }

}  // namespace tidegate::redis
