// Messages of gRPC that a client has packed.
#ifndef TIDEGATE_SERVER_GRPC_PACKED_MESSAGE_H_
#define TIDEGATE_SERVER_GRPC_PACKED_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/call.h"

namespace tidegate::server {

enum class GrpcEncoding : uint8_t { kIdentity, kDeflate, kGzip, kUnknown };

// The value of grpc-accept-encoding.
inline constexpr std::string_view kGrpcEncodings = "identity,deflate,gzip";

// The encoding that a value of grpc-encoding names.
GrpcEncoding GrpcEncodingOf(std::string_view name);

// Unpacks a message of at most `max_message` bytes. No more than those are ever unpacked. Returns
// kOk, or the status that says why not.
GrpcStatus UnpackGrpc(std::string_view packed, GrpcEncoding encoding, size_t max_message,
                      std::string* message, std::string* why);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_PACKED_MESSAGE_H_
