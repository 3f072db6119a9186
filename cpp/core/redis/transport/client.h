// The interface between a store and one server, or a cluster.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_CLIENT_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_CLIENT_H_

#include <hiredis/hiredis.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/monotonic.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};

// A request that no thread waits for. All its functions are called by the client's I/O thread,
// without a lock, with two exceptions: Join() may be called by a thread in Send(), under a lock;
// and if the request could not be queued at all, Done() is called by the thread that called Send().
class Caller {
 public:
  explicit Caller(Instant deadline) : deadline_(deadline) {}
  virtual ~Caller() = default;
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // Counts from when the request could be sent: it is moved by the time that the request waited in
  // this process while there was a connection.
  Instant deadline() const { return deadline_; }
  void set_deadline(Instant deadline) { deadline_ = deadline; }

  // Merges `other` into this request if one command can serve both; `other` is then null.
  virtual void Join(std::unique_ptr<Caller>* /*other*/) {}
  // The bytes to send, and their number of replies; Done() gets the last.
  virtual std::string Request() = 0;
  virtual int replies() const { return 1; }
  virtual void Done(absl::StatusOr<Reply> reply) = 0;

 private:
  Instant deadline_;
};

// Thread-safe. After fork() the first call in the child opens a new connection. `slot` is the hash
// slot of the request's keys; outside a cluster it does not matter.
class Client {
 public:
  virtual ~Client() = default;

  // Sends `request`, one command, and waits for its reply, which may be an error reply.
  // Fails with
  //   Unavailable         not sent: the server refused the connection or did not make one
  //   Cancelled           not sent: no connection in time, or this process could not make one. Says
  //                       nothing about the server.
  //   ResourceExhausted   not sent: the queue is full. Says nothing about the server.
  //   DeadlineExceeded    no reply by `deadline`; it may have been executed
  //   Aborted             the connection broke; it may have been executed
  virtual absl::StatusOr<Reply> Call(uint16_t slot, const std::string& request,
                                     Instant deadline) = 0;

  // The same without waiting: `caller` gets the reply or the failure. The request is sent within a
  // few milliseconds, or at Kick(), so that many are sent together.
  virtual void Send(uint16_t slot, std::unique_ptr<Caller> caller) = 0;
  virtual void Kick() = 0;

  // Ends all connections, so that the next call opens new ones.
  virtual void Renew(const std::string& why) = 0;

  // Whether a server showed since the last call of this that it may answer again. Gives up
  // connections that are over. Does not wait.
  virtual bool ShowsLife() = 0;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_CLIENT_H_
