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

// A message that unpacks to more than this is refused if it is also more than kMostGrowth times as
// long as it was packed: a few bytes shall not cost the work of many.
inline constexpr size_t kAlwaysUnpacked = 64 << 10;
inline constexpr size_t kMostGrowth = 100;

// Unpacks a message of at most `max_message` bytes, and at most as above. No more than those are
// ever unpacked. Returns kOk, or the status that says why not.
GrpcStatus UnpackGrpc(std::string_view packed, GrpcEncoding encoding, size_t max_message,
                      std::string* message, std::string* why);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_PACKED_MESSAGE_H_
