// The thread of those who cannot wait.
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "redis/connection_impl.h"

#include <poll.h>

namespace tidegate::redis {

void Connection::Impl::WakePump() {
  if (!pump_sleeps_) return;
  pump_sleeps_ = false;
  wake_->Signal();
}

void Connection::Impl::Send(absl::Time deadline, std::unique_ptr<Caller> caller) {
  const auto pending = std::make_shared<Pending>();
  pending->deadline = deadline;
  pending->caller = std::move(caller);
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    if (wake_ == nullptr) {
      try {
        wake_ = std::make_unique<Wake>();
        std::thread([self = shared_from_this()] { self->Pump(); }).detach();
      } catch (const std::system_error& error) {
        wake_ = nullptr;
        refused = absl::UnavailableError(absl::StrCat("cannot start a thread: ", error.what()));
      }
    }
    if (refused.ok() && queue_.size() + unsent_.size() >= options_.max_queue) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat(queue_.size(), " calls wait for Redis; accepted are ", options_.max_queue));
    }
    if (refused.ok()) unsent_.push_back(pending);
  }
  if (!refused.ok()) pending->caller->Done(std::move(refused));
}

void Connection::Impl::SendWaiting() {
  std::deque<std::shared_ptr<Pending>> waiting;
  waiting.swap(unsent_);
  const std::shared_ptr<Stream> stream = stream_;
  mu_.Unlock();
  std::vector<std::shared_ptr<Pending>> joined;
  for (std::shared_ptr<Pending>& pending : waiting) {
    if (!joined.empty()) joined.back()->caller->Join(&pending->caller);
    if (pending->caller != nullptr) joined.push_back(std::move(pending));
  }
  std::string requests;
  for (const auto& pending : joined) requests += pending->caller->Request();
  mu_.Lock();
  if (stream != stream_) {
    for (const auto& pending : joined) Finish(pending, absl::UnavailableError(failure_));
    return;
  }
  const absl::Time now = absl::Now();
  last_use_ = now;
  out_ += requests;
  for (const auto& pending : joined) {
    pending->sent = now;
    pending->replies = pending->caller->replies();
    queue_.push_back(pending);
    async_.push_back(pending);
  }
}

void Connection::Impl::Kick() {
  absl::MutexLock lock(&mu_);
  WakePump();
}

absl::Time Connection::Impl::Tend() {
  if (!unsent_.empty()) CheckUp();
  // What is late already would be charged for nothing.
  for (const absl::Time now = absl::Now(); !unsent_.empty() && unsent_.front()->deadline <= now;
       unsent_.pop_front()) {
    Finish(unsent_.front(),
           absl::UnavailableError(state_ == State::kUp ? "not sent in time" : failure_));
  }
  if (!unsent_.empty() && state_ == State::kUp) SendWaiting();
  const absl::Time now = absl::Now();
  if (state_ == State::kStopped || (state_ == State::kConnecting && failed_)) {
    for (const auto& pending : unsent_) Finish(pending, absl::UnavailableError(failure_));
    unsent_.clear();
  }
  while (!async_.empty() && (async_.front()->done || async_.front()->deadline <= now)) {
    if (!async_.front()->done) {
      Finish(async_.front(), absl::DeadlineExceededError("no answer in time"));
      async_.front()->abandoned = true;
    }
    async_.pop_front();
  }
  const absl::Time first = unsent_.empty() ? absl::InfiniteFuture() : unsent_.front()->deadline;
  return async_.empty() ? first : std::min(first, async_.front()->deadline);
}

void Connection::Impl::Tell() {
  std::vector<std::shared_ptr<Pending>> told;
  told.swap(told_);
  mu_.Unlock();
  for (const auto& pending : told) pending->caller->Done(std::move(pending->reply));
  told.clear();
  mu_.Lock();
}

void Connection::Impl::Pump() {
  absl::MutexLock lock(&mu_);
  while (state_ != State::kStopped || !told_.empty() || !unsent_.empty()) {
    const absl::Time next = Tend();
    if (!told_.empty()) {
      // What came in meanwhile goes out before those who are told take their time.
      if (state_ == State::kUp && !writing_) Flush(next);
      Tell();
      continue;
    }
    if (state_ == State::kUp && !out_.empty() && !writing_) {
      Flush(next);
      continue;
    }
    const int wake_fd = wake_->fd();
    pump_sleeps_ = true;
    if (state_ == State::kUp && !async_.empty() && !reading_) {
      Read(next, wake_fd);
    } else {
      PassOn();
      mu_.Unlock();
      (void)Poll(wake_fd, POLLIN, next);
      mu_.Lock();
    }
    pump_sleeps_ = false;
    wake_->Clear();
  }
}

}  // namespace tidegate::redis
