// Checks the heads of HTTP/2 frames for floods of frames that are cheap to send, and PRIORITY
// frames, which nghttp2 ignores here. It sees them before nghttp2 does, so the bounds do not depend
// on the version of nghttp2.
#ifndef TIDEGATE_SERVER_FRONT_FRAME_GUARD_H_
#define TIDEGATE_SERVER_FRONT_FRAME_GUARD_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/front/options.h"
#include "server/front/rate_bound.h"

namespace tidegate::server {

class FrameGuard {
 public:
  explicit FrameGuard(const FrontOptions& options);

  enum class Verdict : uint8_t { kPass, kFlood, kMalformed };

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
  bool PassFrame(Instant now);

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
