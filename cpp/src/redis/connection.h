// One multiplexed connection: requests of all threads go out in the order in
// which they came, replies come back in the same order.
//
// No thread of its own does I/O while it is up. A caller writes what is queued,
// its own request and whatever others queued while a write was under way, and
// one of the callers that wait reads for all of them; when its own reply is there
// it hands the reading to the next. A lone caller so pays for no hand-over. Only
// connecting (names, TCP, AUTH) is done by a thread, which lives until it has
// succeeded.
//
// Who cannot wait, such as an event loop, leaves its request and a Caller to be told.
// For these there is one thread more, begun with the first of them, that writes and
// reads when no other does, watches their deadlines and tells them in batches.
//
// Thread-safe. After fork() the first call in the child opens anew.
#ifndef TIDEGATE_REDIS_CONNECTION_H_
#define TIDEGATE_REDIS_CONNECTION_H_

#include <hiredis/hiredis.h>
#include <sys/types.h>

#include <atomic>
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
  // One command.
  virtual std::string Request() = 0;
  // Told once of the reply.
  virtual void Done(absl::StatusOr<Reply> reply) = 0;
};

class Connection {
 public:
  // `options` must outlive this.
  explicit Connection(const RedisOptions& options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Sends `request`, one command, and waits for its reply,
  // which may be an error reply. Fails with
  //   Unavailable        not sent: no connection
  //   ResourceExhausted  not sent: the queue is full
  //   DeadlineExceeded   no reply by `deadline`; it may have been executed
  //   Aborted            the connection broke; it may have been executed
  absl::StatusOr<Reply> Call(const std::string& request, absl::Time deadline);

  // The same without waiting: `caller` is told, also of what failed at once. What is
  // sent lies ready until Kick(), so that many go out together.
  void Send(absl::Time deadline, std::unique_ptr<Caller> caller);

  void Kick();

  // Ends the connection, so that the next call finds a new one.
  void Renew(const std::string& why);

 private:
  class Impl;

  // This process's connection. That of a parent is left as it is: its locks may
  // have been held by threads that the child does not have.
  Impl& Current();

  const RedisOptions& options_;
  std::atomic<std::shared_ptr<Impl>*> impl_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_REDIS_CONNECTION_H_
