#include "redis/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "redis/socket.h"

namespace tidegate::redis {
namespace {

constexpr absl::Duration kFirstBackoff = absl::Milliseconds(50);
constexpr absl::Duration kLongestBackoff = absl::Seconds(5);
// A connection whose oldest request has had no reply for so long is dead, even
// if nobody said so.
constexpr absl::Duration kSilence = absl::Seconds(1);
// After so long without traffic it is looked at before it is used.
constexpr absl::Duration kIdle = absl::Seconds(1);

}  // namespace

class Connection::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(const RedisOptions& options) : options_(options), pid_(getpid()) {}

  pid_t pid() const { return pid_; }
  void Start() ABSL_LOCKS_EXCLUDED(mu_);
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Reply> Call(const std::string& request, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Renew(const std::string& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pending {
    absl::CondVar ready;
    absl::Time sent;
    bool abandoned = false;  // its caller has left; the reply is thrown away
    bool done = false;
    Reply reply;          // null where the connection broke
    std::string failure;  // why
  };

  enum class State { kConnecting, kUp, kStopped };

  void Connect() ABSL_LOCKS_EXCLUDED(mu_);
  void StartConnecting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives up the connection: every pending call fails, a new one is opened.
  void Break(const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AwaitUp(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes what is queued, unless another thread is at it. Unlocks meanwhile.
  void Flush(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for bytes once and hands out the replies in them. Unlocks meanwhile.
  void Read(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Feed(const char* bytes, size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes somebody read, if anybody waits.
  void PassOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closes the descriptor once no thread uses it.
  void CloseIfUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RedisOptions options_;
  const pid_t pid_;

  absl::Mutex mu_;
  absl::CondVar changed_;  // state_, or a thread let go of the descriptor
  State state_ ABSL_GUARDED_BY(mu_) = State::kConnecting;
  bool connecting_ ABSL_GUARDED_BY(mu_) = false;  // a thread is at it
  bool failed_ ABSL_GUARDED_BY(mu_) = false;      // an attempt, since it was last up
  std::string failure_ ABSL_GUARDED_BY(mu_) = "not connected yet";
  int fd_ ABSL_GUARDED_BY(mu_) = -1;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;  // of the connection
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  int dying_fd_ ABSL_GUARDED_BY(mu_) = -1;
  absl::Time last_use_ ABSL_GUARDED_BY(mu_);
  std::string out_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Pending>> queue_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<redisReader, void (*)(redisReader*)> reader_ ABSL_GUARDED_BY(mu_){
      nullptr, redisReaderFree};
};

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
      return;
    }
    failed_ = true;
    failure_ = std::string(fd.status().message());
    changed_.SignalAll();
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
  for (const auto& pending : queue_) {
    pending->done = true;
    pending->failure = why;
    pending->ready.Signal();
  }
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
}

absl::Status Connection::Impl::AwaitUp(absl::Time deadline) {
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

void Connection::Impl::Read(absl::Time deadline) {
  reading_ = true;
  const uint64_t generation = generation_;
  const int fd = fd_;
  mu_.Unlock();
  char buffer[65536];
  ssize_t n = -1;
  bool again = true;
  if (Poll(fd, POLLIN, deadline) != 0) {
    n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    again = n < 0 && (errno == EAGAIN || errno == EINTR);
  }
  mu_.Lock();
  reading_ = false;
  if (generation != generation_) {
    CloseIfUnused();
  } else if (n > 0) {
    Feed(buffer, static_cast<size_t>(n));
  } else if (!again) {
    Break(n == 0 ? "the server closed the connection" : "the connection broke");
  }
}

void Connection::Impl::Feed(const char* bytes, size_t size) {
  last_use_ = absl::Now();
  if (redisReaderFeed(reader_.get(), bytes, size) != REDIS_OK) {
    Break("the reply is too large");
    return;
  }
  for (;;) {
    void* made = nullptr;
    if (redisReaderGetReply(reader_.get(), &made) != REDIS_OK) {
      Break("the server does not speak the protocol of Redis");
      return;
    }
    if (made == nullptr) return;
    Reply reply(static_cast<redisReply*>(made));
    if (queue_.empty()) {
      Break("the server sent a reply that nobody asked for");
      return;
    }
    const std::shared_ptr<Pending> pending = std::move(queue_.front());
    queue_.pop_front();
    pending->reply = std::move(reply);
    pending->done = true;
    pending->ready.Signal();
  }
}

void Connection::Impl::PassOn() {
  if (reading_) return;
  for (const auto& pending : queue_) {
    if (!pending->abandoned) {
      pending->ready.Signal();
      return;
    }
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
  if (pending->reply == nullptr) return absl::AbortedError(pending->failure);
  return std::move(pending->reply);
}

Connection::Connection(const RedisOptions& options) : options_(options), impl_(nullptr) {
  (void)Current();
}

Connection::~Connection() {
  std::shared_ptr<Impl>* impl = impl_.load();
  if ((*impl)->pid() != getpid()) return;
  (*impl)->Stop();
  delete impl;
}

Connection::Impl& Connection::Current() {
  std::shared_ptr<Impl>* impl = impl_.load(std::memory_order_acquire);
  const pid_t pid = getpid();
  if (impl == nullptr || (*impl)->pid() != pid) [[unlikely]] {
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

void Connection::Renew(const std::string& why) { Current().Renew(why); }

}  // namespace tidegate::redis
