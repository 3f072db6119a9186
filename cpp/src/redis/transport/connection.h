// One multiplexed connection of this process: requests of all threads go out in the order
// in which they came, replies come back in the same order.
//
// No separate thread does I/O for callers that wait. A caller writes the queue, with its own
// request and those that others added while a write was under way, and one of the waiting callers
// reads for all of them; once it has its own reply it passes the reading on. So a lone caller pays
// for no thread hand-over. A thread connects (names, TCP, TLS, AUTH), and lives until it has
// succeeded.
//
// A caller that cannot wait, such as an event loop, queues its request with Send(). The
// client's IoThread writes and reads for these when no other thread does, watches their
// deadlines and delivers the replies in batches.
//
// A missed deadline counts against the server only if the server caused it. A request that never
// left fails with Cancelled, which says nothing about the server, unless the server owes an answer
// to the attempt to connect. If the process itself was held up (a suspended machine, a busy core),
// the socket is read before a request is given up.
//
// Thread-safe. Not for use after fork(); see ProcessLocal.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_CONNECTION_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_CONNECTION_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/monotonic.h"
#include "redis/transport/client.h"
#include "redis/transport/stream.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

class IoThread;

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  // `io` serves Send(), and is shared by all connections of one client.
  Connection(const RedisOptions& options, std::shared_ptr<IoThread> io);

  // Begins to connect.
  void Start();
  // Fails every request under way, and every later one.
  void Stop();

  // As Client::Call(), for `replies` commands in one request, of which the last reply is
  // returned.
  absl::StatusOr<Reply> Call(const std::string& request, int replies, Instant deadline);
  // As Client::Send().
  void Send(std::unique_ptr<Caller> caller);
  // Gives up the connection and makes a new one.
  void Renew(const std::string& why);

  // The functions below are called only by the IoThread, in this order.

  enum class Turn {
    kIdle,
    kBusy,  // did some work, and more may have come meanwhile
    kOver,  // stopped, and every request was answered
  };
  // Sends waiting requests, gives up late ones, delivers completed ones. Does not block.
  Turn Serve();

  struct Watch {
    bool ready = false;  // there is work to do now
    bool reads = false;  // this watch holds the reading
    short events = 0;    // to poll `stream` for; 0: nothing
    Instant deadline = Instant::max();
    std::shared_ptr<Stream> stream;
  };
  Watch BeginWatch();
  // `revents` is what poll() found.
  void EndWatch(const Watch& watch, short revents);

 private:
  struct InFlight {
    std::condition_variable ready;
    Instant submitted;
    Instant sent;  // put into out_, later written
    Instant deadline;
    Instant late_since = Instant::max();  // when its deadline was found to have passed
    uint64_t end = 0;                     // of its bytes, counted as written_
    std::unique_ptr<Caller> caller;
    bool async = false;       // `caller` gets the reply; else a thread waits for `ready`
    bool could_leave = true;  // there was a connection when it was submitted
    bool abandoned = false;   // its caller is gone; the reply is dropped
    bool done = false;
    int replies = 1;  // still to come
    absl::StatusOr<Reply> reply = absl::UnknownError("");
  };
  using InFlightPtr = std::shared_ptr<InFlight>;

  enum class State { kConnecting, kUp, kStopped };

  // Holds mu_. Callers whose requests completed under it are woken after its release: a thread
  // woken earlier would only wait for the lock.
  class Lock {
   public:
    explicit Lock(Connection& connection) : connection_(connection), lock_(connection.mu_) {}
    ~Lock() {
      if (lock_.owns_lock()) Release();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    void Release();
    void Acquire() { lock_.lock(); }
    // May return early; the caller checks again.
    void Wait(std::condition_variable& condition, Instant until);

   private:
    Connection& connection_;
    std::unique_lock<std::mutex> lock_;
  };

  // Below, functions that take a Lock need it held, and those marked (*) release it for a
  // while.

  void Connect();
  void StartConnecting(Lock& lock);
  // Ends the connection: fails all requests in flight and begins to reconnect.
  void Break(Lock& lock, const std::string& why);
  // Checks whether the connection is still open.
  void CheckUp(Lock& lock);
  absl::Status AwaitUp(Lock& lock, Instant deadline);  // (*)
  // The reason why a request whose time is up was not sent.
  absl::Status NotConnected() const;
  absl::Status CheckQueue() const;
  // Writes the queue unless another thread does, waiting until `deadline` for a server that does
  // not read. (*)
  void Flush(Lock& lock, Instant deadline);
  // Waits for input until `deadline`, but polls at least once, and hands out the replies. (*)
  void Read(Lock& lock, Instant deadline);
  // Reads the available input, for a thread that holds the reading. (*)
  void ReadHeld(Lock& lock, const std::shared_ptr<Stream>& stream);
  bool HasInput() const;
  // Puts the bytes of requests at the end of queue_ into out_.
  void Queue(std::string_view bytes, Instant now, absl::Span<const InFlightPtr> requests);
  // Moves the deadline of a request that leaves `now` and could have left when it was submitted:
  // this process held it up.
  void ForgiveDelay(InFlight& in_flight, Instant now) const;
  // Moves the deadlines of requests that were written just now, by the time that they waited for a
  // thread to write them.
  void StampWritten(uint64_t written, bool waited_for_server);
  // Whether a request whose deadline has passed by `now` has failed: not while another thread is
  // about to write it, or to read the input that has arrived.
  bool HasLost(InFlight& in_flight, Instant now) const;
  void Finish(const InFlightPtr& in_flight, absl::StatusOr<Reply> reply);
  // Has one of the waiting callers read.
  void PassReading();
  // For requests queued with Send():
  void SendWaiting(Lock& lock);   // (*)
  void FailWaiting(Instant now);  // those that cannot be sent
  void ExpireLate(Lock& lock);    // (*)
  void Deliver(Lock& lock);       // (*)

  const RedisOptions options_;
  const std::shared_ptr<IoThread> io_;

  std::mutex mu_;                    // guards all below
  std::condition_variable changed_;  // state_ or failure_
  State state_ = State::kConnecting;
  bool connecting_ = false;  // a thread is at it
  // Of the last attempt to connect; ok while none has failed since the connection was up.
  absl::Status failure_;
  // Since when the server owes an answer to the present attempt.
  Instant dialing_since_ = Instant::max();
  std::string lost_ = "not connected yet";  // why there is no connection
  std::shared_ptr<Stream> stream_;          // while it is up
  bool reading_ = false;                    // a thread is at it
  bool taking_ = false;                     // it has found input
  bool writing_ = false;
  bool blocked_ = false;  // the writing thread waits for the server to read
  Instant last_use_;
  std::string out_;
  uint64_t queued_ = 0;               // bytes that were put into out_ since the connection was made
  uint64_t written_ = 0;              // those of them that have left
  std::deque<InFlightPtr> queue_;     // sent, or in out_; replies come in this order
  std::vector<InFlightPtr> to_wake_;  // threads, once mu_ is released

  bool served_ = false;                 // by io_
  std::deque<InFlightPtr> waiting_;     // to be sent
  size_t leaving_ = 0;                  // taken from waiting_, not yet in queue_
  std::deque<InFlightPtr> async_;       // those of queue_ with a caller, by deadline
  std::vector<InFlightPtr> completed_;  // to be delivered
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_CONNECTION_H_
