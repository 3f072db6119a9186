#include "server/front/http2_stream.h"

#include <utility>

namespace tidegate::server {
namespace {

constexpr size_t kMostFree = 1024;
constexpr size_t kMostKeptOfFree = 4096;  // bytes of each buffer of a free stream

void ClearBuffer(std::string* buffer) {
  buffer->clear();
  if (buffer->capacity() > kMostKeptOfFree) buffer->shrink_to_fit();
}

}  // namespace

void Http2Stream::Clear() {
  id = 0;
  stage = Stage::kReceiving;
  is_grpc = received = crowded = invalid = ended = deferred = false;
  encoding = GrpcEncoding::kIdentity;
  deadline = call_deadline = Instant::max();
  ClearBuffer(&text);
  headers.clear();
  method = target = {};
  header_bytes = unpacked_bytes = 0;
  ClearBuffer(&body);
  service = nullptr;
  streaming = nullptr;
  ClearBuffer(&answer.body);
  answer.headers.clear();
  ClearBuffer(&out);
  sent = 0;
}

std::unique_ptr<Http2Stream> Http2Streams::Take() {
  if (free_.empty()) return std::make_unique<Http2Stream>();
  std::unique_ptr<Http2Stream> stream = std::move(free_.back());
  free_.pop_back();
  return stream;
}

void Http2Streams::Return(std::unique_ptr<Http2Stream> stream) {
  stream->Clear();
  if (free_.size() < kMostFree) free_.push_back(std::move(stream));
}

}  // namespace tidegate::server
