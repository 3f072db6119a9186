#include "server/grpc/framing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <chrono>
#include <string>

namespace tidegate::server {
namespace {

using namespace std::chrono_literals;

// The bytes of a literal that contains zeros.
template <size_t size>
std::string Bytes(const char (&literal)[size]) {
  return {literal, size - 1};
}

TEST(GrpcContentTypeTest, AcceptsOnlyProtobuf) {
  EXPECT_TRUE(IsGrpcContentType("application/grpc"));
  EXPECT_TRUE(IsGrpcContentType("application/grpc+proto"));
  EXPECT_TRUE(IsGrpcContentType("application/grpc;charset=utf-8"));
  EXPECT_FALSE(IsGrpcContentType("application/grpc-web"));
  EXPECT_FALSE(IsGrpcContentType("application/grpc+json"));
  EXPECT_FALSE(IsGrpcContentType("application/json"));
  EXPECT_FALSE(IsGrpcContentType(""));
}

TEST(GrpcFrameTest, ReadsTheFrameThatWasWritten) {
  for (const size_t size : {0, 1, 255, 256, 70'000}) {
    std::string bytes;
    AppendGrpcFrameHead(size, &bytes);
    EXPECT_EQ(bytes.size(), kGrpcFrameHead);
    bytes.append(size, 'x');
    GrpcFrame frame;
    EXPECT_EQ(FirstGrpcFrame(bytes + "more", 1 << 20, &frame), FrameState::kWhole);
    EXPECT_EQ(frame.content.size(), size);
    EXPECT_FALSE(frame.packed);
    if (size == 0) continue;
    bytes.pop_back();
    EXPECT_EQ(FirstGrpcFrame(bytes, 1 << 20, &frame), FrameState::kPartial);
  }
}

TEST(GrpcFrameTest, RefusesMessagesAboveTheBound) {
  GrpcFrame frame;
  EXPECT_EQ(FirstGrpcFrame(Bytes("\0\0\0\0\x0a"), 9, &frame), FrameState::kTooLarge);
  EXPECT_EQ(FirstGrpcFrame(Bytes("\0\xff\xff\xff\xff"), 9, &frame), FrameState::kTooLarge);
  EXPECT_EQ(FirstGrpcFrame(Bytes("\2"), 9, &frame), FrameState::kMalformed);
}

GrpcStatus Unary(const std::string& body, GrpcEncoding encoding, size_t most, std::string* text) {
  std::string unpacked;
  std::string_view message;
  std::string why;
  const GrpcStatus status = UnaryMessage(body, encoding, most, &unpacked, &message, &why);
  EXPECT_EQ(status == GrpcStatus::kOk, why.empty());
  *text = status == GrpcStatus::kOk ? std::string(message) : why;
  return status;
}

TEST(GrpcUnaryTest, ExpectsExactlyOneMessage) {
  std::string text;
  const auto status = [&](const std::string& body) {
    return Unary(body, GrpcEncoding::kIdentity, 9, &text);
  };
  EXPECT_EQ(status(Bytes("\0\0\0\0\2hi")), GrpcStatus::kOk);
  EXPECT_EQ(text, "hi");
  EXPECT_EQ(status(""), GrpcStatus::kInternal);
  EXPECT_EQ(text, "the call has no message; expected one");
  EXPECT_EQ(status(Bytes("\0\0\0\0\2h")), GrpcStatus::kInternal);
  EXPECT_EQ(status(Bytes("\0\0\0\0\2hi\0")), GrpcStatus::kUnimplemented);
  EXPECT_EQ(text, "the call has several messages; expected one");
  EXPECT_EQ(status(Bytes("\1\0\0\0\2hi")), GrpcStatus::kInternal);
  EXPECT_EQ(text, "the message is packed and the call names no encoding; expected grpc-encoding");
  EXPECT_EQ(status(Bytes("\2\0\0\0\2hi")), GrpcStatus::kInternal);
  EXPECT_EQ(status(Bytes("\0\0\0\1\0")), GrpcStatus::kResourceExhausted);
}

std::string Framed(const std::string& packed) {
  std::string body;
  AppendGrpcFrameHead(packed.size(), &body);
  body[0] = 1;
  return body + packed;
}

std::string Packed(const std::string& text, GrpcEncoding encoding) {
  z_stream stream{};
  const int format = encoding == GrpcEncoding::kGzip ? 16 : 0;
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + format, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  std::string copy = text;
  stream.next_in = reinterpret_cast<Bytef*>(copy.data());
  stream.avail_in = static_cast<uInt>(copy.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

TEST(GrpcPackedTest, UnpacksMessagesOfAnySizeUpToTheBound) {
  for (const GrpcEncoding encoding : {GrpcEncoding::kGzip, GrpcEncoding::kDeflate}) {
    for (const size_t size : {0, 1, 16'383, 16'384, 16'385, 65'536, 300'000}) {
      std::string sent(size, 'x');
      for (size_t i = 0; i < size; i += 3) sent[i] = static_cast<char>(i * i >> 3);
      const std::string body = Framed(Packed(sent, encoding));
      std::string text;
      EXPECT_EQ(Unary(body, encoding, 300'000, &text), GrpcStatus::kOk) << size;
      EXPECT_EQ(text, sent);
      if (size < 2) continue;
      EXPECT_NE(Unary(body, encoding, size - 1, &text), GrpcStatus::kOk) << size;
    }
  }
}

TEST(GrpcPackedTest, AMessageThatUnpacksFarBeyondTheBoundIsRefused) {
  const std::string bomb = Framed(Packed(std::string(8 << 20, '\0'), GrpcEncoding::kGzip));
  EXPECT_LT(bomb.size(), 10'000U);
  std::string message;
  std::string why;
  EXPECT_EQ(UnpackGrpc(std::string_view(bomb).substr(kGrpcFrameHead), GrpcEncoding::kGzip, 100'000,
                       &message, &why),
            GrpcStatus::kResourceExhausted);
  EXPECT_EQ(why, "the message unpacks to more than 100000 bytes; expected a shorter one");
  EXPECT_LE(message.size(), 100'001U) << "no more is unpacked";
}

TEST(GrpcPackedTest, AFewBytesMayNotUnpackToMany) {
  const std::string longest = Packed(std::string(kAlwaysUnpacked, 'x'), GrpcEncoding::kGzip);
  std::string message;
  std::string why;
  EXPECT_EQ(UnpackGrpc(longest, GrpcEncoding::kGzip, 1 << 20, &message, &why), GrpcStatus::kOk);
  EXPECT_EQ(message.size(), kAlwaysUnpacked);
  const std::string beyond = Packed(std::string(kAlwaysUnpacked + 1, 'x'), GrpcEncoding::kGzip);
  EXPECT_EQ(UnpackGrpc(beyond, GrpcEncoding::kGzip, 1 << 20, &message, &why),
            GrpcStatus::kResourceExhausted);
  EXPECT_EQ(why,
            "the message unpacks to more than 65536 bytes; expected at most 64 KiB, or 100 times "
            "as many as it has when it is packed");
  EXPECT_EQ(message.size(), kAlwaysUnpacked + 1) << "no more is unpacked";
}

TEST(GrpcPackedTest, RefusesWhatIsNotExactlyOnePackedMessage) {
  const std::string packed = Packed("hello", GrpcEncoding::kGzip);
  std::string text;
  for (const std::string& wrong :
       {std::string(), std::string("hello"), packed + "x", packed + packed,
        packed.substr(0, packed.size() - 1), Packed("hello", GrpcEncoding::kDeflate)}) {
    EXPECT_EQ(Unary(Framed(wrong), GrpcEncoding::kGzip, 1000, &text), GrpcStatus::kInternal);
    EXPECT_EQ(text,
              "the packed message is malformed; expected what its grpc-encoding names, whole");
  }
  EXPECT_EQ(Unary(Framed(packed), GrpcEncodingOf("br"), 1000, &text), GrpcStatus::kUnimplemented);
  EXPECT_EQ(text, "the encoding of the message is unknown; expected one of identity,deflate,gzip");
  EXPECT_EQ(Unary(Framed(packed), GrpcEncodingOf("identity"), 1000, &text), GrpcStatus::kInternal);
  EXPECT_EQ(Unary(Bytes("\0\0\0\0\2hi"), GrpcEncodingOf("br"), 9, &text), GrpcStatus::kOk)
      << "is not packed";
}

TEST(GrpcMessageTest, IsPercentEncoded) {
  EXPECT_EQ(PercentEncode("plain text ~"), "plain text ~");
  EXPECT_EQ(PercentEncode("100%\r\n\x7f"), "100%25%0D%0A%7F");
  EXPECT_EQ(PercentEncode("é"), "%C3%A9");
}

TEST(GrpcTimeoutTest, HasDigitsAndAUnit) {
  EXPECT_EQ(ParseGrpcTimeout("1H"), 1h);
  EXPECT_EQ(ParseGrpcTimeout("2M"), 2min);
  EXPECT_EQ(ParseGrpcTimeout("3S"), 3s);
  EXPECT_EQ(ParseGrpcTimeout("4m"), 4ms);
  EXPECT_EQ(ParseGrpcTimeout("5u"), 5us);
  EXPECT_EQ(ParseGrpcTimeout("99999999n"), 99999999ns);
  EXPECT_EQ(ParseGrpcTimeout("99999999H"), 24h * 365) << "no sum overflows";
  for (const char* malformed : {"", "H", "1", "1s", "-1S", "1.5S", " 1S", "123456789S"}) {
    EXPECT_FALSE(ParseGrpcTimeout(malformed).has_value()) << malformed;
  }
}

}  // namespace
}  // namespace tidegate::server
