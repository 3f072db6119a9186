// The bounds of the front, so that no client can use more than its share.
#ifndef TIDEGATE_SERVER_FRONT_OPTIONS_H_
#define TIDEGATE_SERVER_FRONT_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "base/monotonic.h"

namespace tidegate::server {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct FrontOptions {
  // Whether requests of HTTP must be to this machine by their Host (AcceptsHost), and which further
  // names are its own. No browser reaches a Unix socket, so what comes by one may have any Host.
  bool checks_hosts = false;
  std::vector<std::string> hosts;
  bool reflection = true;    // gRPC reflection, which lists the methods for anybody
  int loops = 1;             // threads, each with its own connections
  int connections = 20'000;  // connections of all loops; further ones are closed at once
  // Bounds of a connection:
  int streams = 256;               // concurrent calls of HTTP/2
  size_t input_bytes = 8 << 20;    // bytes in the bodies of unfinished requests
  size_t output_bytes = 4 << 20;   // bytes of answers that the client has not taken
  double resets_per_second = 100;  // streams reset by the client or because of its errors
  int reset_burst = 1000;
  double control_frames_per_second = 200;  // frames without work: PING, SETTINGS, empty DATA
  int control_frame_burst = 1000;
  // Bounds of a request:
  size_t header_bytes = 16 << 10;  // bytes of names, values and the target
  int header_count = 100;
  size_t body_bytes = 1 << 20;
  // Time limits:
  Instant::duration request_time = seconds(10);    // from a request's first byte to its last
  Instant::duration answer_time = seconds(30);     // for a service to answer
  Instant::duration take_time = seconds(20);       // for a client to take output
  Instant::duration idle_time = seconds(300);      // for a connection without requests
  Instant::duration drain_idle_time = seconds(1);  // the same while the front ends
  Instant::duration linger_time = seconds(2);      // for a client to close after we have closed
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_OPTIONS_H_
