#include "server/grpc/packed_message.h"

#define ZLIB_CONST  // zlib only reads its input
#include <zlib.h>

#include <algorithm>
#include <new>

#include "absl/strings/str_cat.h"

namespace tidegate::server {
namespace {

constexpr int kWindowBits = MAX_WBITS;    // of zlib's own format, which gRPC calls deflate
constexpr int kGzip = 16;                 // is added to them for the format of gzip
constexpr size_t kFirstPiece = 16 << 10;  // bytes of room for a message that is small
constexpr size_t kGrowth = 4;

class Inflating {
 public:
  Inflating(std::string_view packed, int window_bits) {
    if (inflateInit2(&stream, window_bits) != Z_OK) throw std::bad_alloc();
    stream.next_in = reinterpret_cast<const Bytef*>(packed.data());
    stream.avail_in = static_cast<uInt>(packed.size());
  }
  ~Inflating() { (void)inflateEnd(&stream); }
  Inflating(const Inflating&) = delete;
  Inflating& operator=(const Inflating&) = delete;

  z_stream stream{};
};

}  // namespace

GrpcEncoding GrpcEncodingOf(std::string_view name) {
  if (name == "gzip") return GrpcEncoding::kGzip;
  if (name == "identity") return GrpcEncoding::kIdentity;
  if (name == "deflate") return GrpcEncoding::kDeflate;
  return GrpcEncoding::kUnknown;
}

GrpcStatus UnpackGrpc(std::string_view packed, GrpcEncoding encoding, size_t max_message,
                      std::string* message, std::string* why) {
  if (encoding == GrpcEncoding::kUnknown) {
    *why = "the encoding of the message is unknown; expected one of ";
    why->append(kGrpcEncodings);
    return GrpcStatus::kUnimplemented;
  }
  if (encoding == GrpcEncoding::kIdentity) {
    *why = "the message is packed and the call names no encoding; expected grpc-encoding";
    return GrpcStatus::kInternal;
  }
  const size_t most = std::min(max_message, std::max(kAlwaysUnpacked, kMostGrowth * packed.size()));
  Inflating inflating(packed, kWindowBits + (encoding == GrpcEncoding::kGzip ? kGzip : 0));
  z_stream& stream = inflating.stream;
  message->clear();
  int state = Z_OK;
  while (state == Z_OK) {
    const size_t have = stream.total_out;
    // With room for one byte more a message that is too long shows itself.
    const size_t room = std::min(std::max(kFirstPiece, have * kGrowth), most + 1);
    if (have == room) break;
    message->resize(room);
    stream.next_out = reinterpret_cast<Bytef*>(message->data() + have);
    stream.avail_out = static_cast<uInt>(room - have);
    state = inflate(&stream, Z_NO_FLUSH);
  }
  if (stream.total_out > most) {
    *why = absl::StrCat("the message unpacks to more than ", most, " bytes; expected ",
                        most == max_message
                            ? "a shorter one"
                            : "at most 64 KiB, or 100 times as many as it has when it is packed");
    return GrpcStatus::kResourceExhausted;
  }
  if (state == Z_MEM_ERROR) throw std::bad_alloc();
  if (state != Z_STREAM_END || stream.avail_in > 0) {
    *why = "the packed message is malformed; expected what its grpc-encoding names, whole";
    return GrpcStatus::kInternal;
  }
  message->resize(stream.total_out);
  return GrpcStatus::kOk;
}

}  // namespace tidegate::server
