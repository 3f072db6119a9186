// Calls that do not wait: those of Send(), and what the IoThread does for them.
#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "redis/transport/connection.h"
#include "redis/transport/io_thread.h"

namespace tidegate::redis {

void Connection::Send(std::unique_ptr<Caller> caller) {
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
    if (refused.ok()) AddWaiting(&caller);
  }
  if (refused.ok()) {
    io_->Submitted();
  } else {
    caller->Done(std::move(refused));
  }
}

void Connection::AddWaiting(std::unique_ptr<Caller>* caller) {
  const bool is_up = state_ == State::kUp;
  // Requests of one turn of a loop join here, which makes nothing that another thread must free.
  // While there is no connection each has a deadline of its own.
  if (is_up && !waiting_.empty()) waiting_.back()->caller->Join(caller);
  ++calls_;
  if (*caller == nullptr) {
    ++waiting_.back()->calls;
    return;
  }
  const auto in_flight = std::make_shared<InFlight>();
  in_flight->async = true;
  in_flight->submitted = MonotonicNow();
  in_flight->deadline = (*caller)->deadline();
  in_flight->caller = std::move(*caller);
  in_flight->could_leave = is_up;
  waiting_.push_back(in_flight);
}

void Connection::SendWaiting(Lock& lock) {
  std::deque<InFlightPtr> waiting;
  waiting.swap(waiting_);
  const std::shared_ptr<Stream> stream = stream_;
  lock.Release();
  // Those that came while there was no connection have not joined yet.
  std::vector<InFlightPtr> joined;
  for (InFlightPtr& in_flight : waiting) {
    if (!joined.empty()) joined.back()->caller->Join(&in_flight->caller);
    if (in_flight->caller != nullptr) {
      joined.push_back(std::move(in_flight));
    } else {
      joined.back()->calls += in_flight->calls;
    }
  }
  std::string requests;
  for (const InFlightPtr& in_flight : joined) requests += in_flight->caller->Request();
  lock.Acquire();
  if (stream != stream_) {
    // These were not sent. They are sent by the next connection, or fail there.
    for (const InFlightPtr& in_flight : joined) in_flight->could_leave = false;
    waiting_.insert(waiting_.begin(), joined.begin(), joined.end());
    return;
  }
  const Instant now = MonotonicNow();
  Queue(requests, now, joined);
  for (const InFlightPtr& in_flight : joined) {
    ForgiveDelay(*in_flight, now);
    in_flight->caller->set_deadline(in_flight->deadline);
    in_flight->unsent = false;
    in_flight->replies = in_flight->caller->replies();
    WatchDeadline(in_flight);
  }
}

void Connection::WatchDeadline(const InFlightPtr& in_flight) {
  auto later = async_.end();
  while (later != async_.begin() && (*std::prev(later))->deadline > in_flight->deadline) --later;
  async_.insert(later, in_flight);
}

void Connection::FailWaiting(Instant now) {
  const bool connecting = state_ == State::kConnecting && failure_.ok();
  std::deque<InFlightPtr> waiting;
  waiting.swap(waiting_);
  for (InFlightPtr& in_flight : waiting) {
    if (connecting && ExtendIfStarved(*in_flight, now)) {
      waiting_.push_back(std::move(in_flight));
    } else {
      calls_ -= in_flight->calls;
      Finish(in_flight, NotConnected(*in_flight));
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
      if (ExtendIfStarved(*in_flight, now)) {
        async_.pop_front();
        WatchDeadline(in_flight);
        continue;
      }
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
