// One multiplexed connection of this process: requests of all threads are sent in the order in
// which they were queued, and replies come back in the same order.
//
// No separate thread does I/O for callers that wait. A caller writes the queue, with its own
// request and those that others added while a write was under way, and one of the waiting callers
// reads for all of them; once it has its own reply another waiting caller takes over. So a lone
// caller needs no hand-over between threads. A thread makes the connection (name, TCP, TLS, AUTH),
// and ends when it has succeeded.
//
// A caller that cannot wait, such as an event loop, queues its request with Send(). The
// client's IoThread writes and reads for these when no other thread does, watches their
// deadlines and delivers the replies in batches.
//
// A missed deadline counts against the server only if the server caused it. A request that was
// never sent fails with Cancelled, which says nothing about the server, unless the server owes an
// answer to the attempt to connect. If the process itself was held up (a suspended machine, a busy
// core), the socket is read before a request is given up, and the request has up to one more
// timeout.
//
// Servers and proxies close idle connections. A connection that was idle is checked before it is
// used, and if its end is found only while writing, the requests that were not written completely
// go to the next connection, within their deadlines: no server can have executed them.
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
#include "redis/transport/cpu_waits.h"
#include "redis/transport/stream.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

class IoThread;

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  // `io` serves Send(), and is shared by all connections of one client. `cpu_times` reads those of
  // the calling thread.
  Connection(const RedisOptions& options, std::shared_ptr<IoThread> io,
             CpuTimes (*cpu_times)() = CpuTimesOfThread);

  // Begins to connect.
  void Start();
  // Fails every request under way, and every later one.
  void Stop();

  // Like Client::Call(), for a request of `replies` commands. Returns the reply to the last one.
  absl::StatusOr<Reply> Call(const std::string& request, int replies, Instant deadline);
  // Like Client::Send().
  void Send(std::unique_ptr<Caller> caller);
  // Gives up the connection and makes a new one.
  void Renew(const std::string& why);
  // Whether the server showed since the last call that it may answer again: by accepting a new
  // connection, or by a late reply. Gives up a connection that is over. Does not wait.
  bool ShowsLife();

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
    bool reads = false;  // whether the watching thread is the one that reads
    short events = 0;    // the events to poll `stream` for; 0 for none
    Instant deadline = Instant::max();
    std::shared_ptr<Stream> stream;
  };
  Watch BeginWatch();
  // `revents` are the events that poll() returned.
  void EndWatch(const Watch& watch, short revents);

 private:
  struct InFlight {
    std::condition_variable ready;
    Instant submitted;
    Instant sent;  // when it was put into out_, and later when it was written
    Instant deadline;
    Instant late_since = Instant::max();  // when its deadline was found to have passed
    uint64_t end = 0;                     // where its bytes end, counted like written_
    std::unique_ptr<Caller> caller;
    bool async = false;       // `caller` gets the reply; else a thread waits for `ready`
    bool could_leave = true;  // the connection that was up when it was submitted still is
    bool unsent = false;      // taken back, as no server can have executed it
    bool abandoned = false;   // its caller is gone; the reply is dropped
    bool extended = false;    // its deadline came, and was looked at by ExtendIfStarved()
    bool starved = false;     // this process was held up before its deadline
    bool done = false;
    int replies = 1;   // still to come
    size_t calls = 1;  // that wait for the reply, those that have joined among them
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
  void ReportFailure(const absl::Status& failure);
  // Ends the connection. Requests that were not written completely wait for the next one; all
  // others in flight fail.
  void End(const std::string& why);
  // Ends the connection and begins to reconnect.
  void Break(Lock& lock, const std::string& why);
  // Checks whether the connection is still open, if it was idle or has long been silent, and begins
  // to reconnect if it is not.
  void CheckUp(Lock& lock);
  absl::Status AwaitUp(Lock& lock, InFlight& in_flight);  // (*)
  // The reason why a request whose time is up was not sent.
  absl::Status NotConnected(const InFlight& in_flight) const;
  absl::Status CheckQueue() const;
  // Waits for the reply to a written request of this thread, or until its deadline. (*)
  void AwaitReply(Lock& lock, const InFlightPtr& in_flight);
  // Writes the queue unless another thread does. Waits until `deadline` for a server that does not
  // read. (*)
  void Flush(Lock& lock, Instant deadline);
  // Waits for input until `deadline`, but polls at least once, and hands out the replies. (*)
  void Read(Lock& lock, Instant deadline);
  // Reads the available input, for a thread that holds the reading. (*)
  void ReadHeld(Lock& lock, const std::shared_ptr<Stream>& stream);
  bool HasInput() const;
  // Puts the bytes of requests at the end of queue_ into out_.
  void Queue(std::string_view bytes, Instant now, absl::Span<const InFlightPtr> requests);
  // Moves the deadline of a request that is sent `now` but could have been sent when it was
  // submitted: this process held it up.
  void ForgiveDelay(InFlight& in_flight, Instant now) const;
  // Moves the deadline of a request, once and by up to a timeout, if it has passed by `now` and
  // this process had no processor to meet it. Returns whether time is left.
  bool ExtendIfStarved(InFlight& in_flight, Instant now) const;
  // Moves the deadlines of requests that were written just now, by the time that they waited for a
  // thread to write them.
  void StampWritten(uint64_t written, bool waited_for_server);
  // Whether a request whose deadline has passed by `now` has failed: not while another thread is
  // about to write it, or to read the input that has arrived.
  bool HasLost(InFlight& in_flight, Instant now) const;
  // Hands out `replies`. Ends the connection if `broken`, the reason, is not null.
  void Take(Lock& lock, std::vector<Reply> replies, const char* broken);
  void Finish(const InFlightPtr& in_flight, absl::StatusOr<Reply> reply);
  // Takes back `in_flight`, which was not written completely, for the next connection.
  void Unsend(const InFlightPtr& in_flight);
  // Lets one of the waiting callers read.
  void PassReading();
  // For requests queued with Send():
  void AddWaiting(std::unique_ptr<Caller>* caller);  // to waiting_, or to a request in it
  void SendWaiting(Lock& lock);                      // (*)
  void FailWaiting(Instant now);                     // those that cannot be sent
  void ExpireLate(Lock& lock);                       // (*)
  void WatchDeadline(const InFlightPtr& in_flight);  // puts it into async_
  void Deliver(Lock& lock);                          // (*)

  const RedisOptions options_;
  const std::shared_ptr<IoThread> io_;
  CpuTimes (*const cpu_times_)();

  std::mutex mu_;                    // guards all below
  std::condition_variable changed_;  // state_ or failure_
  State state_ = State::kConnecting;
  bool connecting_ = false;  // whether a thread is making the connection
  bool begun_ = false;       // whether that thread has run
  // The failure of the last attempt to connect; ok if none has failed since the connection was up.
  absl::Status failure_;
  // Since when the server owes an answer to the present attempt.
  Instant dialing_since_ = Instant::max();
  std::string lost_ = "not connected yet";  // why there is no connection
  std::shared_ptr<Stream> stream_;          // null unless the connection is up
  bool reading_ = false;                    // whether a thread waits for input or reads it
  bool taking_ = false;                     // whether that thread has found input
  bool writing_ = false;
  bool blocked_ = false;  // the writing thread waits for the server to read
  Instant last_use_;
  bool shows_life_ = false;  // see ShowsLife()
  std::string out_;
  uint64_t queued_ = 0;               // bytes that were put into out_ since the connection was made
  uint64_t written_ = 0;              // those of them that have been written
  std::deque<InFlightPtr> queue_;     // sent, or in out_; replies come in this order
  size_t calls_ = 0;                  // of queue_ and waiting_, and on their way between them
  std::vector<InFlightPtr> to_wake_;  // threads, once mu_ is released

  bool served_ = false;                 // whether io_ serves this
  std::deque<InFlightPtr> waiting_;     // to be sent
  std::deque<InFlightPtr> async_;       // those of queue_ with a caller, by deadline
  std::vector<InFlightPtr> completed_;  // to be delivered
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_CONNECTION_H_
