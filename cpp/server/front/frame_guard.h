// Checks the heads of HTTP/2 frames for floods of frames that are cheap to send, for frames on
// streams that the client itself has ended, and PRIORITY frames, which nghttp2 ignores here. It
// sees them before nghttp2 does, so the bounds do not depend on the version of nghttp2.
#ifndef TIDEGATE_SERVER_FRONT_FRAME_GUARD_H_
#define TIDEGATE_SERVER_FRONT_FRAME_GUARD_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/front/options.h"
#include "server/front/rate_bound.h"

namespace tidegate::server {

// Which of the newest streams a client can still send on. What the client has ended or skipped is
// known to it, so no frame on such a stream was under way. Streams that the server has reset are
// not among them.
class SendingStreams {
 public:
  // Whether the client may send HEADERS or DATA on a stream. Of streams that are too old to be
  // remembered, and of those that cannot be begun, that is left to nghttp2.
  bool Send(uint32_t id, bool begins, bool ends);
  void Reset(uint32_t id);

 private:
  static constexpr uint32_t kRemembered = 512;

  bool IsRemembered(uint32_t number) const {
    return number < next_ && next_ - number <= kRemembered;
  }

  uint32_t next_ = 0;  // the first stream, of those a client can begin, that is not begun yet
  std::bitset<kRemembered> ended_;
};

class FrameGuard {
 public:
  explicit FrameGuard(const FrontOptions& options);

  enum class Verdict : uint8_t { kPass, kFlood, kMalformed, kStreamEnded };

  // Checks the next bytes from the client, which must not be read unless they pass.
  Verdict Pass(std::string_view bytes, Instant now);
  // Counts a stream that was reset because of a client's error.
  bool CountReset(Instant now) { return resets_.Take(now); }
  uint64_t resets_received() const { return resets_received_; }

 private:
  static constexpr size_t kHeadSize = 9;
  static constexpr size_t kPrioritySize = 5;
  static constexpr size_t kStreamSize = 4;

  size_t Length() const;
  bool IsPriority() const;
  // Whether a PRIORITY frame is for no stream, or for one that depends on itself.
  bool IsMalformedPriority() const;
  uint32_t Stream() const;
  Verdict PassFrame(Instant now);

  SendingStreams streams_;
  RateBound resets_;
  RateBound control_frames_;
  const size_t most_header_bytes_;
  uint64_t resets_received_ = 0;
  size_t skip_;                            // bytes until the next head
  uint8_t head_[kHeadSize + kStreamSize];  // and, of PRIORITY, the stream that it depends on
  size_t have_ = 0;                        // the bytes of the head so far
  size_t header_bytes_ = 0;
  int continuations_ = 0;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_FRAME_GUARD_H_
