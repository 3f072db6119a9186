// The encoding of gRPC messages, statuses and timeouts in HTTP/2.
#ifndef TIDEGATE_SERVER_GRPC_FRAMING_H_
#define TIDEGATE_SERVER_GRPC_FRAMING_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/call.h"
#include "server/grpc/packed_message.h"

namespace tidegate::server {

inline constexpr size_t kGrpcFrameHead = 5;  // a flag of compression and the length

// Accepts "application/grpc", with or without "+proto" and parameters.
bool IsGrpcContentType(std::string_view value);

// Appends the head of a message's frame.
void AppendGrpcFrameHead(size_t message_size, std::string* out);

enum class FrameState { kWhole, kPartial, kMalformed, kTooLarge };

struct GrpcFrame {
  std::string_view content;  // the frame without its head
  bool packed = false;
};

// Whether the first message of a body is packed.
inline bool HasPackedMessage(std::string_view body) { return body.starts_with('\1'); }

FrameState FirstGrpcFrame(std::string_view bytes, size_t max_message, GrpcFrame* frame);

// Returns kOk and the message of a frame, or the status that says why there is none. `unpacked`
// holds a message that was packed.
GrpcStatus MessageOf(const GrpcFrame& frame, GrpcEncoding encoding, size_t max_message,
                     std::string* unpacked, std::string_view* message, std::string* why);

// The status of a call whose next frame is malformed or too large.
GrpcStatus StatusOf(FrameState state, size_t max_message, std::string* why);

// As MessageOf(), for a body that is expected to be exactly one message.
GrpcStatus UnaryMessage(std::string_view body, GrpcEncoding encoding, size_t max_message,
                        std::string* unpacked, std::string_view* message, std::string* why);

// Encodes the value of grpc-message: percent-encoded UTF-8.
std::string PercentEncode(std::string_view text);

// Parses the value of grpc-timeout: at most 8 digits and a unit. Empty if it is malformed.
std::optional<std::chrono::nanoseconds> ParseGrpcTimeout(std::string_view value);

// The gRPC status of a call that ended with an HTTP status before it reached a service.
GrpcStatus GrpcStatusOfHttp(int http_status);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_FRAMING_H_
