// A call of an HTTP/2 connection: the received request, and the answer to send.
#ifndef TIDEGATE_SERVER_FRONT_HTTP2_STREAM_H_
#define TIDEGATE_SERVER_FRONT_HTTP2_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/monotonic.h"
#include "server/call.h"
#include "server/grpc/packed_message.h"
#include "server/grpc/streaming.h"

namespace tidegate::server {

struct Http2Stream {
  enum class Stage : uint8_t { kReceiving, kHandling, kAnswering };

  // A range of `text`.
  struct Place {
    uint32_t begin = 0;
    uint32_t size = 0;
  };
  struct HeaderPlace {
    Place name;
    Place value;
  };

  int32_t id = 0;
  size_t index = 0;  // in the session's list
  Stage stage = Stage::kReceiving;
  bool is_grpc = false;
  GrpcEncoding encoding = GrpcEncoding::kIdentity;  // of the messages that are packed
  bool received = false;                            // whether the whole request was received
  bool crowded = false;                             // whether headers exceed their bounds
  bool invalid = false;  // whether it is reset for a frame that the protocol forbids
  Instant deadline = Instant::max();
  Instant call_deadline = Instant::max();  // the deadline by grpc-timeout

  std::string text;
  std::vector<HeaderPlace> headers;
  Place method;
  Place target;
  size_t header_bytes = 0;
  size_t unpacked_bytes = 0;  // including the size that RFC 9113 adds for each field
  std::string body;

  Service* service = nullptr;                // the service of a unary call
  std::unique_ptr<StreamingCall> streaming;  // the state of any other call

  Answer answer;
  std::string out;  // the body as it is sent
  size_t sent = 0;  // the bytes of `out` that were sent
  bool ended = false;
  bool deferred = false;  // nghttp2 waits for more of `out`
  char status[4] = {};
  char length[24] = {};

  std::string_view Text(Place place) const {
    return std::string_view(text).substr(place.begin, place.size);
  }
  Place Append(std::string_view bytes) {
    const Place place{static_cast<uint32_t>(text.size()), static_cast<uint32_t>(bytes.size())};
    text.append(bytes);
    return place;
  }
  size_t unsent() const { return out.size() - sent; }
  void Clear();
};

// Reuses streams, so that calls need no allocation. One thread uses it.
class Http2Streams {
 public:
  std::unique_ptr<Http2Stream> Take();
  void Return(std::unique_ptr<Http2Stream> stream);

  std::vector<Header> headers;  // scratch, for a request

 private:
  std::vector<std::unique_ptr<Http2Stream>> free_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_HTTP2_STREAM_H_
