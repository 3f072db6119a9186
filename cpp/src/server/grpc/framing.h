// How gRPC puts messages, statuses and time-outs into HTTP/2.
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

// "application/grpc", perhaps with "+proto" or parameters.
bool IsGrpcContentType(std::string_view value);

// Appends the head of the frame of a message.
void AppendGrpcFrameHead(size_t message_size, std::string* out);

enum class FrameState { kWhole, kPartial, kCompressed, kTooLarge };

// The first frame of `bytes`; `message` is without its head.
FrameState FirstGrpcFrame(std::string_view bytes, size_t max_message, std::string_view* message);

// A status that says why a body is not exactly one message; kOk if it is one.
GrpcStatus UnaryMessage(std::string_view body, size_t max_message, std::string_view* message,
                        std::string* why);

// The value of grpc-message: percent-encoded UTF-8.
std::string PercentEncode(std::string_view text);

// The value of grpc-timeout: at most 8 digits and a unit. Empty if it is malformed.
std::optional<std::chrono::nanoseconds> ParseGrpcTimeout(std::string_view value);

// The status of a call that ended with an HTTP status and not by a service.
GrpcStatus GrpcStatusOfHttp(int http_status);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_FRAMING_H_
