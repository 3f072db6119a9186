// What a store asks of one server, or of a cluster of them.
#ifndef TIDEGATE_SRC_REDIS_CLIENT_H_
#define TIDEGATE_SRC_REDIS_CLIENT_H_

#include <hiredis/hiredis.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};

// Who asks without waiting. All calls come from the connection's thread, without a lock,
// but for Done() where nothing could be sent: that comes from the sender's.
class Caller {
 public:
  virtual ~Caller() = default;
  // Takes over what `other` asks, where one request can be for both; `other` is then
  // null.
  virtual void Join(std::unique_ptr<Caller>* /*other*/) {}
  // What to send, and how many replies it has; Done() is told the last.
  virtual std::string Request() = 0;
  virtual int replies() const { return 1; }
  virtual void Done(absl::StatusOr<Reply> reply) = 0;
};

// Thread-safe. After fork() the first call in the child connects anew. `slot` is that of
// the request's keys, as a cluster has it; without one it does not matter.
class Client {
 public:
  virtual ~Client() = default;

  // Sends `request`, one command, and waits for its reply, which may be an error reply.
  // Fails with
  //   Unavailable        not sent: no connection
  //   ResourceExhausted  not sent: the queue is full
  //   DeadlineExceeded   no reply by `deadline`; it may have been executed
  //   Aborted            the connection broke; it may have been executed
  virtual absl::StatusOr<Reply> Call(uint16_t slot, const std::string& request,
                                     absl::Time deadline) = 0;

  // The same without waiting: `caller` is told, also of what failed at once. What is
  // sent lies ready until Kick(), so that many go out together.
  virtual void Send(uint16_t slot, absl::Time deadline, std::unique_ptr<Caller> caller) = 0;
  virtual void Kick() = 0;

  // Ends what connections there are, so that the next call finds new ones.
  virtual void Renew(const std::string& why) = 0;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_CLIENT_H_
