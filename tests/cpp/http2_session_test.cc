#include "server/front/http2_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nghttp2/nghttp2.h>

#include <map>
#include <string>
#include <tuple>

#include "session_testing.h"

namespace tidegate::server {
namespace {

using ::testing::IsEmpty;

// A client by nghttp2, and the session that it is connected to.
class Http2SessionTest : public ::testing::Test {
 protected:
  struct Response {
    std::map<std::string, std::string> headers;
    std::string body;
    bool ended = false;
    uint32_t reset = 0;  // error code
  };

  void Use(const FrontOptions& options) {
    Clear();
    setting_ = std::make_unique<TestSetting>(options);
    session_ = MakeHttp2Session(&setting_->around, 1, {"peer"});
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, OnHeader);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, OnData);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, OnFrame);
    nghttp2_session_client_new(&client_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_submit_settings(client_, NGHTTP2_FLAG_NONE, nullptr, 0);
  }
  void SetUp() override { Use({}); }
  void TearDown() override { Clear(); }
  void Clear() {
    session_ = nullptr;
    if (client_ != nullptr) nghttp2_session_del(client_);
    client_ = nullptr;
    responses_.clear();
    goaways_.clear();
  }

  // The bytes that the client has for the server.
  std::string FromClient() {
    std::string all;
    const uint8_t* bytes = nullptr;
    ssize_t size = 0;
    while ((size = nghttp2_session_mem_send(client_, &bytes)) > 0) {
      all.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
    }
    return all;
  }

  // All bytes that both sides have for each other.
  void Exchange() {
    bool moved = true;
    while (moved) {
      moved = false;
      const uint8_t* bytes = nullptr;
      ssize_t size = 0;
      while ((size = nghttp2_session_mem_send(client_, &bytes)) > 0) {
        session_->Receive({reinterpret_cast<const char*>(bytes), static_cast<size_t>(size)});
        moved = true;
      }
      setting_->Deliver(session_.get());
      const std::string out = setting_->Output(session_.get());
      if (out.empty()) continue;
      moved = true;
      (void)nghttp2_session_mem_recv(client_, reinterpret_cast<const uint8_t*>(out.data()),
                                     out.size());
    }
  }

  int32_t Submit(const std::string& path, const std::string& body,
                 std::map<std::string, std::string> headers = {}) {
    headers.insert(
        {{":method", "POST"}, {":path", path}, {":scheme", "http"}, {":authority", "t"}});
    std::vector<nghttp2_nv> fields;
    for (const auto& [name, value] : headers) {
      const auto bytes = [](const std::string& text) {
        return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
      };
      fields.push_back({bytes(name), bytes(value), name.size(), value.size(), 0});
    }
    bodies_.push_back(std::make_unique<std::string>(body));
    nghttp2_data_provider provider{};
    provider.source.ptr = bodies_.back().get();
    provider.read_callback = [](nghttp2_session*, int32_t, uint8_t* buffer, size_t size,
                                uint32_t* flags, nghttp2_data_source* source, void*) -> ssize_t {
      std::string& left = *static_cast<std::string*>(source->ptr);
      if (left == "wait") return NGHTTP2_ERR_DEFERRED;
      const size_t taken = std::min(size, left.size());
      left.copy(reinterpret_cast<char*>(buffer), taken);
      left.erase(0, taken);
      if (left.empty()) *flags |= NGHTTP2_DATA_FLAG_EOF;
      return static_cast<ssize_t>(taken);
    };
    return nghttp2_submit_request(client_, nullptr, fields.data(), fields.size(), &provider,
                                  nullptr);
  }

  int32_t SubmitGrpc(const std::string& path, const std::string& message,
                     std::map<std::string, std::string> headers = {}) {
    headers.insert({{"content-type", "application/grpc"}, {"te", "trailers"}});
    return Submit(path, std::string(4, '\0') + static_cast<char>(message.size()) + message,
                  std::move(headers));
  }

  Response Call(const std::string& path, const std::string& body) {
    const int32_t id = Submit(path, body);
    Exchange();
    return responses_[id];
  }

  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                      void* self) {
    Response& response = static_cast<Http2SessionTest*>(self)->responses_[frame->hd.stream_id];
    response.headers[std::string(reinterpret_cast<const char*>(name), name_size)] =
        std::string(reinterpret_cast<const char*>(value), value_size);
    return 0;
  }
  static int OnData(nghttp2_session*, uint8_t, int32_t id, const uint8_t* bytes, size_t size,
                    void* self) {
    static_cast<Http2SessionTest*>(self)->responses_[id].body.append(
        reinterpret_cast<const char*>(bytes), size);
    return 0;
  }
  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* self) {
    auto& test = *static_cast<Http2SessionTest*>(self);
    Response& response = test.responses_[frame->hd.stream_id];
    if (frame->hd.type == NGHTTP2_GOAWAY) test.goaways_.push_back(frame->goaway.error_code);
    if (frame->hd.type == NGHTTP2_RST_STREAM) response.reset = frame->rst_stream.error_code;
    const bool carries = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
    if (carries && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) response.ended = true;
    return 0;
  }

  std::unique_ptr<TestSetting> setting_;
  std::unique_ptr<Session> session_;
  nghttp2_session* client_ = nullptr;
  std::vector<std::unique_ptr<std::string>> bodies_;
  std::map<int32_t, Response> responses_;
  std::vector<uint32_t> goaways_;
};

TEST_F(Http2SessionTest, AnswersARequest) {
  const std::string body(200'000, 'x');
  const Response response = Call("/echo", body);
  EXPECT_EQ(response.headers.at(":status"), "200");
  EXPECT_EQ(response.headers.at("content-length"), "200000");
  EXPECT_EQ(response.body, body);
  EXPECT_FALSE(session_->busy());
}

TEST_F(Http2SessionTest, AnswersACallOfGrpc) {
  const int32_t id = SubmitGrpc("/t.T/Echo", "hello");
  Exchange();
  EXPECT_EQ(responses_[id].headers.at("grpc-status"), "0");
  EXPECT_EQ(responses_[id].body.substr(5), "hello");
}

TEST_F(Http2SessionTest, OnlyGrpcIsAnsweredUnderAForeignName) {
  Use({.checks_hosts = true, .hosts = {"limits.example.com"}});
  const auto status = [&](const std::string& name) {
    const int32_t id = Submit("/echo", "x", {{":authority", name}});
    Exchange();
    return responses_[id].headers.at(":status");
  };
  EXPECT_EQ(status("evil.example.com"), "421");
  EXPECT_EQ(status("127.0.0.1:8080"), "200");
  EXPECT_EQ(status("Limits.example.com:8080"), "200");
  const int32_t id = SubmitGrpc("/t.T/Echo", "x", {{":authority", "evil.example.com"}});
  Exchange();
  EXPECT_EQ(responses_[id].headers.at("grpc-status"), "0");
}

TEST_F(Http2SessionTest, ACallEndsAtItsOwnDeadline) {
  const int32_t id = SubmitGrpc("/t.T/Later", "x", {{"grpc-timeout", "2S"}});
  Exchange();
  EXPECT_EQ(session_->due(), setting_->around.now + seconds(2));
  setting_->Pass(session_.get(), milliseconds(1999));
  Exchange();
  EXPECT_FALSE(responses_[id].ended);
  setting_->Pass(session_.get(), milliseconds(1));
  Exchange();
  EXPECT_EQ(responses_[id].headers.at("grpc-status"), "4");
  setting_->service->pending.at(0)->Send({});  // is dropped
  Exchange();
  EXPECT_FALSE(session_->busy());
}

TEST_F(Http2SessionTest, ARequestThatDoesNotArriveInTimeIsRefused) {
  const int32_t id = Submit("/echo", "wait");
  Exchange();
  EXPECT_TRUE(session_->busy());
  setting_->Pass(session_.get(), setting_->around.options.request_time);
  Exchange();
  EXPECT_EQ(responses_[id].headers.at(":status"), "408");
  EXPECT_FALSE(session_->over());
  EXPECT_EQ(Call("/echo", "next").body, "next");
}

TEST_F(Http2SessionTest, ACallWithoutAnAnswerInTimeIsRefused) {
  const int32_t id = Submit("/later", "x");
  Exchange();
  setting_->Pass(session_.get(), setting_->around.options.answer_time);
  Exchange();
  EXPECT_EQ(responses_[id].headers.at(":status"), "504");
}

TEST_F(Http2SessionTest, AnAnswerThatTheClientDoesNotTakeInTimeIsReset) {
  nghttp2_settings_entry no_window{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
  nghttp2_submit_settings(client_, NGHTTP2_FLAG_NONE, &no_window, 1);
  const int32_t id = Submit("/echo", "x");
  Exchange();
  setting_->Pass(session_.get(), setting_->around.options.take_time - milliseconds(1));
  Exchange();
  EXPECT_EQ(responses_[id].reset, 0U);
  setting_->Pass(session_.get(), milliseconds(1));
  Exchange();
  EXPECT_EQ(responses_[id].reset, static_cast<uint32_t>(NGHTTP2_CANCEL));
  EXPECT_FALSE(session_->busy());
}

TEST_F(Http2SessionTest, IdleConnectionsAreClosedWithAGoaway) {
  (void)Call("/echo", "x");
  EXPECT_EQ(session_->due(), setting_->around.now + setting_->around.options.idle_time);
  setting_->Pass(session_.get(), setting_->around.options.idle_time);
  Exchange();
  EXPECT_THAT(goaways_, ::testing::ElementsAre(NGHTTP2_NO_ERROR));
  EXPECT_TRUE(session_->over());
}

TEST_F(Http2SessionTest, ADrainSendsTwoGoawaysAndWaitsForTheAnswer) {
  const int32_t id = Submit("/later", "x");
  Exchange();
  session_->Drain();
  Exchange();
  EXPECT_EQ(goaways_.size(), 2U) << "the second after the PING was answered";
  EXPECT_FALSE(session_->over());
  Answer answer;
  answer.body = "last";
  setting_->service->pending.at(0)->Send(answer);
  Exchange();
  EXPECT_EQ(responses_[id].body, "last");
  EXPECT_TRUE(session_->over());
}

TEST_F(Http2SessionTest, ADrainDoesNotWaitForASilentClient) {
  session_->Drain();
  (void)setting_->Output(session_.get());
  EXPECT_FALSE(session_->over());
  EXPECT_EQ(session_->due(), setting_->around.now + seconds(1));
  setting_->Pass(session_.get(), seconds(1));
  (void)setting_->Output(session_.get());
  EXPECT_TRUE(session_->over());
}

TEST_F(Http2SessionTest, ResetsAreCountedOverTime) {
  Use({.resets_per_second = 2, .reset_burst = 10});
  const auto reset = [&] {
    const int32_t id = Submit("/later", "x");
    Exchange();
    nghttp2_submit_rst_stream(client_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    Exchange();
  };
  for (int i = 0; i < 10; ++i) reset();
  EXPECT_THAT(goaways_, IsEmpty());
  setting_->around.now += seconds(1);
  reset();
  reset();
  EXPECT_THAT(goaways_, IsEmpty());
  reset();
  EXPECT_THAT(goaways_, ::testing::ElementsAre(NGHTTP2_ENHANCE_YOUR_CALM));
  EXPECT_TRUE(session_->over());
}

TEST_F(Http2SessionTest, OnlyTheBoundOfTheServiceCountsResets) {
  const FrontOptions options;
  Use(options);
  for (int i = 0; i < options.reset_burst + 90; ++i) {
    if (i == options.reset_burst) setting_->around.now += seconds(1);
    const int32_t id = Submit("/later", "x");
    Exchange();
    nghttp2_submit_rst_stream(client_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    Exchange();
    setting_->service->pending.back()->Send({});  // so that few are under way
    Exchange();
    ASSERT_THAT(goaways_, IsEmpty()) << i;
  }
}

TEST_F(Http2SessionTest, AClientThatResetsACallIsNotAnswered) {
  const int32_t id = Submit("/later", "x");
  Exchange();
  nghttp2_submit_rst_stream(client_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
  Exchange();
  EXPECT_FALSE(session_->busy());
  setting_->service->pending.at(0)->Send({});
  Exchange();
  EXPECT_THAT(responses_[id].headers, IsEmpty());
}

TEST_F(Http2SessionTest, ARequestThatIsResetInTheSameBytesCostsNoCall) {
  Exchange();
  std::string bytes;
  for (int i = 0; i < 3; ++i) {
    const int32_t id = Submit("/later", "x");
    bytes += FromClient();
    nghttp2_submit_rst_stream(client_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    bytes += FromClient();
  }
  const int32_t kept = Submit("/echo", "x");
  session_->Receive(bytes + FromClient());
  EXPECT_EQ(setting_->service->calls, 1);
  Exchange();
  EXPECT_EQ(responses_[kept].headers[":status"], "200");
  EXPECT_FALSE(session_->busy());
}

TEST_F(Http2SessionTest, ARequestThatTheServerMustResetInTheSameBytesCostsNoCall) {
  Exchange();
  const int32_t id = Submit("/later", "x");
  std::string bytes = FromClient();
  // A WINDOW_UPDATE that overflows the window of the stream.
  bytes += {0, 0, 4, 8, 0, 0, 0, 0, static_cast<char>(id), '\x7f', '\xff', '\xff', '\xff'};
  session_->Receive(bytes);
  EXPECT_EQ(setting_->service->calls, 0);
  Exchange();
  EXPECT_EQ(responses_[id].reset, static_cast<uint32_t>(NGHTTP2_FLOW_CONTROL_ERROR));
  EXPECT_FALSE(session_->busy());
}

TEST_F(Http2SessionTest, ACallThatIsResetCountsUntilItsServiceHasAnswered) {
  Use({.streams = 2});
  for (int i = 0; i < 2; ++i) {
    const int32_t id = Submit("/later", "x");
    Exchange();
    nghttp2_submit_rst_stream(client_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
    Exchange();
  }
  const int32_t refused = Submit("/later", "x");
  Exchange();
  EXPECT_EQ(responses_[refused].reset, NGHTTP2_REFUSED_STREAM);
  EXPECT_EQ(setting_->service->calls, 2);
  setting_->service->pending.at(0)->Send({});
  setting_->Deliver(session_.get());
  Submit("/later", "x");
  Exchange();
  EXPECT_EQ(setting_->service->calls, 3);
  EXPECT_THAT(goaways_, IsEmpty());
}

TEST_F(Http2SessionTest, AsksTheServiceBeforeItUnpacksAMessage) {
  const auto status = [&](char flag, const std::string& authorization) {
    const int32_t id = Submit("/t.T/Echo", flag + std::string("\0\0\0\1x", 5),
                              {{"content-type", "application/grpc"},
                               {"te", "trailers"},
                               {"grpc-encoding", "gzip"},
                               {"authorization", authorization}});
    Exchange();
    return responses_[id].headers.at("grpc-status");
  };
  EXPECT_EQ(status(1, "none"), "16") << "before it sees that no gzip is there";
  EXPECT_EQ(status(1, "some"), "13");
  EXPECT_EQ(setting_->service->calls, 0);
  EXPECT_EQ(status(0, "none"), "0") << "the service itself sees what is not packed";
}

TEST_F(Http2SessionTest, HeadersThatUnpackFarBeyondTheBoundEndTheConnection) {
  Use({.header_bytes = 1000, .header_count = 10});
  const auto call = [&](int fields) {
    std::map<std::string, std::string> headers;
    for (int i = 0; i < fields; ++i) headers["x" + std::to_string(i)] = std::string(500, 'y');
    const int32_t id = Submit("/echo", "x", headers);
    Exchange();
    return responses_[id];
  };
  EXPECT_EQ(call(4).headers[":status"], "431");
  EXPECT_THAT(goaways_, IsEmpty());
  call(11);
  EXPECT_THAT(goaways_, ::testing::ElementsAre(NGHTTP2_ENHANCE_YOUR_CALM));
  EXPECT_EQ(setting_->counters.floods.read(), 1U);
}

TEST_F(Http2SessionTest, TheOutputOfAConnectionIsBounded) {
  Use({.output_bytes = 1000});
  nghttp2_settings_entry no_window{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
  nghttp2_submit_settings(client_, NGHTTP2_FLAG_NONE, &no_window, 1);
  Submit("/echo", std::string(900, 'x'));
  Exchange();
  EXPECT_FALSE(session_->over());
  Submit("/echo", std::string(900, 'x'));
  Exchange();
  EXPECT_TRUE(session_->over());
  EXPECT_EQ(setting_->counters.slow_readers.read(), 1U);
}

TEST(FrameGuardTest, CountsFramesHoweverTheBytesAreCut) {
  FrontOptions options;
  options.control_frame_burst = 5;
  options.control_frames_per_second = 1;
  const std::string ping("\0\0\x08\x06\0\0\0\0\0abcdefgh", 17);
  std::string bytes(kHttp2Preface);
  for (int i = 0; i < 6; ++i) bytes += ping;
  for (size_t piece = 1; piece < 40; ++piece) {
    FrameGuard guard(options);
    size_t passed = 0;
    while (passed < bytes.size() && guard.Pass(std::string_view(bytes).substr(passed, piece),
                                               Instant()) == FrameGuard::Verdict::kPass) {
      passed += piece;
    }
    EXPECT_LT(passed, bytes.size()) << piece;
    EXPECT_GE(passed + piece, bytes.size() - 8) << piece;
  }
}

TEST(FrameGuardTest, FindsMalformedPrioritiesHoweverTheBytesAreCut) {
  const auto priority = [](char stream, char parent) {
    std::string frame("\0\0\x05\x02\0\0\0\0\0\0\0\0\0\x10", 14);
    frame[8] = stream;
    frame[12] = parent;
    return frame;
  };
  const std::string fine = std::string(kHttp2Preface) + priority(3, 0) + priority(3, 1);
  for (size_t piece = 1; piece < 60; ++piece) {
    for (const auto& [stream, parent, expected] : {std::tuple{3, 5, FrameGuard::Verdict::kPass},
                                                   {3, 3, FrameGuard::Verdict::kMalformed},
                                                   {0, 3, FrameGuard::Verdict::kMalformed}}) {
      const std::string bytes =
          fine + priority(static_cast<char>(stream), static_cast<char>(parent)) + priority(7, 0);
      FrameGuard guard{FrontOptions()};
      auto found = FrameGuard::Verdict::kPass;
      for (size_t at = 0; at < bytes.size() && found == FrameGuard::Verdict::kPass; at += piece) {
        found = guard.Pass(std::string_view(bytes).substr(at, piece), Instant());
      }
      EXPECT_EQ(found, expected) << piece << " " << stream << " " << parent;
    }
  }
}

TEST_F(Http2SessionTest, AMalformedPriorityEndsTheConnection) {
  Exchange();
  session_->Receive(std::string("\0\0\x05\x02\0\0\0\0\x05\0\0\0\x05\x10", 14));
  Exchange();
  EXPECT_THAT(goaways_, ::testing::ElementsAre(NGHTTP2_PROTOCOL_ERROR));
}

// The head of a frame without a payload.
std::string Head(uint8_t kind, uint8_t flags, uint32_t stream) {
  return {0,
          0,
          0,
          static_cast<char>(kind),
          static_cast<char>(flags),
          static_cast<char>(stream >> 24),
          static_cast<char>(stream >> 16),
          static_cast<char>(stream >> 8),
          static_cast<char>(stream)};
}

std::string Headers(uint32_t stream, bool ends) {
  return Head(NGHTTP2_HEADERS, ends ? NGHTTP2_FLAG_END_STREAM : 0, stream);
}

std::string Data(uint32_t stream, bool ends) {
  return Head(NGHTTP2_DATA, ends ? NGHTTP2_FLAG_END_STREAM : 0, stream);
}

std::string ResetOf(uint32_t stream) { return Head(NGHTTP2_RST_STREAM, 0, stream); }

bool Passes(const std::string& frames) {
  FrameGuard guard{FrontOptions()};
  const auto found = guard.Pass(std::string(kHttp2Preface) + frames, Instant());
  EXPECT_TRUE(found == FrameGuard::Verdict::kPass || found == FrameGuard::Verdict::kStreamEnded);
  return found == FrameGuard::Verdict::kPass;
}

TEST(FrameGuardTest, RefusesFramesOnStreamsThatTheClientHasEnded) {
  EXPECT_FALSE(Passes(Headers(1, true) + Headers(1, true)));
  EXPECT_FALSE(Passes(Headers(1, true) + Data(1, true)));
  EXPECT_FALSE(Passes(Headers(1, false) + Data(1, true) + Data(1, true)));
  EXPECT_FALSE(Passes(Headers(1, false) + Headers(1, true) + Data(1, false))) << "after trailers";
  EXPECT_FALSE(Passes(Headers(1, false) + ResetOf(1) + Data(1, true)));
  EXPECT_FALSE(Passes(Headers(1, false) + ResetOf(1) + Headers(0x80000001, true)));
  EXPECT_FALSE(Passes(Headers(5, true) + Headers(3, true))) << "was skipped";
  EXPECT_FALSE(Passes(Headers(2001, false) + Headers(1501, true))) << "was skipped by far";
}

TEST(FrameGuardTest, PassesFramesThatMayBeUnderWay) {
  EXPECT_TRUE(Passes(Headers(1, false) + Data(1, false) + Data(1, false) + Headers(1, true)));
  EXPECT_TRUE(Passes(Headers(1, false) + Headers(3, true) + Data(1, true)));
  EXPECT_TRUE(Passes(Headers(1, true) + ResetOf(1) + ResetOf(1) +
                     Head(NGHTTP2_WINDOW_UPDATE, 0, 1) + Headers(3, true)));
  EXPECT_TRUE(Passes(Headers(1, false) + Headers(1001, false) + Data(1, true))) << "the 501st";
  EXPECT_TRUE(Passes(Headers(1, true) + Headers(1025, false) + Data(1, true))) << "is forgotten";
  EXPECT_TRUE(Passes(Headers(0x7fffffff, false) + Data(0x7fffffff, true)));
  // nghttp2 judges what is no client's to begin, and what was not begun.
  EXPECT_TRUE(Passes(Headers(2, true) + Headers(2, true) + Data(0, true) + Data(9, true)));
}

TEST(FrameGuardTest, FindsEndedStreamsHoweverTheBytesAreCut) {
  std::string bytes(kHttp2Preface);
  for (uint32_t stream = 1; stream < 3001; stream += 2) {
    bytes += Headers(stream, false) + Data(stream, true);
  }
  const size_t fine = bytes.size();
  bytes += Data(2901, false);
  for (size_t piece = 1; piece < 40; ++piece) {
    FrameGuard guard{FrontOptions()};
    size_t at = 0;
    auto found = FrameGuard::Verdict::kPass;
    for (; at < bytes.size() && found == FrameGuard::Verdict::kPass; at += piece) {
      found = guard.Pass(std::string_view(bytes).substr(at, piece), Instant());
    }
    EXPECT_EQ(found, FrameGuard::Verdict::kStreamEnded) << piece;
    EXPECT_GT(at, fine) << piece;
  }
}

TEST_F(Http2SessionTest, AFrameOnAStreamThatTheClientHasEndedEndsTheConnection) {
  (void)Call("/echo", "x");
  session_->Receive(Data(1, true));
  Exchange();
  EXPECT_THAT(goaways_, ::testing::ElementsAre(NGHTTP2_STREAM_CLOSED));
  EXPECT_TRUE(session_->over());
  EXPECT_EQ(setting_->counters.errors_protocol.read(), 1U);
}

TEST_F(Http2SessionTest, AFrameOnAStreamThatTheServerHasEndedIsIgnored) {
  Use({.body_bytes = 3});
  const int32_t id = Submit("/echo", "wait");
  Exchange();
  session_->Receive(Data(static_cast<uint32_t>(id), false));
  session_->Receive(std::string("\0\0\4\0\0\0\0\0\1abcd", 13));
  Exchange();
  EXPECT_EQ(responses_[id].headers.at(":status"), "413");
  session_->Receive(std::string("\0\0\4\0\0\0\0\0\1abcd", 13));
  Exchange();
  EXPECT_THAT(goaways_, IsEmpty());
  EXPECT_FALSE(session_->over());
}

TEST(RateBoundTest, RefillsWithTime) {
  RateBound bound(10, 3);
  const Instant start{};
  EXPECT_TRUE(bound.Take(start));
  EXPECT_TRUE(bound.Take(start));
  EXPECT_TRUE(bound.Take(start));
  EXPECT_FALSE(bound.Take(start));
  EXPECT_TRUE(bound.Take(start + milliseconds(200)));
}

}  // namespace
}  // namespace tidegate::server
