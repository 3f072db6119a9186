#include "server/front/http2_session.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "server/front/dispatch.h"
#include "server/grpc/framing.h"

namespace tidegate::server {
namespace {

// During a drain, the time that a client has to answer our PING before the second GOAWAY names the
// last stream.
constexpr auto kDrainNotice = seconds(1);
constexpr int32_t kConnectionWindow = 1 << 20;
// The size that RFC 9113 adds to the bytes of each field.
constexpr size_t kFieldOverhead = 32;
// A block that unpacks to this many times the bound of a request ends its connection, since a byte
// of a block may stand for thousands.
constexpr size_t kCrowdedTimes = 4;

std::string_view Bytes(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

struct Http2Session::Callbacks {
  static Http2Session& Of(void* user_data) { return *static_cast<Http2Session*>(user_data); }

  static int OnBeginHeaders(nghttp2_session* /*session*/, const nghttp2_frame* frame, void* self) {
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    Of(self).Begin(frame->hd.stream_id);
    return 0;
  }

  static int OnHeader(nghttp2_session* /*session*/, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t /*flags*/,
                      void* self) {
    Http2Session& session = Of(self);
    Http2Stream* const stream = session.Find(frame->hd.stream_id);
    if (stream == nullptr) return 0;
    if (!session.MayUnpack(stream, name_size + value_size)) return NGHTTP2_ERR_PAUSE;
    // Trailers are skipped: a gateway that sets or removes headers need not look at them.
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    session.AddHeader(stream, Bytes(name, name_size), Bytes(value, value_size));
    return 0;
  }

  static int OnData(nghttp2_session* /*session*/, uint8_t /*flags*/, int32_t id,
                    const uint8_t* bytes, size_t size, void* self) {
    Http2Stream* const stream = Of(self).Find(id);
    if (stream != nullptr) Of(self).OnData(stream, Bytes(bytes, size));
    return 0;
  }

  static int OnFrame(nghttp2_session* /*session*/, const nghttp2_frame* frame, void* self) {
    Http2Session& session = Of(self);
    switch (frame->hd.type) {
      case NGHTTP2_RST_STREAM:
        session.counters().resets.Add();
        return 0;
      case NGHTTP2_PING:
        if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0 && session.draining_) session.SendGoaway();
        return 0;
      case NGHTTP2_HEADERS:
      case NGHTTP2_DATA:
        break;
      default:
        return 0;
    }
    Http2Stream* const stream = session.Find(frame->hd.stream_id);
    if (stream == nullptr) return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
      session.OnHeaders(stream);
    }
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) session.OnEnd(stream);
    return 0;
  }

  static int OnInvalidFrame(nghttp2_session* /*session*/, const nghttp2_frame* frame, int /*code*/,
                            void* self) {
    Of(self).counters().errors_protocol.Add();
    Http2Stream* const stream = Of(self).Find(frame->hd.stream_id);
    if (stream != nullptr) stream->invalid = true;
    return 0;
  }

  static int OnFrameSent(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
    if (frame->hd.type == NGHTTP2_RST_STREAM) {
      const uint32_t code = frame->rst_stream.error_code;
      if (code != NGHTTP2_NO_ERROR && code != NGHTTP2_CANCEL) Of(self).OnReset();
      return 0;
    }
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
    Http2Stream* const stream = Of(self).Find(frame->hd.stream_id);
    if (stream == nullptr || stream->received) return 0;
    // The call was answered before the whole request arrived, so the rest is not needed.
    return nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_NO_ERROR);
  }

  static int OnClose(nghttp2_session* /*session*/, int32_t id, uint32_t /*code*/, void* self) {
    Http2Stream* const stream = Of(self).Find(id);
    if (stream != nullptr) Of(self).OnClose(stream);
    return 0;
  }

  static const nghttp2_session_callbacks* All() {
    static const nghttp2_session_callbacks* const all = [] {
      nghttp2_session_callbacks* made = nullptr;
      if (nghttp2_session_callbacks_new(&made) != 0) throw std::bad_alloc();
      nghttp2_session_callbacks_set_on_begin_headers_callback(made, OnBeginHeaders);
      nghttp2_session_callbacks_set_on_header_callback(made, OnHeader);
      nghttp2_session_callbacks_set_on_data_chunk_recv_callback(made, OnData);
      nghttp2_session_callbacks_set_on_frame_recv_callback(made, OnFrame);
      nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(made, OnInvalidFrame);
      nghttp2_session_callbacks_set_on_frame_send_callback(made, OnFrameSent);
      nghttp2_session_callbacks_set_on_stream_close_callback(made, OnClose);
      return made;
    }();
    return all;
  }

  // Newer releases, and older ones with mends, have a bound of their own: 33 resets a second.
  template <typename Option>
  static void LeaveResetsToTheGuard(Option* option) {
    constexpr uint64_t kMany = 1'000'000'000;
    if constexpr (requires { nghttp2_option_set_stream_reset_rate_limit(option, kMany, kMany); }) {
      nghttp2_option_set_stream_reset_rate_limit(option, kMany, kMany);
    }
  }

  static const nghttp2_option* Options() {
    static const nghttp2_option* const options = [] {
      nghttp2_option* made = nullptr;
      if (nghttp2_option_new(&made) != 0) throw std::bad_alloc();
      nghttp2_option_set_no_closed_streams(made, 1);  // of use for priorities, which we ignore
      LeaveResetsToTheGuard(made);
      return made;
    }();
    return options;
  }
};

Http2Session::Http2Session(Surroundings* around, uint64_t connection, Peer peer)
    : around_(around),
      connection_(connection),
      peer_(peer),
      guard_(around->options),
      idle_since_(around->now) {
  if (around_->http2_streams == nullptr) around_->http2_streams = std::make_shared<Http2Streams>();
  if (nghttp2_session_server_new2(&session_, Callbacks::All(), this, Callbacks::Options()) != 0) {
    throw std::bad_alloc();
  }
  const FrontOptions& options = around_->options;
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, static_cast<uint32_t>(options.streams)},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<uint32_t>(options.header_bytes)},
      {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
  };
  (void)nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  (void)nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindow);
}

Http2Session::~Http2Session() {
  for (std::unique_ptr<Http2Stream>& stream : streams_) {
    around_->http2_streams->Return(std::move(stream));
  }
  nghttp2_session_del(session_);
}

Http2Stream* Http2Session::Find(int32_t id) const {
  return static_cast<Http2Stream*>(nghttp2_session_get_stream_user_data(session_, id));
}

void Http2Session::SetDeadline(Http2Stream* stream, Instant deadline) {
  stream->deadline = std::min(deadline, stream->call_deadline);
  streams_due_ = std::min(streams_due_, stream->deadline);
}

void Http2Session::Terminate(uint32_t error_code) {
  if (std::exchange(terminated_, true)) return;
  (void)nghttp2_session_terminate_session(session_, error_code);
}

bool Http2Session::over() const {
  return broken_ ||
         (nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0);
}

void Http2Session::Receive(std::string_view bytes) {
  if (terminated_ || broken_) return;
  switch (guard_.Pass(bytes, now())) {
    case FrameGuard::Verdict::kPass:
      break;
    case FrameGuard::Verdict::kFlood:
      counters().floods.Add();
      Terminate(NGHTTP2_ENHANCE_YOUR_CALM);
      return;
    case FrameGuard::Verdict::kMalformed:
      counters().errors_protocol.Add();
      Terminate(NGHTTP2_PROTOCOL_ERROR);
      return;
    case FrameGuard::Verdict::kStreamEnded:
      counters().errors_protocol.Add();
      Terminate(NGHTTP2_STREAM_CLOSED);
      return;
  }
  const ssize_t read = nghttp2_session_mem_recv(
      session_, reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  if (read < 0) {
    broken_ = true;
    counters().errors_protocol.Add();
    if (read == NGHTTP2_ERR_FLOODED) counters().floods.Add();
  }
  for (const int32_t id : complete_) {
    if (Http2Stream* const stream = Find(id); stream != nullptr) OnComplete(stream);
  }
  complete_.clear();
}

void Http2Session::Fill(std::string* out) {
  const uint8_t* bytes = nullptr;
  while (out->size() < kOutputChunk) {
    const ssize_t size = nghttp2_session_mem_send(session_, &bytes);
    if (size < 0) broken_ = true;
    if (size <= 0) return;
    out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
  }
}

void Http2Session::Drain() {
  if (std::exchange(draining_, true)) return;
  (void)nghttp2_submit_shutdown_notice(session_);
  (void)nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
  goaway_due_ = now() + kDrainNotice;
  for (const std::unique_ptr<Http2Stream>& stream : streams_) {
    if (stream->streaming != nullptr) {
      FailGrpc(stream.get(), GrpcStatus::kUnavailable, "The server is shutting down");
    }
  }
}

void Http2Session::SendGoaway() {
  if (goaway_due_ == Instant::max()) return;
  goaway_due_ = Instant::max();
  (void)nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE,
                              nghttp2_session_get_last_proc_stream_id(session_), NGHTTP2_NO_ERROR,
                              nullptr, 0);
}

Instant Http2Session::due() const {
  if (terminated_) return Instant::max();
  const Instant next = streams_.empty() ? idle_since_ + around_->options.idle_time : streams_due_;
  return std::min(next, goaway_due_);
}

void Http2Session::OnTime() {
  if (goaway_due_ <= now()) SendGoaway();
  if (streams_.empty()) {
    if (terminated_ || idle_since_ + around_->options.idle_time > now()) return;
    counters().timeouts_idle.Add();
    Terminate(NGHTTP2_NO_ERROR);
    return;
  }
  if (streams_due_ > now()) return;
  for (const auto& stream : streams_) {
    if (stream->deadline <= now()) OnDeadline(stream.get());
  }
  streams_due_ = Instant::max();
  for (const auto& stream : streams_) streams_due_ = std::min(streams_due_, stream->deadline);
}

Http2Stream* Http2Session::Begin(int32_t id) {
  std::unique_ptr<Http2Stream> made = around_->http2_streams->Take();
  Http2Stream* const stream = made.get();
  stream->id = id;
  stream->index = streams_.size();
  streams_.push_back(std::move(made));
  (void)nghttp2_session_set_stream_user_data(session_, id, stream);
  SetDeadline(stream, now() + around_->options.request_time);
  return stream;
}

bool Http2Session::MayUnpack(Http2Stream* stream, size_t bytes) {
  const FrontOptions& options = around_->options;
  stream->unpacked_bytes += bytes + kFieldOverhead;
  const size_t most =
      options.header_bytes + static_cast<size_t>(options.header_count) * kFieldOverhead;
  if (stream->unpacked_bytes <= kCrowdedTimes * most) return true;
  counters().floods.Add();
  Terminate(NGHTTP2_ENHANCE_YOUR_CALM);
  return false;
}

void Http2Session::AddHeader(Http2Stream* stream, std::string_view name, std::string_view value) {
  if (stream->stage != Http2Stream::Stage::kReceiving) return;
  const FrontOptions& options = around_->options;
  stream->header_bytes += name.size() + value.size();
  if (stream->header_bytes > options.header_bytes ||
      stream->headers.size() >= static_cast<size_t>(options.header_count)) {
    stream->crowded = true;
    return;
  }
  if (name == ":method") {
    stream->method = stream->Append(value);
  } else if (name == ":path") {
    stream->target = stream->Append(value);
  } else if (name[0] != ':' || name == ":authority") {
    if (name[0] == ':') name = "host";
    const Http2Stream::Place name_place = stream->Append(name);
    stream->headers.push_back({name_place, stream->Append(value)});
  }
}

void Http2Session::OnData(Http2Stream* stream, std::string_view bytes) {
  if (stream->stage != Http2Stream::Stage::kReceiving && stream->streaming == nullptr) return;
  const FrontOptions& options = around_->options;
  const size_t most = options.body_bytes + (stream->is_grpc ? kGrpcFrameHead : 0);
  if (stream->streaming == nullptr && stream->body.size() + bytes.size() > most) {
    Fail(stream, 413, "the body is too long; expected a shorter one");
    return;
  }
  input_ += bytes.size();
  if (input_ > options.input_bytes) {
    input_ -= bytes.size();
    Fail(stream, 503, "the connection has too many bytes in unfinished requests; expected fewer");
    return;
  }
  stream->body.append(bytes);
  if (stream->streaming != nullptr) ReadMessages(stream);
}

void Http2Session::OnEnd(Http2Stream* stream) {
  stream->received = true;
  if (stream->streaming != nullptr) {
    if (stream->ended) return;
    if (stream->body.empty()) {
      stream->streaming->OnEnd();
    } else {
      FailGrpc(stream, GrpcStatus::kInternal, "the message is cut off; expected a whole one");
    }
    return;
  }
  if (stream->stage == Http2Stream::Stage::kReceiving) complete_.push_back(stream->id);
}

void Http2Session::OnComplete(Http2Stream* stream) {
  if (terminated_ || broken_ || stream->invalid || stream->stage != Http2Stream::Stage::kReceiving)
    return;
  Handle(stream);
  input_ -= stream->body.size();
  stream->body.clear();
}

void Http2Session::OnClose(Http2Stream* stream) {
  unsent_ -= stream->unsent();
  input_ -= stream->body.size();
  const size_t index = stream->index;
  std::unique_ptr<Http2Stream> closed = std::move(streams_[index]);
  if (index + 1 < streams_.size()) {
    streams_[index] = std::move(streams_.back());
    streams_[index]->index = index;
  }
  streams_.pop_back();
  (void)nghttp2_session_set_stream_user_data(session_, closed->id, nullptr);
  around_->http2_streams->Return(std::move(closed));
  if (!streams_.empty()) return;
  streams_due_ = Instant::max();
  idle_since_ = now();
}

void Http2Session::OnReset() {
  counters().errors_protocol.Add();
  if (guard_.CountReset(now())) return;
  counters().floods.Add();
  Terminate(NGHTTP2_ENHANCE_YOUR_CALM);
}

std::unique_ptr<Session> MakeHttp2Session(Surroundings* around, uint64_t connection, Peer peer) {
  return std::make_unique<Http2Session>(around, connection, peer);
}

}  // namespace tidegate::server
