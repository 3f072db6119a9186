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

FrameGuard::Verdict FloodUnless(bool passes) {
  return passes ? FrameGuard::Verdict::kPass : FrameGuard::Verdict::kFlood;
}

}  // namespace

bool SendingStreams::Send(uint32_t id, bool begins, bool ends) {
  if (id % 2 == 0) return true;  // is not for a client to begin
  const uint32_t number = id / 2;
  if (number >= next_) {
    if (!begins) return true;
    for (uint32_t skipped = next_; skipped < std::min(number, next_ + kRemembered); ++skipped) {
      ended_.set(skipped % kRemembered);
    }
    next_ = number + 1;
    ended_.set(number % kRemembered, ends);
    return true;
  }
  if (!IsRemembered(number)) return true;
  if (ended_.test(number % kRemembered)) return false;
  ended_.set(number % kRemembered, ends);
  return true;
}

void SendingStreams::Reset(uint32_t id) {
  if (id % 2 == 1 && IsRemembered(id / 2)) ended_.set(id / 2 % kRemembered);
}

FrameGuard::FrameGuard(const FrontOptions& options)
    : resets_(options.resets_per_second, options.reset_burst),
      control_frames_(options.control_frames_per_second, options.control_frame_burst),
      most_header_bytes_(options.header_bytes * kHeaderSlack),
      skip_(kHttp2Preface.size()) {}

size_t FrameGuard::Length() const {
  return static_cast<size_t>(head_[0]) << 16 | static_cast<size_t>(head_[1]) << 8 |
         static_cast<size_t>(head_[2]);
}

uint32_t FrameGuard::Stream() const {
  constexpr uint32_t kId = 0x7fffffff;  // the first bit means something else
  const uint8_t* const id = head_ + kHeadSize - kStreamSize;
  return (static_cast<uint32_t>(id[0]) << 24 | static_cast<uint32_t>(id[1]) << 16 |
          static_cast<uint32_t>(id[2]) << 8 | static_cast<uint32_t>(id[3])) &
         kId;
}

bool FrameGuard::IsPriority() const {
  // nghttp2 refuses those of another length.
  return head_[3] == NGHTTP2_PRIORITY && Length() == kPrioritySize;
}

bool FrameGuard::IsMalformedPriority() const {
  constexpr uint8_t kId = 0x7f;  // the first bit of a stream's id means something else
  const uint8_t* const stream = head_ + kHeadSize - kStreamSize;
  const uint8_t* const parent = head_ + kHeadSize;
  const bool is_own = (stream[0] & kId) == (parent[0] & kId) &&
                      std::equal(stream + 1, stream + kStreamSize, parent + 1);
  return Stream() == 0 || is_own;
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
    if (const Verdict found = PassFrame(now); found != Verdict::kPass) return found;
    skip_ -= beyond;
  }
  return Verdict::kPass;
}

FrameGuard::Verdict FrameGuard::PassFrame(Instant now) {
  const size_t length = Length();
  const bool ends = (head_[4] & NGHTTP2_FLAG_END_STREAM) != 0;
  skip_ = length;
  switch (head_[3]) {
    case NGHTTP2_HEADERS:
      if (!streams_.Send(Stream(), true, ends)) return Verdict::kStreamEnded;
      header_bytes_ = length;
      continuations_ = 0;
      return FloodUnless(header_bytes_ <= most_header_bytes_);
    case NGHTTP2_CONTINUATION:
      header_bytes_ += length;
      return FloodUnless(++continuations_ <= kMostContinuations &&
                         header_bytes_ <= most_header_bytes_);
    case NGHTTP2_DATA:
      if (!streams_.Send(Stream(), false, ends)) return Verdict::kStreamEnded;
      return FloodUnless(length > 0 || ends || control_frames_.Take(now));
    case NGHTTP2_RST_STREAM:
      streams_.Reset(Stream());
      ++resets_received_;
      return FloodUnless(resets_.Take(now));
    case NGHTTP2_WINDOW_UPDATE:
      return Verdict::kPass;
    default:
      return FloodUnless(control_frames_.Take(now));
  }
}

}  // namespace tidegate::server
