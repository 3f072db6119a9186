#include "server/front/loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

#include "server/front/date.h"
#include "server/front/dispatch.h"

namespace tidegate::server {
namespace {

constexpr size_t kInputBuffer = 64 << 10;
constexpr int kMostEvents = 256;   // events in a turn
constexpr int kMostAccepts = 64;   // connections accepted from a listener in a turn
constexpr int kMostSettlings = 8;  // rounds of answers in a turn before sockets are polled again
constexpr uint64_t kWakeId = 0;    // the epoll id of the wake-up; listeners follow
constexpr size_t kLeastTimers = 4096;
constexpr size_t kMostKeptAnswers = 4096;  // posted answers for which there is room without a burst
constexpr auto kAcceptPause = milliseconds(100);

void SetTcpOptions(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 15);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

void Watch(int epoll, int operation, int fd, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll, operation, fd, &event) != 0 && operation == EPOLL_CTL_ADD) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

uint32_t EventsOf(const Listener& listener) {
  return listener.is_shared ? EPOLLIN | EPOLLEXCLUSIVE : EPOLLIN;
}

}  // namespace

Loop::Loop(const FrontOptions& options, const Routes* routes, std::vector<Listener*> listeners,
           std::atomic<int>* open, std::function<void()> on_drained)
    : listeners_(std::move(listeners)),
      open_(open),
      on_drained_(std::move(on_drained)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      next_id_(1 + listeners_.size()),
      input_(kInputBuffer) {
  if (!epoll_) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  around_.options = options;
  around_.routes = routes;
  around_.counters = &counters_;
  Watch(epoll_.get(), EPOLL_CTL_ADD, around_.mailbox->wake_fd(), kWakeId, EPOLLIN);
  ResumeAccepting();
}

Loop::~Loop() { around_.mailbox->Close(); }

void Loop::Stop() {
  stop_.store(true);
  around_.mailbox->Nudge();
}

void Loop::Drain() {
  drain_.store(true);
  around_.mailbox->Nudge();
}

void Loop::Run() {
  LookAtClock();
  while (!stop_.load()) Turn();
  while (!connections_.empty()) Close(connections_.begin()->second.get());
}

void Loop::Turn() {
  epoll_event events[kMostEvents];
  const int timeout = TimeToWait();
  const int count = epoll_wait(epoll_.get(), events, kMostEvents, timeout);
  if (timeout != 0) around_.mailbox->Awake();
  LookAtClock();
  for (int i = 0; i < count; ++i) {
    OnEvent(events[i].data.u64, events[i].events);
    // Immediate answers are sent at once, so that their client works while the next one is served.
    DeliverPosted();
    FlushTouched();
  }
  GiveTurns();
  if (drain_.load() && !around_.draining) BeginDrain();
  if (accept_again_ <= around_.now) ResumeAccepting();
  RunTimers();
  Settle();
  FlushTouched();
  CheckDrained();
}

int Loop::TimeToWait() {
  if (!wanting_turn_.empty() || around_.handled || !around_.mailbox->Sleep()) return 0;
  Instant due = accept_again_;
  if (!timers_.empty()) due = std::min(due, timers_.top().first);
  if (due == Instant::max()) return -1;
  const auto left = std::chrono::ceil<milliseconds>(due - MonotonicNow()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void Loop::LookAtClock() {
  around_.now = MonotonicNow();
  const std::time_t second = std::time(nullptr);
  if (second == second_) return;
  second_ = second;
  around_.date = HttpDate(second);
}

void Loop::OnEvent(uint64_t id, uint32_t events) {
  if (id == kWakeId) {
    // The wake-up is cleared before posts are taken, and set after a post: no post is missed.
    uint64_t count = 0;
    (void)!read(around_.mailbox->wake_fd(), &count, sizeof count);
    return;
  }
  if (id <= listeners_.size()) {
    Accept(id - 1);
    return;
  }
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection* const connection = found->second.get();
  const bool hung_up = (events & (EPOLLHUP | EPOLLERR)) != 0;
  if ((events & EPOLLIN) != 0 || (events & EPOLLOUT) != 0) {
    if ((connection->events() & EPOLLIN) != 0) connection->OnReadable(absl::MakeSpan(input_));
  } else if (hung_up) {
    connection->OnHangUp();
  }
  Touch(connection);
}

void Loop::Accept(size_t index) {
  const Listener& listener = *listeners_[index];
  for (int i = 0; i < kMostAccepts; ++i) {
    Descriptor socket(
        accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      Open(std::move(socket), listener);
      continue;
    }
    switch (errno) {
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        counters_.accept_failures.Add();
        PauseAccepting();
        return;
      case EAGAIN:
        return;
      default:  // the client is already gone
        continue;
    }
  }
}

void Loop::Open(Descriptor socket, const Listener& listener) {
  counters_.connections_accepted.Add();
  if (open_->fetch_add(1) >= around_.options.connections) {
    open_->fetch_sub(1);
    counters_.connections_refused.Add();
    return;
  }
  counters_.connections_open.Add();
  const bool is_tcp = listener.unix_path.empty();
  const int fd = socket.get();
  if (is_tcp) SetTcpOptions(fd);
  SSL* const ssl = listener.tls == nullptr ? nullptr : listener.tls->NewSession();
  auto connection =
      std::make_unique<Connection>(&around_, next_id_++, Channel(std::move(socket), ssl),
                                   is_tcp ? PeerOf(fd) : listener.unix_path, is_tcp);
  Connection* const opened = connection.get();
  connections_.emplace(opened->id(), std::move(connection));
  opened->registered_events = opened->events();
  Watch(epoll_.get(), EPOLL_CTL_ADD, fd, opened->id(), opened->registered_events);
  Touch(opened);
}

// If no descriptor is left for a new connection, epoll would report it again and again.
void Loop::PauseAccepting() {
  for (const Listener* listener : listeners_) {
    Watch(epoll_.get(), EPOLL_CTL_DEL, listener->socket.get(), 0, 0);
  }
  accept_again_ = around_.now + kAcceptPause;
}

void Loop::ResumeAccepting() {
  accept_again_ = Instant::max();
  for (size_t i = 0; i < listeners_.size(); ++i) {
    Watch(epoll_.get(), EPOLL_CTL_ADD, listeners_[i]->socket.get(), i + 1,
          EventsOf(*listeners_[i]));
  }
}

void Loop::GiveTurns() {
  std::vector<uint64_t> wanting;
  wanting.swap(wanting_turn_);
  for (const uint64_t id : wanting) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    found->second->OnTurn(absl::MakeSpan(input_));
    Touch(found->second.get());
  }
}

void Loop::Settle() {
  for (int i = 0; i < kMostSettlings; ++i) {
    DeliverPosted();
    if (!around_.handled) return;
    FlushServices();
  }
}

void Loop::DeliverPosted() {
  if (!around_.mailbox->Take(&posted_)) return;
  const Instant now = MonotonicNow();
  for (Posted& posted : posted_) {
    // Also of calls for which nobody waits any more.
    if (posted.kind == Posted::Kind::kAnswer) CountTime(posted.id, now, &counters_);
    const auto found = connections_.find(posted.id.connection);
    if (found == connections_.end()) continue;
    found->second->Deliver(std::move(posted));
    Touch(found->second.get());
  }
  posted_.clear();
  if (posted_.capacity() > kMostKeptAnswers) posted_.shrink_to_fit();  // after a burst
}

void Loop::FlushServices() {
  around_.handled = false;
  for (Service* const service : around_.routes->services()) service->Flush();
}

void Loop::RunTimers() {
  while (!timers_.empty() && timers_.top().first <= around_.now) {
    const auto [due, id] = timers_.top();
    timers_.pop();
    const auto found = connections_.find(id);
    if (found == connections_.end() || found->second->timer != due) continue;
    found->second->timer = Instant::max();
    found->second->OnTime();
    Touch(found->second.get());
  }
}

void Loop::BeginDrain() {
  around_.draining = true;
  around_.drain_began = around_.now;
  // Connections that the system has already accepted are still served.
  for (size_t i = 0; i < listeners_.size(); ++i) Accept(i);
  if (accept_again_ == Instant::max()) PauseAccepting();
  accept_again_ = Instant::max();
  for (Listener* const listener : listeners_) {
    if (listener->is_shared) continue;
    listener->not_inherited = nullptr;
    listener->socket = Descriptor();
  }
  DeliverPosted();  // the last messages of streams
  for (const auto& [id, connection] : connections_) {
    connection->Drain();
    Touch(connection.get());
  }
}

void Loop::CheckDrained() {
  if (!around_.draining || drained_.load() || connections_.size() > lingering_) return;
  drained_.store(true);
  on_drained_();
}

void Loop::Touch(Connection* connection) {
  if (std::exchange(connection->touched, true)) return;
  touched_.push_back(connection);
}

void Loop::FlushTouched() {
  CountAnswered(&around_);
  for (Connection* const connection : touched_) {
    connection->touched = false;
    const bool lingered = connection->lingering();
    connection->Flush(&output_);
    if (!lingered && connection->lingering()) ++lingering_;
    if (connection->finished()) {
      Close(connection);
      continue;
    }
    UpdateEvents(connection);
    UpdateTimer(connection);
    if (connection->wants_turn()) wanting_turn_.push_back(connection->id());
  }
  touched_.clear();
}

void Loop::Close(Connection* connection) {
  if (connection->lingering()) --lingering_;
  // A child process may hold the socket too.
  (void)shutdown(connection->fd(), SHUT_RDWR);
  counters_.connections_open.Subtract();
  open_->fetch_sub(1);
  connections_.erase(connection->id());
}

void Loop::UpdateEvents(Connection* connection) {
  const uint32_t events = connection->events();
  if (events == connection->registered_events) return;
  connection->registered_events = events;
  Watch(epoll_.get(), EPOLL_CTL_MOD, connection->fd(), connection->id(), events);
}

// A timer that is now too early is left in place: it finds nothing due, and is set again.
void Loop::UpdateTimer(Connection* connection) {
  const Instant due = connection->due();
  if (due >= connection->timer) return;
  connection->timer = due;
  CompactTimers();
  timers_.emplace(due, connection->id());
}

void Loop::CompactTimers() {
  if (timers_.size() < kLeastTimers + 4 * connections_.size()) return;
  std::vector<Timer> kept;
  kept.reserve(connections_.size() + 1);
  for (const auto& [id, connection] : connections_) {
    if (connection->timer != Instant::max()) kept.emplace_back(connection->timer, id);
  }
  timers_ = decltype(timers_)(std::greater<>(), std::move(kept));
}

}  // namespace tidegate::server
