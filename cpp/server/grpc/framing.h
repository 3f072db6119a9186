// The encoding of gRPC messages, statuses and timeouts in HTTP/2.
#ifndef TIDEGATE_SERVER_GRPC_FRAMING_H_
#define TIDEGATE_SERVER_GRPC_FRAMING_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/call.h"

namespace tidegate::server {

inline constexpr size_t kGrpcFrameHead = 5;  // a flag of compression and the length

// Accepts "application/grpc", with or without "+proto" and parameters.
bool IsGrpcContentType(std::string_view value);

// Appends the head of a message's frame.
void AppendGrpcFrameHead(size_t message_size, std::string* out);

enum class FrameState { kWhole, kPartial, kCompressed, kTooLarge };

// Reads the first frame of `bytes`; `message` is the frame without its head.
FrameState FirstGrpcFrame(std::string_view bytes, size_t max_message, std::string_view* message);

// Returns kOk if a body is exactly one message, otherwise the status that says why not.
GrpcStatus UnaryMessage(std::string_view body, size_t max_message, std::string_view* message,
                        std::string* why);

// Encodes the value of grpc-message: percent-encoded UTF-8.
std::string PercentEncode(std::string_view text);

// Parses the value of grpc-timeout: at most 8 digits and a unit. Empty if it is malformed.
std::optional<std::chrono::nanoseconds> ParseGrpcTimeout(std::string_view value);

// The gRPC status of a call that ended with an HTTP status before it reached a service.
GrpcStatus GrpcStatusOfHttp(int http_status);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_FRAMING_H_
