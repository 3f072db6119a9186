// The counters of a loop. One thread writes them; any thread may read them.
#ifndef TIDEGATE_SERVER_FRONT_COUNTERS_H_
#define TIDEGATE_SERVER_FRONT_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace tidegate::server {

class Counter {
 public:
  void Add(uint64_t n = 1) {
    count_.store(count_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void Subtract(uint64_t n = 1) { Add(~n + 1); }
  uint64_t read() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

// X(name): each is a key of Front::Stats().
#define TIDEGATE_FRONT_COUNTERS(X)                                                         \
  X(connections_open)                                                                      \
  X(connections_accepted)                                                                  \
  X(connections_refused) /* above the bound */                                             \
  X(accept_failures)     /* no descriptor or memory was left */                            \
  X(tls_failures)        /* handshakes */                                                  \
  X(requests_http1)                                                                        \
  X(requests_http2)                                                                        \
  X(requests_grpc) /* of requests_http2 */                                                 \
  X(answers_later) /* by another thread */                                                 \
  X(bytes_in)                                                                              \
  X(bytes_out)                                                                             \
  X(resets)           /* of HTTP/2 streams, by clients */                                  \
  X(floods)           /* connections closed for resets or frames that do no work */        \
  X(slow_readers)     /* connections closed because output was not taken */                \
  X(timeouts_request) /* requests that did not arrive in time */                           \
  X(timeouts_answer)  /* calls that no service answered in time, or by the call's own */   \
  X(timeouts_idle)    /* connections */                                                    \
  X(errors_protocol)  /* requests and connections that break a protocol or pass a bound */ \
  X(errors_service)   /* calls that a service dropped or threw from */

struct Counters {
#define TIDEGATE_DECLARE(name) Counter name;
  TIDEGATE_FRONT_COUNTERS(TIDEGATE_DECLARE)
#undef TIDEGATE_DECLARE
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_COUNTERS_H_
