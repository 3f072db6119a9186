// The network side of the server: HTTP/1.1, HTTP/2 and gRPC for services.
//
//   Front front(FrontOptions{});
//   front.Route(std::make_shared<Echo>());
//   const absl::StatusOr<int> port = front.Listen("127.0.0.1", 0, nullptr);
//   front.Start();
#ifndef TIDEGATE_SERVER_FRONT_FRONT_H_
#define TIDEGATE_SERVER_FRONT_FRONT_H_

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/front/listener.h"
#include "server/front/loop.h"
#include "server/front/options.h"
#include "server/front/routes.h"
#include "server/front/tls.h"

namespace tidegate::server {

// One thread calls Listen() and Route() before Start(); any thread may call the rest. In a child
// process after fork() the front does nothing.
class Front {
 public:
  explicit Front(const FrontOptions& options);
  ~Front();  // stops the front
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  // Returns the port, which is a free port if `port` is 0. Uses TLS unless `tls` is null.
  absl::StatusOr<int> Listen(const std::string& host, int port, const std::shared_ptr<Tls>& tls);
  absl::Status ListenUnix(const std::string& path, mode_t mode, std::shared_ptr<Tls> tls);
  // Accepts at sockets of one address that listen already. Closes those that it cannot take.
  absl::Status Adopt(const std::vector<int>& sockets, const std::shared_ptr<Tls>& tls);
  // The listening sockets, for another process that accepts at them too. Stop() then leaves them
  // as they are: connections that wait there are not reset, and the path of a Unix socket stays.
  std::vector<int> ShareSockets();
  // Undoes ShareSockets(), if the other process does not accept at them after all.
  void UnshareSockets();
  absl::Status Route(std::shared_ptr<RoutedService> service);
  absl::Status Start();

  // Accepts no new connections, tells clients, and waits for calls in progress. Returns whether all
  // connections have ended; connections that have not ended stay open.
  bool Drain(Instant::duration time);
  // Closes all connections at once.
  void Stop();

  bool running() const;
  // Counters by name, over all loops.
  std::vector<std::pair<std::string, uint64_t>> Stats() const;
  // How long calls took, of each service whose calls are timed, by protocol, over all loops.
  struct TimesOfCalls {
    TimedAs service;
    Protocol protocol;
    double seconds;                // of all calls
    std::vector<uint64_t> counts;  // by the buckets of Times
  };
  std::vector<TimesOfCalls> CallTimes() const;

 private:
  absl::Status CheckNotStarted(const char* what) const;
  bool is_ours() const;  // false in a child process
  bool AllDrained() const;
  void StartThreads();

  const FrontOptions options_;
  const int64_t process_;
  Routes routes_;
  // The listeners of each socket address: one for each loop for TCP, one for a Unix socket, and as
  // many as another process had.
  std::vector<std::vector<std::unique_ptr<Listener>>> listeners_;
  std::atomic<int> open_{0};

  mutable std::mutex mu_;
  std::condition_variable drained_;
  std::vector<std::unique_ptr<Loop>> loops_;
  std::vector<std::thread> threads_;
  bool stopped_ = false;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_FRONT_H_
