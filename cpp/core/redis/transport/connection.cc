#include "redis/transport/connection.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "redis/transport/dial.h"
#include "redis/transport/io_thread.h"

namespace tidegate::redis {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstBackoff{50};
constexpr milliseconds kLongestBackoff{1000};
// A connection whose oldest request has had no reply for this long is dead, even without an error.
constexpr milliseconds kSilence{1000};
// After this time without traffic a connection is checked before it is used. A busy connection does
// without the system call.
constexpr milliseconds kIdle{1};
// How long another thread may take to write a request or to read a reply that has arrived.
constexpr milliseconds kGrace{100};
// A thread that is woken later than this had no processor.
constexpr milliseconds kLateWake{5};

}  // namespace

void Connection::Lock::Release() {
  std::vector<InFlightPtr> wake;
  wake.swap(connection_.to_wake_);
  lock_.unlock();
  for (const InFlightPtr& in_flight : wake) in_flight->ready.notify_one();
}

void Connection::Lock::Wait(std::condition_variable& condition, Instant until) {
  if (connection_.to_wake_.empty()) {
    condition.wait_until(lock_, until);
  } else {
    Release();
    Acquire();
  }
}

Connection::Connection(const RedisOptions& options, std::shared_ptr<IoThread> io,
                       CpuTimes (*cpu_times)())
    : options_(options), io_(std::move(io)), cpu_times_(cpu_times) {}

// ------------------------------------------------------------------- connecting

void Connection::Start() {
  Lock lock(*this);
  StartConnecting(lock);
}

void Connection::StartConnecting(Lock&) {
  state_ = State::kConnecting;
  begun_ = false;
  try {
    std::thread([self = shared_from_this()] { self->Connect(); }).detach();
    connecting_ = true;
  } catch (const std::system_error& error) {
    // The next call tries again.
    connecting_ = false;
    failure_ = absl::CancelledError(absl::StrCat("cannot start a thread: ", error.what()));
  }
}

void Connection::Connect() {
  std::minstd_rand random(std::random_device{}());
  std::uniform_real_distribution<double> jitter(0.5, 1.0);
  milliseconds backoff = kFirstBackoff;
  {
    Lock lock(*this);
    begun_ = true;
  }
  for (;;) {
    // The time that the password function takes is not the server's.
    absl::StatusOr<std::unique_ptr<Stream>> stream = absl::UnknownError("");
    if (absl::StatusOr<RedisOptions> options = WithPassword(options_); options.ok()) {
      {
        Lock lock(*this);
        dialing_since_ = MonotonicNow();
      }
      stream = Dial(*options, MonotonicIn(options_.connect_timeout));
    } else {
      stream = options.status();
    }
    if (!stream.ok()) ReportFailure(stream.status());
    Lock lock(*this);
    dialing_since_ = Instant::max();
    if (state_ == State::kStopped) return;
    if (stream.ok()) {
      stream_ = *std::move(stream);
      queued_ = written_ = 0;
      blocked_ = false;
      last_use_ = MonotonicNow();
      failure_ = absl::OkStatus();
      connecting_ = false;
      shows_life_ = true;
      state_ = State::kUp;
    } else {
      failure_ = stream.status();
      lost_ = std::string(failure_.message());
    }
    changed_.notify_all();
    io_->Flush();
    if (state_ == State::kUp) return;
    const Instant until =
        MonotonicNow() + std::chrono::duration_cast<milliseconds>(backoff * jitter(random));
    while (state_ == State::kConnecting && MonotonicNow() < until) lock.Wait(changed_, until);
    if (state_ == State::kStopped) return;
    backoff = std::min(backoff * 2, kLongestBackoff);
  }
}

void Connection::ReportFailure(const absl::Status& failure) {
  if (!options_.on_failure) return;
  if (Lock lock(*this); state_ == State::kStopped) return;
  std::string why(failure.message());
  if (options_.topology == Topology::kCluster) {
    why = absl::StrCat(options_.host, ":", options_.port, ": ", why);
  }
  options_.on_failure(why);
}

void Connection::Break(Lock& lock, const std::string& why) {
  if (state_ != State::kUp) return;
  End(why);
  StartConnecting(lock);
}

void Connection::End(const std::string& why) {
  // A thread that is writing may have written all that it took from out_.
  const uint64_t maybe_written = writing_ ? queued_ - out_.size() : written_;
  stream_->Shutdown();
  stream_.reset();
  out_.clear();
  lost_ = why;
  std::deque<InFlightPtr> queue;
  queue.swap(queue_);
  for (const InFlightPtr& in_flight : waiting_) in_flight->could_leave = false;
  for (; !queue.empty() && queue.back()->end > maybe_written; queue.pop_back()) {
    Unsend(queue.back());
  }
  const auto is_unsent = [](const InFlightPtr& in_flight) { return in_flight->unsent; };
  async_.erase(std::remove_if(async_.begin(), async_.end(), is_unsent), async_.end());
  for (const InFlightPtr& in_flight : queue) {
    calls_ -= in_flight->calls;
    Finish(in_flight, absl::AbortedError(why));
  }
}

void Connection::Unsend(const InFlightPtr& in_flight) {
  const bool waits = in_flight->async && !in_flight->abandoned;
  if (!waits) calls_ -= in_flight->calls;
  if (in_flight->abandoned) return;
  in_flight->unsent = true;
  in_flight->could_leave = false;
  in_flight->late_since = Instant::max();
  if (waits) {
    waiting_.push_front(in_flight);
  } else {
    Finish(in_flight, absl::CancelledError("the connection broke before the request was sent"));
  }
}

bool Connection::ShowsLife() {
  Lock lock(*this);
  CheckUp(lock);
  return std::exchange(shows_life_, false);
}

void Connection::Renew(const std::string& why) {
  Lock lock(*this);
  Break(lock, why);
}

void Connection::Stop() {
  Lock lock(*this);
  if (state_ == State::kUp) End("the client was closed");
  lost_ = "the client was closed";
  state_ = State::kStopped;
  changed_.notify_all();
  io_->Flush();
}

void Connection::CheckUp(Lock& lock) {
  if (state_ == State::kUp) {
    const Instant now = MonotonicNow();
    const bool is_silent = !queue_.empty() && now - queue_.front()->sent > kSilence;
    if (!reading_ && now - last_use_ > kIdle && HasInput()) {
      // Under the lock, so that no reply found here is taken for that of a later request.
      std::vector<Reply> replies;
      const char* const broken = stream_->Read(&replies);
      Take(lock, std::move(replies), broken);
    } else if (is_silent && !HasInput()) {
      Break(lock, "the server stopped answering");
    }
  }
  if (state_ == State::kConnecting && !connecting_) StartConnecting(lock);
}

bool Connection::ExtendIfStarved(InFlight& in_flight, Instant now) const {
  if (in_flight.deadline > now) return true;
  if (in_flight.extended) return false;
  in_flight.extended = true;
  const std::chrono::nanoseconds timeout = Chrono(options_.timeout);
  in_flight.starved = (connecting_ && !begun_) || now - in_flight.deadline > kLateWake ||
                      WasStarvedOfLate(cpu_times_, now, timeout);
  if (in_flight.starved) in_flight.deadline = now + timeout;
  return in_flight.starved;
}

absl::Status Connection::AwaitUp(Lock& lock, InFlight& in_flight) {
  while (state_ == State::kConnecting && failure_.ok() &&
         ExtendIfStarved(in_flight, MonotonicNow())) {
    lock.Wait(changed_, in_flight.deadline);
  }
  if (state_ == State::kUp) return absl::OkStatus();
  return NotConnected(in_flight);
}

absl::Status Connection::NotConnected(const InFlight& in_flight) const {
  if (state_ == State::kConnecting) {
    if (!failure_.ok()) return failure_;
    // Blame the server only if it owed an answer for half of a request's time.
    const Instant now = MonotonicNow();
    const std::chrono::nanoseconds time = Chrono(options_.timeout) * (in_flight.starved ? 2 : 1);
    if (dialing_since_ < now && now - dialing_since_ >= time / 2) {
      return absl::UnavailableError(absl::StrCat("the server does not answer: ", lost_));
    }
  }
  return absl::CancelledError(absl::StrCat("no connection in time: ", lost_));
}

// -------------------------------------------------------------- calls that wait

absl::Status Connection::CheckQueue() const {
  if (calls_ < options_.max_queue) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      calls_, " calls wait for Redis; expected at most ", options_.max_queue, " (max_queue)"));
}

absl::StatusOr<Reply> Connection::Call(const std::string& request, int replies, Instant deadline) {
  const auto in_flight = std::make_shared<InFlight>();
  in_flight->submitted = MonotonicNow();
  in_flight->deadline = deadline;
  in_flight->replies = replies;
  Lock lock(*this);
  CheckUp(lock);
  in_flight->could_leave = state_ == State::kUp;
  do {
    if (absl::Status s = AwaitUp(lock, *in_flight); !s.ok()) return s;
    if (absl::Status s = CheckQueue(); !s.ok()) return s;
    const Instant leaves = MonotonicNow();
    ForgiveDelay(*in_flight, leaves);
    in_flight->unsent = in_flight->done = false;
    in_flight->replies = replies;
    ++calls_;
    Queue(request, leaves, {&in_flight, 1});
    Flush(lock, in_flight->deadline);
    AwaitReply(lock, in_flight);
  } while (in_flight->unsent);
  PassReading();
  if (!in_flight->done) {
    in_flight->abandoned = true;
    return absl::DeadlineExceededError("no answer in time");
  }
  return std::move(in_flight->reply);
}

void Connection::AwaitReply(Lock& lock, const InFlightPtr& in_flight) {
  for (bool looked = false; !in_flight->done;) {
    const Instant now = MonotonicNow();
    const bool late = !ExtendIfStarved(*in_flight, now);
    const Instant deadline = in_flight->deadline;
    if (state_ == State::kUp && !reading_) {
      if (late && looked && HasLost(*in_flight, now)) break;
      looked = late;
      Read(lock, late && !HasLost(*in_flight, now) ? now + milliseconds(1) : deadline);
    } else if (!late) {
      lock.Wait(in_flight->ready, deadline);
    } else if (!HasLost(*in_flight, now)) {
      lock.Wait(in_flight->ready, now + milliseconds(1));
    } else {
      break;
    }
  }
}

void Connection::Queue(std::string_view bytes, Instant now,
                       absl::Span<const InFlightPtr> requests) {
  last_use_ = now;
  out_.append(bytes);
  queued_ += bytes.size();
  for (const InFlightPtr& request : requests) {
    request->sent = now;
    request->end = queued_;
    queue_.push_back(request);
  }
}

void Connection::ForgiveDelay(InFlight& in_flight, Instant now) const {
  if (!in_flight.could_leave) return;
  in_flight.deadline += now - in_flight.submitted;
  // The deadline has passed if the process was held up before it submitted the request.
  if (in_flight.deadline <= now) in_flight.deadline = now + Chrono(options_.timeout);
}

void Connection::StampWritten(uint64_t written, bool waited_for_server) {
  const Instant now = MonotonicNow();
  for (auto it = queue_.rbegin(); it != queue_.rend() && (*it)->end > written_; ++it) {
    if ((*it)->end > written || waited_for_server) continue;
    (*it)->deadline += now - (*it)->sent;
    (*it)->sent = now;
    (*it)->late_since = Instant::max();
  }
  written_ = written;
}

void Connection::Flush(Lock& lock, Instant deadline) {
  if (writing_ || out_.empty() || state_ != State::kUp) return;
  writing_ = true;
  const std::shared_ptr<Stream> stream = stream_;
  std::string bytes;
  size_t done = 0;
  bool broken = false;
  bool late = false;
  bool waited = false;
  while (stream == stream_ && !broken && !late && !(done == bytes.size() && out_.empty())) {
    if (done == bytes.size()) {
      bytes.clear();
      bytes.swap(out_);
      done = 0;
    }
    lock.Release();
    const ssize_t n = stream->Write(bytes.data() + done, bytes.size() - done);
    lock.Acquire();
    broken = n < 0;
    if (n > 0) {
      done += static_cast<size_t>(n);
      if (stream == stream_) StampWritten(written_ + static_cast<uint64_t>(n), waited);
    } else if (n == 0) {  // the server does not read
      waited = blocked_ = true;
      lock.Release();
      late = Poll(stream->fd(), POLLOUT, deadline) == 0;
      lock.Acquire();
      blocked_ = late;
    }
  }
  writing_ = false;
  if (stream != stream_) {
    // Other threads may have queued bytes that belong to the next connection.
    Flush(lock, deadline);
    return;
  }
  if (late) out_.insert(0, bytes, done);
  if (broken) Break(lock, "the connection broke while writing");
}

void Connection::Read(Lock& lock, Instant deadline) {
  reading_ = true;
  const std::shared_ptr<Stream> stream = stream_;
  lock.Release();
  const bool readable = Poll(stream->fd(), POLLIN, deadline) != 0;
  lock.Acquire();
  if (readable) {
    ReadHeld(lock, stream);
  } else {
    reading_ = false;
  }
}

void Connection::ReadHeld(Lock& lock, const std::shared_ptr<Stream>& stream) {
  taking_ = true;
  lock.Release();
  std::vector<Reply> replies;
  const char* broken = stream->Read(&replies);
  lock.Acquire();
  reading_ = taking_ = false;
  if (stream == stream_) Take(lock, std::move(replies), broken);
}

void Connection::Take(Lock& lock, std::vector<Reply> replies, const char* broken) {
  if (!replies.empty()) last_use_ = MonotonicNow();
  for (Reply& reply : replies) {
    if (queue_.empty()) {
      broken = "the server sent a reply without a request";
      break;
    }
    if (--queue_.front()->replies > 0) continue;
    const InFlightPtr in_flight = std::move(queue_.front());
    queue_.pop_front();
    calls_ -= in_flight->calls;
    if (in_flight->abandoned) shows_life_ = true;
    Finish(in_flight, std::move(reply));
  }
  if (broken != nullptr) Break(lock, broken);
}

bool Connection::HasInput() const {
  return stream_ != nullptr && Poll(stream_->fd(), POLLIN, Instant::min()) != 0;
}

bool Connection::HasLost(InFlight& in_flight, Instant now) const {
  // The grace counts from here: the whole process may have been held up until now.
  in_flight.late_since = std::min(in_flight.late_since, now);
  if (now >= in_flight.late_since + kGrace) return true;
  if (in_flight.end > written_) return blocked_;
  return !reading_ || !(taking_ || HasInput());
}

void Connection::Finish(const InFlightPtr& in_flight, absl::StatusOr<Reply> reply) {
  in_flight->done = true;
  if (in_flight->abandoned) return;
  in_flight->reply = std::move(reply);
  if (in_flight->async) {
    completed_.push_back(in_flight);
    io_->Flush();
  } else {
    to_wake_.push_back(in_flight);
  }
}

void Connection::PassReading() {
  if (reading_) return;
  for (const InFlightPtr& in_flight : queue_) {
    if (in_flight->abandoned) continue;
    if (in_flight->async) {
      io_->Flush();
    } else {
      to_wake_.push_back(in_flight);
    }
    return;
  }
}

}  // namespace tidegate::redis
