#include "redis/transport/connection.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <iterator>
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
constexpr milliseconds kMaxBackoff{5000};
// A connection whose oldest request has had no reply for this long is dead, even without an error.
constexpr milliseconds kSilence{1000};
// After this time without traffic a connection is checked before it is used.
constexpr milliseconds kIdle{1000};
// How long another thread may take to write a request or to read a reply that has arrived.
constexpr milliseconds kGrace{100};

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

Connection::Connection(const RedisOptions& options, std::shared_ptr<IoThread> io)
    : options_(options), io_(std::move(io)) {}

// ------------------------------------------------------------------- connecting

void Connection::Start() {
  Lock lock(*this);
  StartConnecting(lock);
}

void Connection::StartConnecting(Lock&) {
  state_ = State::kConnecting;
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
    backoff = std::min(backoff * 2, kMaxBackoff);
  }
}

void Connection::Break(Lock& lock, const std::string& why) {
  if (state_ != State::kUp) return;
  stream_->Shutdown();
  stream_.reset();
  out_.clear();
  lost_ = why;
  for (const InFlightPtr& in_flight : queue_) Finish(in_flight, absl::AbortedError(why));
  queue_.clear();
  StartConnecting(lock);
}

void Connection::Renew(const std::string& why) {
  Lock lock(*this);
  Break(lock, why);
}

void Connection::Stop() {
  Lock lock(*this);
  Break(lock, "the client was closed");
  lost_ = "the client was closed";
  state_ = State::kStopped;
  changed_.notify_all();
  io_->Flush();
}

void Connection::CheckUp(Lock& lock) {
  if (state_ == State::kUp) {
    const Instant now = MonotonicNow();
    if (!queue_.empty() && now - queue_.front()->sent > kSilence && !HasInput()) {
      Break(lock, "the server stopped answering");
    } else if (queue_.empty() && !reading_ && now - last_use_ > kIdle && stream_->IsOver()) {
      Break(lock, "the server closed the connection");
    }
  }
  if (state_ == State::kConnecting && !connecting_) StartConnecting(lock);
}

absl::Status Connection::AwaitUp(Lock& lock, Instant deadline) {
  CheckUp(lock);
  while (state_ == State::kConnecting && failure_.ok() && MonotonicNow() < deadline) {
    lock.Wait(changed_, deadline);
  }
  if (state_ == State::kUp) return absl::OkStatus();
  return NotConnected();
}

absl::Status Connection::NotConnected() const {
  if (state_ == State::kConnecting) {
    if (!failure_.ok()) return failure_;
    // Blame the server only if it owed an answer for half of a request's time.
    const Instant now = MonotonicNow();
    if (dialing_since_ < now && now - dialing_since_ >= Chrono(options_.timeout) / 2) {
      return absl::UnavailableError(absl::StrCat("the server does not answer: ", lost_));
    }
  }
  return absl::CancelledError(absl::StrCat("no connection in time: ", lost_));
}

// -------------------------------------------------------------- calls that wait

absl::Status Connection::CheckQueue() const {
  const size_t calls = queue_.size() + waiting_.size() + leaving_;
  if (calls < options_.max_queue) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      calls, " calls wait for Redis; expected at most ", options_.max_queue, " (max_queue)"));
}

absl::StatusOr<Reply> Connection::Call(const std::string& request, int replies, Instant deadline) {
  const auto in_flight = std::make_shared<InFlight>();
  in_flight->submitted = MonotonicNow();
  in_flight->deadline = deadline;
  in_flight->replies = replies;
  Lock lock(*this);
  in_flight->could_leave = state_ == State::kUp;
  if (absl::Status s = AwaitUp(lock, deadline); !s.ok()) return s;
  if (absl::Status s = CheckQueue(); !s.ok()) return s;
  const Instant leaves = MonotonicNow();
  ForgiveDelay(*in_flight, leaves);
  Queue(request, leaves, {&in_flight, 1});
  Flush(lock, deadline);
  for (bool looked = false; !in_flight->done;) {
    const Instant now = MonotonicNow();
    deadline = in_flight->deadline;
    const bool late = now >= deadline;
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
  PassReading();
  if (!in_flight->done) {
    in_flight->abandoned = true;
    return absl::DeadlineExceededError("no answer in time");
  }
  return std::move(in_flight->reply);
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
  if (stream != stream_) return;
  if (!replies.empty()) last_use_ = MonotonicNow();
  for (Reply& reply : replies) {
    if (queue_.empty()) {
      broken = "the server sent a reply without a request";
      break;
    }
    if (--queue_.front()->replies > 0) continue;
    const InFlightPtr in_flight = std::move(queue_.front());
    queue_.pop_front();
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

// ------------------------------------------------------- calls that do not wait

void Connection::Send(std::unique_ptr<Caller> caller) {
  const auto in_flight = std::make_shared<InFlight>();
  in_flight->async = true;
  in_flight->submitted = MonotonicNow();
  in_flight->deadline = caller->deadline();
  in_flight->caller = std::move(caller);
  absl::Status refused;
  {
    Lock lock(*this);
    if (state_ == State::kStopped) {
      refused = absl::CancelledError(lost_);
    } else if (!served_) {
      refused = io_->Serve(shared_from_this());
      served_ = refused.ok();
    }
    if (refused.ok()) refused = CheckQueue();
    if (refused.ok()) {
      in_flight->could_leave = state_ == State::kUp;
      waiting_.push_back(in_flight);
    }
  }
  if (refused.ok()) {
    io_->Submitted();
  } else {
    in_flight->caller->Done(std::move(refused));
  }
}

void Connection::SendWaiting(Lock& lock) {
  std::deque<InFlightPtr> waiting;
  waiting.swap(waiting_);
  leaving_ = waiting.size();
  const std::shared_ptr<Stream> stream = stream_;
  lock.Release();
  std::vector<InFlightPtr> joined;
  for (InFlightPtr& in_flight : waiting) {
    if (!joined.empty()) joined.back()->caller->Join(&in_flight->caller);
    if (in_flight->caller != nullptr) joined.push_back(std::move(in_flight));
  }
  std::string requests;
  for (const InFlightPtr& in_flight : joined) requests += in_flight->caller->Request();
  lock.Acquire();
  leaving_ = 0;
  if (stream != stream_) {
    // These were not sent. They are sent by the next connection, or fail there.
    waiting_.insert(waiting_.begin(), joined.begin(), joined.end());
    return;
  }
  const Instant now = MonotonicNow();
  Queue(requests, now, joined);
  for (const InFlightPtr& in_flight : joined) {
    ForgiveDelay(*in_flight, now);
    in_flight->caller->set_deadline(in_flight->deadline);
    in_flight->replies = in_flight->caller->replies();
    auto later = async_.end();
    while (later != async_.begin() && (*std::prev(later))->deadline > in_flight->deadline) --later;
    async_.insert(later, in_flight);
  }
}

void Connection::FailWaiting(Instant now) {
  const bool connecting = state_ == State::kConnecting && failure_.ok();
  std::deque<InFlightPtr> waiting;
  waiting.swap(waiting_);
  for (InFlightPtr& in_flight : waiting) {
    if (connecting && in_flight->deadline > now) {
      waiting_.push_back(std::move(in_flight));
    } else {
      Finish(in_flight, NotConnected());
    }
  }
}

void Connection::ExpireLate(Lock& lock) {
  while (!async_.empty() && async_.front()->done) async_.pop_front();
  Instant now = MonotonicNow();
  if (async_.empty() || async_.front()->deadline > now) return;
  if (state_ == State::kUp && !reading_) {
    reading_ = true;
    ReadHeld(lock, stream_);
  }
  while (!async_.empty() && (async_.front()->done || async_.front()->deadline <= now)) {
    const InFlightPtr in_flight = async_.front();
    if (!in_flight->done) {
      if (!HasLost(*in_flight, MonotonicNow())) return;
      Finish(in_flight, absl::DeadlineExceededError("no answer in time"));
      in_flight->abandoned = true;
    }
    async_.pop_front();
  }
}

void Connection::Deliver(Lock& lock) {
  std::vector<InFlightPtr> completed;
  completed.swap(completed_);
  lock.Release();
  for (const InFlightPtr& in_flight : completed) {
    in_flight->caller->Done(std::move(in_flight->reply));
    in_flight->caller.reset();
  }
  completed.clear();
  lock.Acquire();
}

Connection::Turn Connection::Serve() {
  Lock lock(*this);
  bool busy = false;
  if (!waiting_.empty()) {
    CheckUp(lock);
    if (state_ == State::kUp) {
      SendWaiting(lock);
      busy = true;
    } else {
      FailWaiting(MonotonicNow());
    }
  }
  ExpireLate(lock);
  // Requests that were queued meanwhile are sent before the callers run.
  if (!out_.empty()) Flush(lock, Instant::min());
  if (!completed_.empty()) {
    Deliver(lock);
    busy = true;
  }
  if (state_ == State::kStopped && waiting_.empty() && completed_.empty()) return Turn::kOver;
  return busy ? Turn::kBusy : Turn::kIdle;
}

Connection::Watch Connection::BeginWatch() {
  Lock lock(*this);
  Watch watch;
  const bool connecting = state_ == State::kConnecting && failure_.ok();
  watch.ready =
      !completed_.empty() || (!waiting_.empty() && !connecting) || state_ == State::kStopped;
  // waiting_ is not in the order of deadlines.
  for (const InFlightPtr& in_flight : waiting_) {
    watch.deadline = std::min(watch.deadline, in_flight->deadline);
  }
  if (!async_.empty()) watch.deadline = std::min(watch.deadline, async_.front()->deadline);
  if (state_ == State::kUp) {
    watch.stream = stream_;
    if (async_.empty()) {
      PassReading();
    } else if (!reading_) {
      reading_ = true;
      watch.reads = true;
      watch.events |= POLLIN;
    }
    if (!out_.empty() && !writing_) watch.events |= POLLOUT;
  }
  return watch;
}

void Connection::EndWatch(const Watch& watch, short revents) {
  if (!watch.reads) return;
  Lock lock(*this);
  if ((revents & ~POLLOUT) != 0) {
    ReadHeld(lock, watch.stream);
  } else {
    reading_ = false;
  }
}

}  // namespace tidegate::redis
