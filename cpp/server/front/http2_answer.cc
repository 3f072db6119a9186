// The handling and answering of HTTP/2 calls.
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "server/front/dispatch.h"
#include "server/front/http2_session.h"
#include "server/grpc/framing.h"

namespace tidegate::server {
namespace {

using Stage = Http2Stream::Stage;
using Fields = absl::InlinedVector<nghttp2_nv, 8>;

// A text that outlives the sending of the frame is not copied.
constexpr uint8_t kKept = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;

nghttp2_nv Field(std::string_view name, std::string_view value, uint8_t flags) {
  const auto bytes = [](std::string_view text) {
    return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(text.data()));  // nghttp2 reads it
  };
  return {bytes(name), bytes(value), name.size(), value.size(), flags};
}

std::string_view Digits(uint64_t number, char* begin, char* end) {
  return {begin, static_cast<size_t>(std::to_chars(begin, end, number).ptr - begin)};
}

void AddHeaders(const Answer& answer, Fields* fields) {
  for (const auto& [name, value] : answer.headers) {
    if (IsFieldName(name) && IsFieldValue(value)) fields->push_back(Field(name, value, kKept));
  }
}

void AddStatus(Http2Stream* stream, Fields* fields) {
  Answer& answer = stream->answer;
  const std::string_view status = Digits(static_cast<uint64_t>(answer.grpc_status), stream->status,
                                         stream->status + sizeof stream->status);
  fields->push_back(Field("grpc-status", status, kKept));
  if (answer.grpc_message.empty()) return;
  answer.grpc_message = PercentEncode(answer.grpc_message);
  fields->push_back(Field("grpc-message", answer.grpc_message, kKept));
}

}  // namespace

void Http2Session::OnHeaders(Http2Stream* stream) {
  if (stream->crowded) {
    // The content type may be among what was left out.
    const Routes::Grpc called = around_->routes->FindGrpc(stream->Text(stream->target));
    stream->is_grpc = called.service != nullptr || called.streaming != nullptr;
    Fail(stream, 431, "the headers are too many or too long; expected fewer or shorter ones");
    return;
  }
  std::string_view content_type;
  for (const Http2Stream::HeaderPlace& header : stream->headers) {
    if (stream->Text(header.name) == "content-type") content_type = stream->Text(header.value);
  }
  stream->is_grpc = IsGrpcContentType(content_type);
  const std::string_view path = stream->Text(stream->target);
  const Routes::Grpc method = around_->routes->FindGrpc(path);
  const bool exists = method.service != nullptr || method.streaming != nullptr;
  if (!stream->is_grpc && !exists) return;
  if (!stream->is_grpc) {
    Fail(stream, 415, "the content type of a gRPC method is another; expected application/grpc");
  } else if (stream->Text(stream->method) != "POST") {
    stream->is_grpc = false;
    Fail(stream, 405, "the method of a gRPC call is another; expected POST");
  } else if (!exists) {
    FailGrpc(stream, GrpcStatus::kUnimplemented,
             "the gRPC method is unknown; expected one of this server");
  } else {
    stream->service = method.service;
    OnGrpcHeaders(stream);
    if (method.streaming != nullptr && stream->stage == Stage::kReceiving) {
      StartStreaming(stream, method.streaming);
    }
  }
}

void Http2Session::OnGrpcHeaders(Http2Stream* stream) {
  for (const Http2Stream::HeaderPlace& header : stream->headers) {
    const std::string_view name = stream->Text(header.name);
    if (name == "grpc-encoding") stream->encoding = GrpcEncodingOf(stream->Text(header.value));
    if (name != "grpc-timeout") continue;
    const auto timeout = ParseGrpcTimeout(stream->Text(header.value));
    if (!timeout.has_value()) {
      FailGrpc(stream, GrpcStatus::kInternal,
               "the grpc-timeout is malformed; expected one such as \"100m\"");
      return;
    }
    stream->call_deadline = now() + *timeout;
    SetDeadline(stream, stream->deadline);
  }
}

void Http2Session::FillRequest(const Http2Stream& stream, Request* request) {
  std::vector<Header>& headers = around_->http2_streams->headers;
  headers.clear();
  for (const Http2Stream::HeaderPlace& header : stream.headers) {
    headers.push_back({stream.Text(header.name), stream.Text(header.value)});
  }
  request->method = stream.Text(stream.method);
  SetTarget(stream.Text(stream.target), request);
  request->headers = headers;
  request->body = stream.body;
  request->peer = peer_;
  request->is_grpc = stream.is_grpc;
}

bool Http2Session::MayHandle(Http2Stream* stream) {
  if (handling_ < static_cast<size_t>(around_->options.streams)) return true;
  stream->stage = Stage::kAnswering;
  (void)nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_REFUSED_STREAM);
  return false;
}

void Http2Session::WaitForAnswer(Http2Stream* stream) {
  ++handling_;
  SetDeadline(stream, now() + around_->options.answer_time);
}

void Http2Session::Handle(Http2Stream* stream) {
  if (!MayHandle(stream)) return;
  counters().requests_http2.Add();
  Request request;
  FillRequest(*stream, &request);
  if (stream->is_grpc) {
    HandleGrpc(stream, &request);
    return;
  }
  const CallId id{connection_, static_cast<uint32_t>(stream->id), Protocol::kHttp2};
  stream->stage = Stage::kHandling;
  if (Dispatch(request, id, around_, &stream->answer)) {
    Submit(stream);
  } else {
    WaitForAnswer(stream);
  }
}

void Http2Session::HandleGrpc(Http2Stream* stream, Request* request) {
  counters().requests_grpc.Add();
  if (HasPackedMessage(stream->body) && stream->service->Refuses(*request, &stream->answer)) {
    Submit(stream);
    return;
  }
  std::string unpacked;
  std::string why;
  const GrpcStatus status = UnaryMessage(
      stream->body, stream->encoding, around_->options.body_bytes, &unpacked, &request->body, &why);
  if (status != GrpcStatus::kOk) {
    FailGrpc(stream, status, why);
    return;
  }
  const CallId id{connection_, static_cast<uint32_t>(stream->id), Protocol::kGrpc};
  stream->stage = Stage::kHandling;
  if (Call(stream->service, *request, id, around_, &stream->answer)) {
    Submit(stream);
  } else {
    WaitForAnswer(stream);
  }
}

void Http2Session::Fail(Http2Stream* stream, int http_status, std::string_view why) {
  if (http_status < 500 && http_status != 408) counters().errors_protocol.Add();
  if (stream->is_grpc) {
    FailGrpc(stream, GrpcStatusOfHttp(http_status), why);
    return;
  }
  if (stream->stage == Stage::kAnswering) return;
  Refuse(http_status, why, &stream->answer);
  Submit(stream);
}

void Http2Session::FailGrpc(Http2Stream* stream, GrpcStatus status, std::string_view why) {
  if (stream->streaming != nullptr) {
    if (stream->ended) return;
    stream->ended = true;
    stream->answer.grpc_status = status;
    stream->answer.grpc_message = std::string(why);
    if (std::exchange(stream->deferred, false)) {
      (void)nghttp2_session_resume_data(session_, stream->id);
    }
    return;
  }
  if (stream->stage == Stage::kAnswering) return;
  RefuseGrpc(status, why, &stream->answer);
  if (status == GrpcStatus::kUnimplemented) {
    stream->answer.headers.emplace_back("grpc-accept-encoding", kGrpcEncodings);
  }
  Submit(stream);
}

void Http2Session::Submit(Http2Stream* stream) {
  stream->stage = Stage::kAnswering;
  stream->call_deadline = Instant::max();
  SetDeadline(stream, now() + around_->options.take_time);
  if (stream->is_grpc) {
    SubmitGrpc(stream);
  } else {
    SubmitHttp(stream);
  }
}

void Http2Session::SubmitHttp(Http2Stream* stream) {
  Answer& answer = stream->answer;
  Fields fields;
  char status[4];
  fields.push_back(Field(
      ":status", Digits(static_cast<uint64_t>(answer.http_status), status, status + sizeof status),
      NGHTTP2_NV_FLAG_NO_COPY_NAME));
  if (!answer.content_type.empty()) {
    fields.push_back(Field("content-type", answer.content_type, kKept));
  }
  const std::string_view length =
      Digits(answer.body.size(), stream->length, stream->length + sizeof stream->length);
  fields.push_back(Field("content-length", length, kKept));
  fields.push_back(Field("date", around_->date, NGHTTP2_NV_FLAG_NO_COPY_NAME));
  AddHeaders(answer, &fields);
  stream->out.swap(answer.body);
  if (stream->Text(stream->method) == "HEAD") stream->out.clear();
  Respond(stream, fields, !stream->out.empty());
}

void Http2Session::SubmitGrpc(Http2Stream* stream) {
  Answer& answer = stream->answer;
  Fields fields;
  fields.push_back(Field(":status", "200", kKept));
  fields.push_back(Field("content-type", "application/grpc", kKept));
  AddHeaders(answer, &fields);
  const bool only_trailers = answer.grpc_status != GrpcStatus::kOk && stream->streaming == nullptr;
  if (only_trailers) {
    AddStatus(stream, &fields);
  } else if (stream->streaming == nullptr) {
    AppendGrpcFrameHead(answer.body.size(), &stream->out);
    stream->out.append(answer.body);
  }
  Respond(stream, fields, !only_trailers);
}

void Http2Session::Respond(Http2Stream* stream, absl::Span<const nghttp2_nv> fields,
                           bool has_body) {
  const nghttp2_data_provider provider = {
      {.ptr = stream},
      [](nghttp2_session* /*session*/, int32_t /*id*/, uint8_t* buffer, size_t size,
         uint32_t* flags, nghttp2_data_source* source, void* self) {
        return static_cast<Http2Session*>(self)->Read(static_cast<Http2Stream*>(source->ptr),
                                                      buffer, size, flags);
      }};
  (void)nghttp2_submit_response(session_, stream->id, fields.data(), fields.size(),
                                has_body ? &provider : nullptr);
  CountOutput(stream->out.size());
}

void Http2Session::SubmitTrailers(Http2Stream* stream) {
  Fields fields;
  AddStatus(stream, &fields);
  (void)nghttp2_submit_trailer(session_, stream->id, fields.data(), fields.size());
}

ssize_t Http2Session::Read(Http2Stream* stream, uint8_t* buffer, size_t size, uint32_t* flags) {
  const size_t taken = std::min(size, stream->unsent());
  std::memcpy(buffer, stream->out.data() + stream->sent, taken);
  stream->sent += taken;
  unsent_ -= taken;
  if (stream->unsent() > 0) return static_cast<ssize_t>(taken);
  if (stream->streaming != nullptr && !stream->ended) {
    stream->out.clear();
    stream->sent = 0;
    if (taken > 0) return static_cast<ssize_t>(taken);
    stream->deferred = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  *flags |= NGHTTP2_DATA_FLAG_EOF;
  if (stream->is_grpc) {
    *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    SubmitTrailers(stream);
  }
  return static_cast<ssize_t>(taken);
}

void Http2Session::CountOutput(size_t bytes) {
  unsent_ += bytes;
  if (unsent_ <= around_->options.output_bytes || broken_) return;
  counters().slow_readers.Add();
  broken_ = true;
}

void Http2Session::StartStreaming(Http2Stream* stream, StreamingMethod* method) {
  counters().requests_http2.Add();
  counters().requests_grpc.Add();
  const CallId id{connection_, static_cast<uint32_t>(stream->id), Protocol::kGrpc};
  stream->streaming = method->Start(StreamWriter(around_->mailbox, id));
  stream->stage = Stage::kAnswering;
  stream->deadline = stream->call_deadline;
  RefuseGrpc(GrpcStatus::kOk, {}, &stream->answer);
  SubmitGrpc(stream);
}

void Http2Session::ReadMessages(Http2Stream* stream) {
  size_t taken = 0;
  const size_t most = around_->options.body_bytes;
  std::string unpacked;
  std::string why;
  while (!stream->ended && taken < stream->body.size()) {
    GrpcFrame frame;
    const FrameState state =
        FirstGrpcFrame(std::string_view(stream->body).substr(taken), most, &frame);
    if (state == FrameState::kPartial) break;
    std::string_view message;
    const GrpcStatus status = state == FrameState::kWhole ? MessageOf(frame, stream->encoding, most,
                                                                      &unpacked, &message, &why)
                                                          : StatusOf(state, most, &why);
    if (status != GrpcStatus::kOk) {
      FailGrpc(stream, status, why);
      break;
    }
    stream->streaming->OnMessage(message);
    taken += kGrpcFrameHead + frame.content.size();
  }
  if (stream->ended) taken = stream->body.size();
  stream->body.erase(0, taken);
  input_ -= taken;
}

void Http2Session::Deliver(Posted posted) {
  const bool is_answer =
      posted.kind == Posted::Kind::kAnswer || posted.kind == Posted::Kind::kDropped;
  if (is_answer && handling_ > 0) --handling_;
  Http2Stream* const stream = Find(static_cast<int32_t>(posted.id.call));
  if (stream == nullptr) return;
  switch (posted.kind) {
    case Posted::Kind::kAnswer:
    case Posted::Kind::kDropped:
      if (stream->stage != Stage::kHandling) return;
      if (posted.kind == Posted::Kind::kDropped) {
        counters().errors_service.Add();
        Fail(stream, 500, "The service failed");
        return;
      }
      counters().answers_later.Add();
      stream->answer = std::move(posted.answer);
      Submit(stream);
      return;
    case Posted::Kind::kMessage:
      if (stream->streaming == nullptr || stream->ended) return;
      AppendGrpcFrameHead(posted.answer.body.size(), &stream->out);
      stream->out.append(posted.answer.body);
      CountOutput(kGrpcFrameHead + posted.answer.body.size());
      SetDeadline(stream, now() + around_->options.take_time);
      if (std::exchange(stream->deferred, false)) {
        (void)nghttp2_session_resume_data(session_, stream->id);
      }
      return;
    case Posted::Kind::kEnd:
      if (stream->streaming == nullptr) return;
      FailGrpc(stream, posted.answer.grpc_status, posted.answer.grpc_message);
      return;
  }
}

void Http2Session::OnDeadline(Http2Stream* stream) {
  const bool by_client = stream->call_deadline <= now();
  stream->deadline = Instant::max();
  if (stream->stage == Stage::kReceiving) {
    counters().timeouts_request.Add();
    Fail(stream, 408, "the request is late; expected all of it in time");
  } else if (stream->stage == Stage::kHandling) {
    counters().timeouts_answer.Add();
    Fail(stream, 504, "The service did not answer in time");
  } else if (by_client && stream->streaming != nullptr && !stream->ended) {
    counters().timeouts_answer.Add();
    FailGrpc(stream, GrpcStatus::kDeadlineExceeded, "The time of the call is over");
    stream->deadline = now() + around_->options.take_time;
    stream->call_deadline = Instant::max();
  } else if (stream->streaming != nullptr && stream->unsent() == 0 && !stream->ended) {
    stream->deadline = stream->call_deadline;
  } else {
    counters().slow_readers.Add();
    (void)nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_CANCEL);
  }
}

}  // namespace tidegate::server
