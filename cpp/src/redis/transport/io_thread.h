// The thread that sends, reads and watches deadlines for requests that nobody waits for: one
// for all connections of a client. It begins with the first such request.
//
// It needs no help of the threads that leave requests. While there was traffic of late it
// looks for new ones every few milliseconds, so that Submitted() costs a caller nothing; the
// caller's Flush() sends them at once, many together, when it has no more to add. A caller
// that is held up before its Flush() so delays its requests by a few milliseconds at most.
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
  // Serves `connection` until it is stopped. Cancelled where the process has no
  // thread or descriptor left.
  absl::Status Serve(std::shared_ptr<Connection> connection);
  // A request was left with a connection.
  void Submitted() { WakeFrom(Rest::kAsleep); }
  // What was left is to be sent now, or something was done that is to be delivered.
  void Flush() { WakeFrom(Rest::kTicking); }
  // Ends the thread once its connections are over.
  void Stop();

 private:
  enum class Rest : int { kNone, kTicking, kAsleep };

  void WakeFrom(Rest least);
  void Run();
  // One round over `connections`; drops those that are over. Whether there was anything to do.
  bool ServeAll(std::vector<std::shared_ptr<Connection>>& connections);
  // Waits until there is something to do.
  void Watch(const std::vector<std::shared_ptr<Connection>>& connections, bool ticking);

  std::atomic<Rest> rest_{Rest::kNone};
  std::unique_ptr<Wake> wake_;  // made before the thread begins
  std::mutex mu_;               // guards all below
  std::vector<std::shared_ptr<Connection>> added_;
  bool started_ = false;
  bool stopped_ = false;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_IO_THREAD_H_
