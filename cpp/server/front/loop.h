// A thread that serves its connections, for which it waits with epoll.
#ifndef TIDEGATE_SERVER_FRONT_LOOP_H_
#define TIDEGATE_SERVER_FRONT_LOOP_H_

#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/front/connection.h"
#include "server/front/counters.h"
#include "server/front/listener.h"
#include "server/front/session.h"

namespace tidegate::server {

class Loop {
 public:
  // `listeners` belong to this loop, except those with `is_shared`.
  // `open` counts the connections of all loops. The loop's thread calls `on_drained`. Throws
  // std::system_error if no descriptors are left.
  Loop(const FrontOptions& options, const Routes* routes, std::vector<Listener*> listeners,
       std::atomic<int>* open, std::function<void()> on_drained);
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs until Stop(). Any thread may call the other functions.
  void Run();
  void Stop();
  void Drain();
  bool drained() const { return drained_.load(); }
  const Counters& counters() const { return counters_; }

 private:
  using Timer = std::pair<Instant, uint64_t>;  // an instant and a connection

  void Turn();
  int TimeToWait();  // milliseconds
  void Accept(size_t listener);
  void Open(Descriptor socket, const Listener& listener);
  void PauseAccepting();
  void ResumeAccepting();
  void OnEvent(uint64_t id, uint32_t events);
  void GiveTurns();
  // Repeats until there are no more answers and nothing to flush.
  void Settle();
  void DeliverPosted();
  void FlushServices();
  void RunTimers();
  void BeginDrain();
  void Touch(Connection* connection);
  // Sends the output of all touched connections, and closes connections that have ended.
  void FlushTouched();
  void Close(Connection* connection);
  void UpdateEvents(Connection* connection);
  void UpdateTimer(Connection* connection);
  // Forgets the timers of connections that have ended, once there are many.
  void CompactTimers();
  void LookAtClock();
  void CheckDrained();

  Counters counters_;
  Surroundings around_;
  const std::vector<Listener*> listeners_;
  std::atomic<int>* const open_;
  const std::function<void()> on_drained_;
  Descriptor epoll_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> drain_{false};
  std::atomic<bool> drained_{false};

  // Used only by the loop's thread:
  absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>> connections_;
  uint64_t next_id_;
  std::vector<Connection*> touched_;
  std::vector<uint64_t> wanting_turn_;
  std::vector<Posted> posted_;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  Instant accept_again_ = Instant::max();
  std::time_t second_ = 0;
  size_t lingering_ = 0;
  std::vector<char> input_;
  std::string output_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_LOOP_H_
