#include "server/front/frame_guard.h"

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <cstring>

#include "server/front/session.h"

namespace tidegate::server {
namespace {

constexpr int kMostContinuations = 8;
// A block of headers above the bound is still read, so that its stream can be answered with 431; a
// block this many times above it ends the connection.
constexpr size_t kHeaderSlack = 4;

}  // namespace

FrameGuard::FrameGuard(const FrontOptions& options)
    : resets_(options.resets_per_second, options.reset_burst),
      control_frames_(options.control_frames_per_second, options.control_frame_burst),
      most_header_bytes_(options.header_bytes * kHeaderSlack),
      skip_(kHttp2Preface.size()) {}

bool FrameGuard::Pass(std::string_view bytes, Instant now) {
  while (!bytes.empty()) {
    const size_t skipped = std::min(skip_, bytes.size());
    skip_ -= skipped;
    bytes.remove_prefix(skipped);
    const size_t taken = std::min(kHeadSize - have_, bytes.size());
    std::memcpy(head_ + have_, bytes.data(), taken);
    bytes.remove_prefix(taken);
    have_ += taken;
    if (have_ < kHeadSize) return true;
    have_ = 0;
    if (!PassFrame(now)) return false;
  }
  return true;
}

bool FrameGuard::PassFrame(Instant now) {
  const size_t length = static_cast<size_t>(head_[0]) << 16 | static_cast<size_t>(head_[1]) << 8 |
                        static_cast<size_t>(head_[2]);
  const uint8_t flags = head_[4];
  skip_ = length;
  switch (head_[3]) {
    case NGHTTP2_HEADERS:
      header_bytes_ = length;
      continuations_ = 0;
      return header_bytes_ <= most_header_bytes_;
    case NGHTTP2_CONTINUATION:
      header_bytes_ += length;
      return ++continuations_ <= kMostContinuations && header_bytes_ <= most_header_bytes_;
    case NGHTTP2_DATA:
      return length > 0 || (flags & NGHTTP2_FLAG_END_STREAM) != 0 || control_frames_.Take(now);
    case NGHTTP2_RST_STREAM:
      ++resets_received_;
      return resets_.Take(now);
    case NGHTTP2_WINDOW_UPDATE:
      return true;
    default:
      return control_frames_.Take(now);
  }
}

}  // namespace tidegate::server
