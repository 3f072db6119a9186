// The counters of a loop. One thread writes them; any thread may read them.
#ifndef TIDEGATE_SERVER_FRONT_COUNTERS_H_
#define TIDEGATE_SERVER_FRONT_COUNTERS_H_

#include <array>
#include <cstddef>

#include "server/call.h"
#include "server/front/times.h"

namespace tidegate::server {

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

  Times& TimesOf(TimedAs service, Protocol protocol) {
    return times[static_cast<size_t>(service)][static_cast<size_t>(protocol)];
  }
  const Times& TimesOf(TimedAs service, Protocol protocol) const {
    return times[static_cast<size_t>(service)][static_cast<size_t>(protocol)];
  }

  // The times of calls by service and protocol.
  std::array<std::array<Times, kProtocols>, kTimedServices> times;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_COUNTERS_H_
