#include "server/grpc/framing.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tidegate::server {
namespace {

constexpr size_t kTimeoutDigits = 8;

uint32_t LengthOf(std::string_view head) {
  uint32_t length = 0;
  for (const char byte : head.substr(1, 4)) length = length << 8 | static_cast<uint8_t>(byte);
  return length;
}

}  // namespace

bool IsGrpcContentType(std::string_view value) {
  constexpr std::string_view kType = "application/grpc";
  if (!value.starts_with(kType)) return false;
  value.remove_prefix(kType.size());
  return value.empty() || value[0] == ';' || value == "+proto" || value.starts_with("+proto;");
}

void AppendGrpcFrameHead(size_t message_size, std::string* out) {
  out->push_back('\0');
  for (int shift = 24; shift >= 0; shift -= 8) {
    out->push_back(static_cast<char>(message_size >> shift & 0xff));
  }
}

FrameState FirstGrpcFrame(std::string_view bytes, size_t max_message, GrpcFrame* frame) {
  if (!bytes.empty() && static_cast<uint8_t>(bytes[0]) > 1) return FrameState::kMalformed;
  if (bytes.size() < kGrpcFrameHead) return FrameState::kPartial;
  const size_t length = LengthOf(bytes);
  if (length > max_message) return FrameState::kTooLarge;
  if (bytes.size() - kGrpcFrameHead < length) return FrameState::kPartial;
  *frame = {bytes.substr(kGrpcFrameHead, length), bytes[0] != 0};
  return FrameState::kWhole;
}

GrpcStatus MessageOf(const GrpcFrame& frame, GrpcEncoding encoding, size_t max_message,
                     std::string* unpacked, std::string_view* message, std::string* why) {
  if (!frame.packed) {
    *message = frame.content;
    return GrpcStatus::kOk;
  }
  const GrpcStatus status = UnpackGrpc(frame.content, encoding, max_message, unpacked, why);
  if (status == GrpcStatus::kOk) *message = *unpacked;
  return status;
}

GrpcStatus StatusOf(FrameState state, size_t max_message, std::string* why) {
  if (state == FrameState::kTooLarge) {
    *why = absl::StrCat("the message is too long; expected at most ", max_message, " bytes");
    return GrpcStatus::kResourceExhausted;
  }
  *why = "the frame of the message has an unknown flag; expected 0 or 1";
  return GrpcStatus::kInternal;
}

GrpcStatus UnaryMessage(std::string_view body, GrpcEncoding encoding, size_t max_message,
                        std::string* unpacked, std::string_view* message, std::string* why) {
  GrpcFrame frame;
  const FrameState state = FirstGrpcFrame(body, max_message, &frame);
  if (state == FrameState::kPartial) {
    *why = body.empty() ? "the call has no message; expected one"
                        : "the message is cut off; expected a whole one";
    return GrpcStatus::kInternal;
  }
  if (state != FrameState::kWhole) return StatusOf(state, max_message, why);
  if (body.size() != kGrpcFrameHead + frame.content.size()) {
    *why = "the call has several messages; expected one";
    return GrpcStatus::kUnimplemented;  // the status that other servers use
  }
  return MessageOf(frame, encoding, max_message, unpacked, message, why);
}

std::string PercentEncode(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte <= 0x7e && c != '%') {
      encoded.push_back(c);
    } else {
      encoded.push_back('%');
      encoded.push_back(kHex[byte >> 4]);
      encoded.push_back(kHex[byte & 0xf]);
    }
  }
  return encoded;
}

std::optional<std::chrono::nanoseconds> ParseGrpcTimeout(std::string_view value) {
  using std::chrono::nanoseconds;
  if (value.size() < 2 || value.size() > kTimeoutDigits + 1) return std::nullopt;
  int64_t amount = 0;
  for (const char digit : value.substr(0, value.size() - 1)) {
    if (digit < '0' || digit > '9') return std::nullopt;
    amount = amount * 10 + (digit - '0');
  }
  constexpr nanoseconds kLongest = std::chrono::hours(24 * 365);
  const auto times = [&](nanoseconds unit) {
    return amount > kLongest / unit ? kLongest : unit * amount;
  };
  switch (value.back()) {
    case 'H':
      return times(std::chrono::hours(1));
    case 'M':
      return times(std::chrono::minutes(1));
    case 'S':
      return times(std::chrono::seconds(1));
    case 'm':
      return times(std::chrono::milliseconds(1));
    case 'u':
      return times(std::chrono::microseconds(1));
    case 'n':
      return times(nanoseconds(1));
    default:
      return std::nullopt;
  }
}

GrpcStatus GrpcStatusOfHttp(int http_status) {
  switch (http_status) {
    case 408:
    case 504:
      return GrpcStatus::kDeadlineExceeded;
    case 413:
    case 431:
      return GrpcStatus::kResourceExhausted;
    case 404:
      return GrpcStatus::kUnimplemented;
    case 503:
      return GrpcStatus::kUnavailable;
    default:
      return GrpcStatus::kInternal;
  }
}

}  // namespace tidegate::server
