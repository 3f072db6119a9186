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

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "redis/client.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

class Connection final : public Client {
 public:
  // `options` must outlive this.
  explicit Connection(const RedisOptions& options);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  absl::StatusOr<Reply> Call(uint16_t /*slot*/, const std::string& request,
                             absl::Time deadline) override {
    return Exchange(request, 1, deadline);
  }
  // As Call(), of several commands, whose last reply is meant.
  absl::StatusOr<Reply> Exchange(const std::string& request, int replies, absl::Time deadline);
  void Send(uint16_t slot, absl::Time deadline, std::unique_ptr<Caller> caller) override;
  void Kick() override;
  void Renew(const std::string& why) override;

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
