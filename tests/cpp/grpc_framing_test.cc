#include "server/grpc/framing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
    std::string_view message;
    EXPECT_EQ(FirstGrpcFrame(bytes + "more", 1 << 20, &message), FrameState::kWhole);
    EXPECT_EQ(message.size(), size);
    if (size == 0) continue;
    bytes.pop_back();
    EXPECT_EQ(FirstGrpcFrame(bytes, 1 << 20, &message), FrameState::kPartial);
  }
}

TEST(GrpcFrameTest, RefusesMessagesAboveTheBound) {
  std::string_view message;
  EXPECT_EQ(FirstGrpcFrame(Bytes("\0\0\0\0\x0a"), 9, &message), FrameState::kTooLarge);
  EXPECT_EQ(FirstGrpcFrame(Bytes("\0\xff\xff\xff\xff"), 9, &message), FrameState::kTooLarge);
  EXPECT_EQ(FirstGrpcFrame(Bytes("\1"), 9, &message), FrameState::kCompressed);
}

TEST(GrpcUnaryTest, ExpectsExactlyOneMessage) {
  std::string_view message;
  std::string why;
  EXPECT_EQ(UnaryMessage(Bytes("\0\0\0\0\2hi"), 9, &message, &why), GrpcStatus::kOk);
  EXPECT_EQ(message, "hi");
  EXPECT_EQ(UnaryMessage("", 9, &message, &why), GrpcStatus::kInternal);
  EXPECT_EQ(why, "the call has no message; expected one");
  EXPECT_EQ(UnaryMessage(Bytes("\0\0\0\0\2h"), 9, &message, &why), GrpcStatus::kInternal);
  EXPECT_EQ(UnaryMessage(Bytes("\0\0\0\0\2hi\0"), 9, &message, &why), GrpcStatus::kUnimplemented);
  EXPECT_EQ(why, "the call has several messages; expected one");
  EXPECT_EQ(UnaryMessage(Bytes("\1\0\0\0\2hi"), 9, &message, &why), GrpcStatus::kUnimplemented);
  EXPECT_EQ(UnaryMessage(Bytes("\0\0\0\1\0"), 9, &message, &why), GrpcStatus::kResourceExhausted);
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
