// gRPC methods that receive or send more than one message, which only health and reflection have.
#ifndef TIDEGATE_SERVER_GRPC_STREAMING_H_
#define TIDEGATE_SERVER_GRPC_STREAMING_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/call.h"
#include "server/front/mailbox.h"

namespace tidegate::server {

// Sends messages to the client of one call, from any thread. Does nothing if the client has gone.
class StreamWriter {
 public:
  StreamWriter(std::shared_ptr<Mailbox> mailbox, CallId id)
      : mailbox_(std::move(mailbox)), id_(id) {}

  void Send(std::string message) const { Post(Posted::Kind::kMessage, std::move(message)); }
  void Finish(GrpcStatus status, std::string why = {}) const {
    Answer answer;
    answer.grpc_status = status;
    answer.grpc_message = std::move(why);
    mailbox_->Post({id_, Posted::Kind::kEnd, std::move(answer)});
  }

 private:
  void Post(Posted::Kind kind, std::string body) const {
    Answer answer;
    answer.body = std::move(body);
    mailbox_->Post({id_, kind, std::move(answer)});
  }

  std::shared_ptr<Mailbox> mailbox_;
  CallId id_;
};

// A call in progress, used by its loop and destroyed when the call ends.
class StreamingCall {
 public:
  virtual ~StreamingCall() = default;
  virtual void OnMessage(std::string_view message) = 0;
  // Called when the client sends no more messages.
  virtual void OnEnd() = 0;
};

// Thread-safe.
class StreamingMethod {
 public:
  virtual ~StreamingMethod() = default;
  virtual std::unique_ptr<StreamingCall> Start(StreamWriter writer) = 0;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_STREAMING_H_
