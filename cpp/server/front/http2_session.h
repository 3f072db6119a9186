// HTTP/2 and gRPC, through nghttp2.
#ifndef TIDEGATE_SERVER_FRONT_HTTP2_SESSION_H_
#define TIDEGATE_SERVER_FRONT_HTTP2_SESSION_H_

#include <nghttp2/nghttp2.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "server/front/frame_guard.h"
#include "server/front/http2_stream.h"
#include "server/front/session.h"

namespace tidegate::server {

class Http2Session final : public Session {
 public:
  Http2Session(Surroundings* around, uint64_t connection, Peer peer);
  ~Http2Session() override;
  Http2Session(const Http2Session&) = delete;
  Http2Session& operator=(const Http2Session&) = delete;

  void Receive(std::string_view bytes) override;
  void Deliver(Posted posted) override;
  void Fill(std::string* out) override;
  void Drain() override;
  Instant due() const override;
  void OnTime() override;
  bool busy() const override { return !streams_.empty(); }
  bool wants_input() const override { return true; }
  bool over() const override;

 private:
  struct Callbacks;
  friend struct Callbacks;

  Instant now() const { return around_->now; }
  Counters& counters() { return *around_->counters; }
  Http2Stream* Find(int32_t id) const;
  void SetDeadline(Http2Stream* stream, Instant deadline);
  // Ends the connection after telling the client why.
  void Terminate(uint32_t error_code);

  // Callbacks for receiving:
  Http2Stream* Begin(int32_t id);
  // Whether another field is accepted. If not, the connection ends.
  bool MayUnpack(Http2Stream* stream, size_t bytes);
  void AddHeader(Http2Stream* stream, std::string_view name, std::string_view value);
  void OnHeaders(Http2Stream* stream);
  void OnGrpcHeaders(Http2Stream* stream);
  void OnData(Http2Stream* stream, std::string_view bytes);
  void ReadMessages(Http2Stream* stream);
  void OnEnd(Http2Stream* stream);
  void OnComplete(Http2Stream* stream);
  void OnClose(Http2Stream* stream);
  void OnReset();

  // Callbacks for answering:
  void Handle(Http2Stream* stream);
  // Whether another call may go to a service. If not, the stream is refused.
  bool MayHandle(Http2Stream* stream);
  void WaitForAnswer(Http2Stream* stream);
  void HandleGrpc(Http2Stream* stream, Request* request);
  void FillRequest(const Http2Stream& stream, Request* request);
  // Answers with an error of the front itself, as HTTP or gRPC.
  void Fail(Http2Stream* stream, int http_status, std::string_view why);
  void FailGrpc(Http2Stream* stream, GrpcStatus status, std::string_view why);
  void Submit(Http2Stream* stream);
  void SubmitHttp(Http2Stream* stream);
  void SubmitGrpc(Http2Stream* stream);
  void Respond(Http2Stream* stream, absl::Span<const nghttp2_nv> fields, bool has_body);
  void StartStreaming(Http2Stream* stream, StreamingMethod* method);
  void SubmitTrailers(Http2Stream* stream);
  ssize_t Read(Http2Stream* stream, uint8_t* buffer, size_t size, uint32_t* flags);
  void CountOutput(size_t bytes);
  void OnDeadline(Http2Stream* stream);
  void SendGoaway();

  Surroundings* const around_;
  const uint64_t connection_;
  const Peer peer_;
  nghttp2_session* session_ = nullptr;
  FrameGuard guard_;
  std::vector<std::unique_ptr<Http2Stream>> streams_;
  // The streams whose requests arrived whole in the bytes that are being received. They are handled
  // once all of the bytes are read, so that a stream that is reset at once costs no call.
  std::vector<int32_t> complete_;
  Instant streams_due_ = Instant::max();  // at most the first deadline of a stream
  Instant idle_since_;
  Instant goaway_due_ = Instant::max();  // when the second GOAWAY of a drain is sent
  size_t input_ = 0;                     // bytes of unfinished request bodies
  size_t unsent_ = 0;                    // bytes of answers that are not in the output yet
  // The calls that services work on, including those of streams that are reset or timed out:
  // otherwise a client that resets its streams would have more calls than its bound.
  size_t handling_ = 0;
  bool draining_ = false;
  bool terminated_ = false;
  bool broken_ = false;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_HTTP2_SESSION_H_
