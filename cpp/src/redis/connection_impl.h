// What a Connection is made of; for connection.cc and pump.cc.
#ifndef TIDEGATE_SRC_REDIS_CONNECTION_IMPL_H_
#define TIDEGATE_SRC_REDIS_CONNECTION_IMPL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "redis/connection.h"
#include "redis/stream.h"
#include "tidegate/wake.h"

namespace tidegate::redis {

// How many forks lie between this process and the first: what getpid() would tell, for
// the price of a load.
int64_t Forks();

class Connection::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(const RedisOptions& options) : options_(options), forks_(Forks()) {}

  bool IsMine() const { return forks_ == Forks(); }
  void Start() ABSL_LOCKS_EXCLUDED(mu_);
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<Reply> Call(const std::string& request, int replies, absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Send(absl::Time deadline, std::unique_ptr<Caller> caller) ABSL_LOCKS_EXCLUDED(mu_);
  void Kick() ABSL_LOCKS_EXCLUDED(mu_);
  void Renew(const std::string& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pending {
    absl::CondVar ready;
    absl::Time sent;
    absl::Time deadline;
    std::unique_ptr<Caller> caller;  // null where a thread waits for `ready`
    int replies = 1;                 // that are still to come
    bool abandoned = false;          // its caller has left; the reply is thrown away
    bool done = false;
    absl::StatusOr<Reply> reply = absl::UnknownError("");
  };

  enum class State { kConnecting, kUp, kStopped };

  void Connect() ABSL_LOCKS_EXCLUDED(mu_);
  void StartConnecting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives up the connection: every pending call fails, a new one is opened.
  void Break(const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Finds out whether the connection is still one.
  void CheckUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AwaitUp(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes what is queued, unless another thread is at it. Unlocks meanwhile.
  void Flush(absl::Time deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for bytes once and hands out the replies in them; returns early when
  // `wake_fd` is readable. Unlocks meanwhile.
  void Read(absl::Time deadline, int wake_fd = -1) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Hands a pending call what it waited for, or why it gets nothing.
  void Finish(const std::shared_ptr<Pending>& pending, absl::StatusOr<Reply> reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The thread of those who cannot wait.
  void Pump() ABSL_LOCKS_EXCLUDED(mu_);
  void WakePump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues what waits for the connection that is there. Unlocks meanwhile.
  void SendWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Queues or gives up what waits for a connection, and gives up what is late. The
  // next deadline.
  absl::Time Tend() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes somebody read, if anybody waits.
  void PassOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RedisOptions options_;
  const int64_t forks_;

  absl::Mutex mu_;
  absl::CondVar changed_;  // state_
  State state_ ABSL_GUARDED_BY(mu_) = State::kConnecting;
  bool connecting_ ABSL_GUARDED_BY(mu_) = false;  // a thread is at it
  bool failed_ ABSL_GUARDED_BY(mu_) = false;      // an attempt, since it was last up
  std::string failure_ ABSL_GUARDED_BY(mu_) = "not connected yet";
  // While it is up. Who reads or writes keeps it until it is done.
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // a thread is at it
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time last_use_ ABSL_GUARDED_BY(mu_);
  std::string out_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Pending>> queue_ ABSL_GUARDED_BY(mu_);

  // Of those who cannot wait.
  std::unique_ptr<Wake> wake_ ABSL_GUARDED_BY(mu_);  // made with the thread
  bool pump_sleeps_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::shared_ptr<Pending>> unsent_ ABSL_GUARDED_BY(mu_);  // no connection yet
  std::deque<std::shared_ptr<Pending>> async_ ABSL_GUARDED_BY(mu_);   // by deadline
  std::vector<std::shared_ptr<Pending>> told_ ABSL_GUARDED_BY(mu_);   // done, to be told
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_CONNECTION_IMPL_H_
