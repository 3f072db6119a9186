// The thread that sends, reads and watches deadlines for requests that no thread waits for: one for
// all connections of a client. It starts with the first such request.
//
// It needs no help from the threads that queue requests. With recent traffic it looks for new ones
// every few milliseconds, so that Submitted() costs a caller nothing; the caller's Flush() sends
// them at once, many together, when it has no more to add. So a caller that is held up before its
// Flush() delays its requests by a few milliseconds at most.
//
// Thread-safe. Not for use after fork(); see ProcessLocal.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_IO_THREAD_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_IO_THREAD_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "tidegate/wake.h"

namespace tidegate::redis {

class Connection;

class IoThread final : public std::enable_shared_from_this<IoThread> {
 public:
  // Serves `connection` until it is stopped. Cancelled if the process has no thread or descriptor
  // left.
  absl::Status Serve(std::shared_ptr<Connection> connection);
  // Call it when a request was queued on a connection.
  void Submitted() { WakeFrom(Rest::kAsleep); }
  // Has queued requests sent, and completed ones delivered, at once.
  void Flush() { WakeFrom(Rest::kTicking); }
  // Ends the thread once its connections are over.
  void Stop();

 private:
  enum class Rest : int { kNone, kTicking, kAsleep };

  void WakeFrom(Rest least);
  void Run();
  // One round over `connections`, which drops stopped ones. Returns whether there was anything to
  // do.
  bool ServeAll(std::vector<std::shared_ptr<Connection>>& connections);
  // Waits until there is something to do.
  void Watch(const std::vector<std::shared_ptr<Connection>>& connections, bool ticking);

  std::atomic<Rest> rest_{Rest::kNone};
  std::unique_ptr<Wake> wake_;  // created before the thread starts
  std::mutex mu_;               // guards all below
  std::vector<std::shared_ptr<Connection>> added_;
  bool started_ = false;
  bool stopped_ = false;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_IO_THREAD_H_
