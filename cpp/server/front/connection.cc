#include "server/front/connection.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

namespace tidegate::server {
namespace {

// The bound on the output of one turn, so that a big answer does not delay other connections.
constexpr int kMostWrites = 4;

}  // namespace

Connection::Connection(Surroundings* around, uint64_t id, Channel channel, std::string address,
                       bool is_tcp)
    : around_(around),
      id_(id),
      channel_(std::move(channel)),
      address_(std::move(address)),
      is_tcp_(is_tcp),
      since_(around->now) {}

void Connection::OnReadable(absl::Span<char> buffer) {
  const ssize_t read = channel_.Read(buffer.data(), buffer.size());
  pending_ = read == static_cast<ssize_t>(buffer.size()) && channel_.has_pending();
  if (!std::exchange(was_ready_, channel_.is_ready()) && was_ready_ && channel_.is_tls()) {
    since_ = now();
  }
  if (read < 0) {
    OnEnd();
  } else if (read > 0) {
    around_->counters->bytes_in.Add(static_cast<uint64_t>(read));
    if (!lingering_) Receive({buffer.data(), static_cast<size_t>(read)});
  }
}

void Connection::OnTurn(absl::Span<char> buffer) {
  if (pending_) OnReadable(buffer);
  if (session_ != nullptr && !lingering_ && session_->wants_turn()) session_->Receive({});
}

void Connection::OnEnd() {
  ended_ = true;
  if (!was_ready_) around_->counters->tls_failures.Add();
  // An HTTP/1.1 client may close its sending side and still wait for answers.
  const bool answering = session_ != nullptr && !session_->wants_input() && !session_->over();
  if (!answering && unsent_.empty()) finished_ = true;
}

void Connection::Receive(std::string_view bytes) {
  if (session_ == nullptr && !ChooseProtocol(&bytes)) return;
  if (begun_.empty()) {
    session_->Receive(bytes);
    return;
  }
  const std::string first = std::exchange(begun_, std::string());
  session_->Receive(first);
  if (!bytes.empty()) session_->Receive(bytes);
}

bool Connection::ChooseProtocol(std::string_view* bytes) {
  bool is_http2 = channel_.protocol() == "h2";
  if (channel_.protocol().empty()) {
    if (begun_.empty()) since_ = now();
    const size_t missing = kHttp2Preface.size() - begun_.size();
    begun_.append(bytes->substr(0, missing));
    bytes->remove_prefix(std::min(missing, bytes->size()));
    is_http2 = kHttp2Preface.starts_with(begun_);
    if (is_http2 && begun_.size() < kHttp2Preface.size()) return false;
  }
  const Peer peer{address_, is_tcp_};
  session_ = is_http2 ? MakeHttp2Session(around_, id_, peer) : MakeHttp1Session(around_, id_, peer);
  if (around_->draining) session_->Drain();
  return true;
}

void Connection::Deliver(Posted posted) {
  if (session_ != nullptr && !lingering_) session_->Deliver(std::move(posted));
}

void Connection::Drain() {
  if (session_ != nullptr) session_->Drain();
}

void Connection::Flush(std::string* scratch) {
  if (session_ == nullptr || lingering_ || finished_ || !WriteUnsent()) return;
  more_ = true;
  for (int i = 0; i < kMostWrites && more_; ++i) {
    scratch->clear();
    session_->Fill(scratch);
    more_ = !scratch->empty();
    if (more_ && !Write(*scratch)) return;
    more_ = scratch->size() >= kOutputChunk;
  }
  if (!more_ && (session_->over() || (ended_ && session_->wants_input()))) Linger();
}

bool Connection::WriteUnsent() {
  if (unsent_.empty()) return true;
  const ssize_t written = channel_.Write(unsent_);
  if (written < 0) {
    finished_ = true;
    return false;
  }
  around_->counters->bytes_out.Add(static_cast<uint64_t>(written));
  unsent_.erase(0, static_cast<size_t>(written));
  if (!unsent_.empty()) return false;
  unsent_.shrink_to_fit();
  return true;
}

bool Connection::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = channel_.Write(bytes);
    if (written < 0) {
      finished_ = true;
      return false;
    }
    if (written == 0) {
      unsent_.assign(bytes);
      blocked_since_ = now();
      return false;
    }
    around_->counters->bytes_out.Add(static_cast<uint64_t>(written));
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// Closing at once with unread input would make the system reset the connection, and the client
// would lose the last answers.
void Connection::Linger() {
  if (ended_) {
    finished_ = true;
    return;
  }
  channel_.ShutdownWrite();
  lingering_ = true;
  since_ = now();
  session_ = nullptr;
}

Instant Connection::due() const {
  const FrontOptions& options = around_->options;
  if (lingering_) return since_ + options.linger_time;
  Instant next = Instant::max();
  if (session_ != nullptr) {
    next = session_->due();
  } else {
    const bool begun = !begun_.empty() || !channel_.is_ready();
    next = begun ? since_ + options.request_time : around_->IdleDue(since_);
  }
  return unsent_.empty() ? next : std::min(next, blocked_since_ + options.take_time);
}

void Connection::OnTime() {
  const FrontOptions& options = around_->options;
  if (lingering_) {
    finished_ = since_ + options.linger_time <= now();
  } else if (!unsent_.empty() && blocked_since_ + options.take_time <= now()) {
    around_->counters->slow_readers.Add();
    finished_ = true;
  } else if (session_ != nullptr) {
    session_->OnTime();
  } else if (due() <= now()) {
    const bool begun = !begun_.empty() || !channel_.is_ready();
    if (begun) {
      around_->counters->timeouts_request.Add();
    } else if (!around_->draining) {
      around_->counters->timeouts_idle.Add();
    }
    finished_ = true;
  }
}

uint32_t Connection::events() const {
  uint32_t events = 0;
  const bool reads = session_ == nullptr || session_->wants_input();
  // No more input is read from a client that does not take its output.
  if (lingering_ || (!ended_ && reads && unsent_.empty())) events |= EPOLLIN;
  if (!unsent_.empty() || channel_.wants_to_write()) events |= EPOLLOUT;
  return events;
}

bool Connection::wants_turn() const {
  if (finished_ || !unsent_.empty()) return false;
  return pending_ || more_ || (session_ != nullptr && !lingering_ && session_->wants_turn());
}

}  // namespace tidegate::server
