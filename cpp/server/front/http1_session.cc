// HTTP/1.1 with keep-alive and pipelining; the requests of a connection are answered one by one.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/front/chunks.h"
#include "server/front/dispatch.h"
#include "server/front/http1_head.h"
#include "server/front/session.h"
#include "server/problem.h"

namespace tidegate::server {
namespace {

constexpr size_t kMostKeptOfIdle = 1024;  // bytes of each buffer that an idle connection keeps

// Each loop's thread has one, since it reads one request at a time.
thread_local Http1Head loop_head;
thread_local Answer loop_answer;

class Http1Session final : public Session {
 public:
  Http1Session(Surroundings* around, uint64_t connection, Peer peer)
      : around_(around), connection_(connection), peer_(peer), since_(around->now) {}

  void Receive(std::string_view bytes) override;
  void Deliver(Posted posted) override;
  void Fill(std::string* out) override;
  void Drain() override {}  // the next answer says that the connection closes
  Instant due() const override;
  void OnTime() override;
  bool busy() const override { return stage_ != Stage::kIdle; }
  bool wants_input() const override { return stage_ != Stage::kHandling && !paused_; }
  bool wants_turn() const override { return paused_; }
  bool over() const override { return closing_; }

 private:
  enum class Stage : uint8_t { kIdle, kHead, kBody, kChunks, kHandling };

  // Reads as much as possible from the front of `bytes`; returns the number of bytes read.
  size_t Read(std::string_view bytes);
  // Reads at most one request; returns 0 if it needs more bytes.
  size_t ReadRequest(std::string_view bytes);
  size_t ReadHead(std::string_view bytes);
  size_t ReadBody(std::string_view bytes);
  size_t ReadChunks(std::string_view bytes);
  bool Parse(std::string_view bytes);
  void Handle(std::string_view body);
  void Send();
  // Answers with an error after which the rest of the input is meaningless.
  void Fail(int status, std::string_view why);
  void Enter(Stage stage);
  Counters& counters() { return *around_->counters; }

  Surroundings* const around_;
  const uint64_t connection_;
  const Peer peer_;
  Stage stage_ = Stage::kIdle;
  bool closing_ = false;
  bool keep_alive_ = false;
  bool is_head_ = false;    // whether the method is HEAD
  bool paused_ = false;     // whether it waits until output is taken
  uint32_t request_ = 0;    // the number of the request
  Instant since_;           // when the request began, was handled, or the connection became idle
  size_t looked_ = 0;       // the input searched for the end of a head
  size_t head_size_ = 0;    // in state kBody: the head at the front of the input
  uint64_t body_size_ = 0;  // in state kBody
  std::string input_;       // input that could not be read yet
  std::string out_;

  struct Chunked {
    std::string head;
    Chunks chunks;
    std::string body;
  };
  std::unique_ptr<Chunked> chunked_;
};

void Http1Session::Enter(Stage stage) {
  stage_ = stage;
  if (stage != Stage::kBody && stage != Stage::kChunks) since_ = around_->now;
}

void Http1Session::Receive(std::string_view bytes) {
  if (closing_) return;
  paused_ = false;
  if (input_.empty()) {
    input_.assign(bytes.substr(Read(bytes)));
  } else {
    input_.append(bytes);
    input_.erase(0, Read(input_));
  }
  if (input_.empty() && input_.capacity() > kMostKeptOfIdle) input_.shrink_to_fit();
}

size_t Http1Session::Read(std::string_view bytes) {
  const size_t all = bytes.size();
  while (!bytes.empty() && stage_ != Stage::kHandling) {
    paused_ = out_.size() >= kOutputChunk;
    if (paused_) break;
    const size_t size = ReadRequest(bytes);
    if (closing_) return all;
    if (size == 0) break;
    bytes.remove_prefix(size);
  }
  return all - bytes.size();
}

size_t Http1Session::ReadRequest(std::string_view bytes) {
  switch (stage_) {
    case Stage::kIdle:
      if (bytes.starts_with("\r\n")) return 2;  // as old clients end a body
      if (bytes == "\r") return 0;
      Enter(Stage::kHead);
      [[fallthrough]];
    case Stage::kHead:
      return ReadHead(bytes);
    case Stage::kBody:
      return ReadBody(bytes);
    case Stage::kChunks:
      return ReadChunks(bytes);
    case Stage::kHandling:
      break;
  }
  return 0;
}

size_t Http1Session::ReadHead(std::string_view bytes) {
  const size_t most = around_->options.header_bytes;
  const size_t end = FindHeadEnd(bytes.substr(0, most), &looked_);
  if (end == std::string_view::npos) {
    if (bytes.size() >= most) Fail(431, "the headers are too long; expected shorter ones");
    return 0;
  }
  looked_ = 0;
  if (!Parse(bytes.substr(0, end))) return end;
  if (loop_head.chunked) {
    const FrontOptions& options = around_->options;
    chunked_ = std::make_unique<Chunked>(Chunked{
        std::string(bytes.substr(0, end)), Chunks(options.body_bytes, options.header_bytes), {}});
    Enter(Stage::kChunks);
    return end;
  }
  head_size_ = end;
  body_size_ = loop_head.content_length;
  if (bytes.size() - head_size_ < body_size_) {
    Enter(Stage::kBody);
    return 0;
  }
  Handle(bytes.substr(head_size_, body_size_));
  return head_size_ + body_size_;
}

bool Http1Session::Parse(std::string_view bytes) {
  const FrontOptions& options = around_->options;
  const Http1Error error =
      ParseHttp1Head(bytes, static_cast<size_t>(options.header_count), &loop_head);
  if (error.status != 0) {
    Fail(error.status, error.why);
    return false;
  }
  if (loop_head.content_length > options.body_bytes) {
    Fail(413, "the body is too long; expected a shorter one");
    return false;
  }
  keep_alive_ = loop_head.keep_alive && !around_->draining;
  is_head_ = loop_head.method == "HEAD";
  if (loop_head.expects_continue && (loop_head.chunked || loop_head.content_length > 0)) {
    out_.append("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

size_t Http1Session::ReadBody(std::string_view bytes) {
  if (bytes.size() - head_size_ < body_size_) return 0;
  // The head was parsed in memory that has moved.
  (void)ParseHttp1Head(bytes.substr(0, head_size_),
                       static_cast<size_t>(around_->options.header_count), &loop_head);
  Handle(bytes.substr(head_size_, body_size_));
  return head_size_ + body_size_;
}

size_t Http1Session::ReadChunks(std::string_view bytes) {
  const size_t all = bytes.size();
  switch (chunked_->chunks.Read(&bytes, &chunked_->body)) {
    case Chunks::State::kPartial:
      return all;
    case Chunks::State::kMalformed:
      Fail(400, "the body is malformed; expected one in chunks");
      return all;
    case Chunks::State::kTooLarge:
      Fail(413, "the body is too long; expected a shorter one");
      return all;
    case Chunks::State::kDone:
      break;
  }
  const std::unique_ptr<Chunked> whole = std::move(chunked_);
  (void)ParseHttp1Head(whole->head, static_cast<size_t>(around_->options.header_count), &loop_head);
  Handle(whole->body);
  return all - bytes.size();
}

void Http1Session::Handle(std::string_view body) {
  counters().requests_http1.Add();
  Request request;
  request.method = loop_head.method;
  SetTarget(loop_head.target, &request);
  request.headers = loop_head.headers;
  request.body = body;
  request.peer = peer_;
  Enter(Stage::kHandling);
  const CallId id{connection_, ++request_, Protocol::kHttp1};
  if (Dispatch(request, id, around_, &loop_answer)) Send();
}

void Http1Session::Send() {
  const bool has_body = loop_answer.http_status != 204 && loop_answer.http_status != 304;
  absl::StrAppend(&out_, "HTTP/1.1 ", loop_answer.http_status, " ",
                  Absl(ReasonOf(loop_answer.http_status)), "\r\ndate: ", around_->date, "\r\n");
  if (has_body) absl::StrAppend(&out_, "content-length: ", loop_answer.body.size(), "\r\n");
  if (has_body && !loop_answer.content_type.empty()) {
    absl::StrAppend(&out_, "content-type: ", Absl(loop_answer.content_type), "\r\n");
  }
  for (const auto& [name, value] : loop_answer.headers) {
    if (IsFieldName(name) && IsFieldValue(value)) absl::StrAppend(&out_, name, ": ", value, "\r\n");
  }
  if (around_->draining) keep_alive_ = false;
  out_.append(keep_alive_ ? "connection: keep-alive\r\n\r\n" : "connection: close\r\n\r\n");
  if (has_body && !is_head_) out_.append(loop_answer.body);
  closing_ = !keep_alive_;
  Enter(Stage::kIdle);
}

void Http1Session::Fail(int status, std::string_view why) {
  if (status < 500 || status == 501 || status == 505) counters().errors_protocol.Add();
  Refuse(status, why, &loop_answer);
  keep_alive_ = false;
  is_head_ = false;
  Send();
}

void Http1Session::Deliver(Posted posted) {
  if (stage_ != Stage::kHandling || posted.id.call != request_) return;
  if (posted.kind == Posted::Kind::kAnswer) {
    counters().answers_later.Add();
    loop_answer = std::move(posted.answer);
  } else {
    counters().errors_service.Add();
    Refuse(500, "The service failed", &loop_answer);
  }
  Send();
  if (!input_.empty()) Receive({});
}

void Http1Session::Fill(std::string* out) {
  out->append(out_);
  out_.clear();
  if (out_.capacity() > kMostKeptOfIdle) out_.shrink_to_fit();
}

Instant Http1Session::due() const {
  const FrontOptions& options = around_->options;
  if (closing_) return Instant::max();
  if (stage_ == Stage::kIdle) return around_->IdleDue(since_);
  return since_ + (stage_ == Stage::kHandling ? options.answer_time : options.request_time);
}

void Http1Session::OnTime() {
  if (closing_ || due() > around_->now) return;
  switch (stage_) {
    case Stage::kIdle:
      if (!around_->draining) counters().timeouts_idle.Add();
      closing_ = true;
      return;
    case Stage::kHandling:
      counters().timeouts_answer.Add();
      Fail(504, "The service did not answer in time");
      return;
    case Stage::kHead:
    case Stage::kBody:
    case Stage::kChunks:
      counters().timeouts_request.Add();
      Fail(408, "the request is late; expected all of it in time");
      return;
  }
}

}  // namespace

std::unique_ptr<Session> MakeHttp1Session(Surroundings* around, uint64_t connection, Peer peer) {
  return std::make_unique<Http1Session>(around, connection, peer);
}

}  // namespace tidegate::server
