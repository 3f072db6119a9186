#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/front/chunks.h"
#include "server/front/http1_head.h"
#include "session_testing.h"

namespace tidegate::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr std::string_view kHead = "POST /echo HTTP/1.1\r\nHost: t\r\n";

std::string Post(std::string_view path, std::string_view body) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: t\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         std::string(body);
}

class Http1SessionTest : public ::testing::Test {
 protected:
  void Use(const FrontOptions& options) {
    setting_ = std::make_unique<TestSetting>(options);
    session_ = MakeHttp1Session(&setting_->around, 1, {"peer"});
  }
  void SetUp() override { Use({}); }

  std::string Receive(std::string_view bytes) {
    session_->Receive(bytes);
    return setting_->Output(session_.get());
  }

  std::unique_ptr<TestSetting> setting_;
  std::unique_ptr<Session> session_;
};

TEST_F(Http1SessionTest, AnswersHoweverTheBytesAreCut) {
  const std::string chunked(std::string(kHead) +
                            "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n");
  for (const std::string& request : {Post("/echo", "hello"), chunked}) {
    for (size_t cut = 0; cut <= request.size(); ++cut) {
      session_->Receive(request.substr(0, cut));
      session_->Receive(request.substr(cut));
      EXPECT_THAT(setting_->Output(session_.get()), EndsWith("\r\n\r\nhello")) << cut;
      EXPECT_FALSE(session_->busy());
    }
  }
}

TEST_F(Http1SessionTest, AnswersPipelinedRequestsInOrder) {
  const std::string out = Receive(Post("/later", "1") + Post("/echo", "second"));
  EXPECT_THAT(out, IsEmpty());
  EXPECT_FALSE(session_->wants_input());
  Answer answer;
  answer.body = "first";
  setting_->service->pending.at(0)->Send(answer);
  setting_->Deliver(session_.get());
  const std::string both = setting_->Output(session_.get());
  EXPECT_THAT(both, HasSubstr("first"));
  EXPECT_LT(both.find("first"), both.find("second"));
}

TEST_F(Http1SessionTest, AnAnswerThatComesTooLateIsDropped) {
  (void)Receive(Post("/later", "1"));
  setting_->Pass(session_.get(), setting_->around.options.answer_time);
  EXPECT_THAT(setting_->Output(session_.get()), StartsWith("HTTP/1.1 504 "));
  EXPECT_TRUE(session_->over());
  setting_->service->pending.at(0)->Send({});
  setting_->Deliver(session_.get());
  EXPECT_THAT(setting_->Output(session_.get()), IsEmpty());
}

TEST_F(Http1SessionTest, BoundsTheTimeOfAWholeRequest) {
  const FrontOptions& options = setting_->around.options;
  (void)Receive("POST");
  const Instant due = session_->due();
  EXPECT_EQ(due, setting_->around.now + options.request_time);
  setting_->Pass(session_.get(), options.request_time / 2);
  (void)Receive(" /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nab");
  EXPECT_EQ(session_->due(), due) << "more bytes give no more time";
  setting_->Pass(session_.get(), options.request_time / 2 - milliseconds(1));
  EXPECT_THAT(setting_->Output(session_.get()), IsEmpty());
  setting_->Pass(session_.get(), milliseconds(1));
  EXPECT_THAT(setting_->Output(session_.get()), StartsWith("HTTP/1.1 408 "));
  EXPECT_EQ(setting_->counters.timeouts_request.read(), 1U);
}

TEST_F(Http1SessionTest, IsClosedWhenIdle) {
  (void)Receive(Post("/echo", "x"));
  setting_->Pass(session_.get(), setting_->around.options.idle_time - milliseconds(1));
  EXPECT_FALSE(session_->over());
  setting_->Pass(session_.get(), milliseconds(1));
  EXPECT_TRUE(session_->over());
  EXPECT_EQ(setting_->counters.timeouts_idle.read(), 1U);
}

TEST_F(Http1SessionTest, BoundsTheHead) {
  Use({.header_bytes = 100});
  EXPECT_THAT(Receive(std::string(kHead) + "X: " + std::string(100, 'x')),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_TRUE(session_->over());
}

TEST_F(Http1SessionTest, BoundsTheBody) {
  Use({.body_bytes = 4});
  EXPECT_THAT(Receive(Post("/echo", "1234")), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Receive(Post("/echo", "12345")), StartsWith("HTTP/1.1 413 "));
}

TEST_F(Http1SessionTest, StopsReadingWhileItsOutputWaits) {
  const std::string request = Post("/echo", std::string(30'000, 'x'));
  std::string many;
  for (int i = 0; i < 10; ++i) many += request;
  session_->Receive(many);
  EXPECT_LT(setting_->service->calls, 10);
  EXPECT_TRUE(session_->wants_turn());
  EXPECT_FALSE(session_->wants_input());
  while (session_->wants_turn()) {
    (void)setting_->Output(session_.get());
    session_->Receive({});
  }
  EXPECT_EQ(setting_->service->calls, 10);
}

TEST_F(Http1SessionTest, ADrainLetsTheRequestInProgressFinish) {
  (void)Receive(Post("/later", "x"));
  setting_->around.draining = true;
  session_->Drain();
  EXPECT_FALSE(session_->over());
  setting_->service->pending.at(0)->Send({});
  setting_->Deliver(session_.get());
  EXPECT_THAT(setting_->Output(session_.get()), HasSubstr("connection: close\r\n"));
  EXPECT_TRUE(session_->over());
}

TEST_F(Http1SessionTest, ADrainAnswersARequestThatMeetsIt) {
  setting_->around.draining = true;
  session_->Drain();
  EXPECT_FALSE(session_->over());
  EXPECT_THAT(Receive(Post("/echo", "x")), HasSubstr("connection: close\r\n"));
  EXPECT_TRUE(session_->over());
}

TEST_F(Http1SessionTest, ADrainClosesAConnectionThatSendsNothing) {
  setting_->around.draining = true;
  session_->Drain();
  setting_->Pass(session_.get(), milliseconds(999));
  EXPECT_FALSE(session_->over());
  setting_->Pass(session_.get(), milliseconds(1));
  EXPECT_TRUE(session_->over());
  EXPECT_EQ(setting_->counters.timeouts_idle.read(), 0U);
}

TEST_F(Http1SessionTest, ADrainLeavesALongIdleConnectionAWhileToo) {
  EXPECT_THAT(Receive(Post("/echo", "x")), HasSubstr("connection: keep-alive\r\n"));
  setting_->Pass(session_.get(), seconds(100));
  setting_->around.draining = true;
  setting_->around.drain_began = setting_->around.now;
  session_->Drain();
  setting_->Pass(session_.get(), milliseconds(999));
  EXPECT_FALSE(session_->over());
  setting_->Pass(session_.get(), milliseconds(1));
  EXPECT_TRUE(session_->over());
}

TEST_F(Http1SessionTest, AnAnswerCannotSmuggleHeaders) {
  (void)Receive(Post("/later", "x"));
  Answer answer;
  answer.headers = {{"good", "value"}, {"bad", "a\r\nb: c"}, {"b:ad", "x"}, {"Upper", "x"}};
  setting_->service->pending.at(0)->Send(answer);
  setting_->Deliver(session_.get());
  const std::string out = setting_->Output(session_.get());
  EXPECT_THAT(out, HasSubstr("good: value\r\n"));
  EXPECT_EQ(out.find("b: c"), std::string::npos);
  EXPECT_EQ(out.find("b:ad"), std::string::npos);
  EXPECT_EQ(out.find("Upper"), std::string::npos);
}

TEST_F(Http1SessionTest, RoutesByPathAndPrefix) {
  EXPECT_THAT(Receive("GET /files/a/b?c=d HTTP/1.1\r\nHost: t\r\n\r\n"),
              StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(setting_->service->path, "/files/a/b");
  EXPECT_THAT(Receive("GET /files HTTP/1.1\r\nHost: t\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Receive("GET /later HTTP/1.1\r\nHost: t\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
}

TEST(ChunksTest, IsBoundedByTheContentAlone) {
  Chunks chunks(5, 100);
  std::string body;
  std::string_view bytes = "5\r\nhello\r\n";
  EXPECT_EQ(chunks.Read(&bytes, &body), Chunks::State::kPartial);
  bytes = "1\r\nx";
  EXPECT_EQ(chunks.Read(&bytes, &body), Chunks::State::kTooLarge);
}

TEST(ChunksTest, LeavesTheBytesThatFollow) {
  Chunks chunks(5, 100);
  std::string body;
  std::string_view bytes = "5\r\nhello\r\n0\r\nTrailer: x\r\n\r\nGET";
  EXPECT_EQ(chunks.Read(&bytes, &body), Chunks::State::kDone);
  EXPECT_EQ(body, "hello");
  EXPECT_EQ(bytes, "GET");
}

TEST(Http1HeadTest, NamesAreInLowerCaseAndValuesTrimmed) {
  Http1Head head;
  const Http1Error error =
      ParseHttp1Head("GET /a HTTP/1.1\r\nHost:\t t \r\nX-Y:a b\r\nEmpty:\r\n\r\n", 10, &head);
  EXPECT_EQ(error.status, 0) << error.why;
  ASSERT_EQ(head.headers.size(), 3U);
  EXPECT_EQ(head.headers[0].name, "host");
  EXPECT_EQ(head.headers[0].value, "t");
  EXPECT_EQ(head.headers[1].name, "x-y");
  EXPECT_EQ(head.headers[1].value, "a b");
  EXPECT_EQ(head.headers[2].value, "");
}

}  // namespace
}  // namespace tidegate::server
