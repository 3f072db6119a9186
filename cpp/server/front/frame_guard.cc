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

size_t FrameGuard::Length() const {
  return static_cast<size_t>(head_[0]) << 16 | static_cast<size_t>(head_[1]) << 8 |
         static_cast<size_t>(head_[2]);
}

bool FrameGuard::IsPriority() const {
  // nghttp2 refuses those of another length.
  return head_[3] == NGHTTP2_PRIORITY && Length() == kPrioritySize;
}

bool FrameGuard::IsMalformedPriority() const {
  constexpr uint8_t kId = 0x7f;  // the first bit of a stream's id means something else
  const uint8_t* const stream = head_ + kHeadSize - kStreamSize;
  const uint8_t* const parent = head_ + kHeadSize;
  const bool is_none = (stream[0] & kId) == 0 && stream[1] == 0 && stream[2] == 0 && stream[3] == 0;
  const bool is_own = (stream[0] & kId) == (parent[0] & kId) &&
                      std::equal(stream + 1, stream + kStreamSize, parent + 1);
  return is_none || is_own;
}

FrameGuard::Verdict FrameGuard::Pass(std::string_view bytes, Instant now) {
  while (!bytes.empty()) {
    const size_t skipped = std::min(skip_, bytes.size());
    skip_ -= skipped;
    bytes.remove_prefix(skipped);
    const bool has_more = have_ >= kHeadSize && IsPriority();
    const size_t taken = std::min(kHeadSize + (has_more ? kStreamSize : 0) - have_, bytes.size());
    std::memcpy(head_ + have_, bytes.data(), taken);
    bytes.remove_prefix(taken);
    have_ += taken;
    if (have_ < kHeadSize) return Verdict::kPass;
    if (IsPriority()) {
      if (have_ < kHeadSize + kStreamSize) continue;
      if (IsMalformedPriority()) return Verdict::kMalformed;
    }
    const size_t beyond = have_ - kHeadSize;
    have_ = 0;
    if (!PassFrame(now)) return Verdict::kFlood;
    skip_ -= beyond;
  }
  return Verdict::kPass;
}

bool FrameGuard::PassFrame(Instant now) {
  const size_t length = Length();
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
