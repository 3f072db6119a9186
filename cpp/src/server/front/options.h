// What the front bounds, so that no client can take more of it than its share.
#ifndef TIDEGATE_SERVER_FRONT_OPTIONS_H_
#define TIDEGATE_SERVER_FRONT_OPTIONS_H_

#include <chrono>
#include <cstddef>

#include "base/monotonic.h"

namespace tidegate::server {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct FrontOptions {
  bool reflection = true;    // of gRPC: tells anybody what methods there are
  int loops = 1;             // threads, each with its own connections
  int connections = 20'000;  // over all loops; more are closed at once
  // Of a connection:
  int streams = 256;               // calls at a time, HTTP/2
  size_t input_bytes = 8 << 20;    // of the bodies of its unfinished requests
  size_t output_bytes = 4 << 20;   // of answers that the client has not taken
  double resets_per_second = 100;  // of streams, by the client or for its errors
  int reset_burst = 1000;
  double control_frames_per_second = 200;  // that do no work: PING, SETTINGS, PRIORITY, empty DATA
  int control_frame_burst = 1000;
  // Of a request:
  size_t header_bytes = 16 << 10;  // names and values, and the target
  int header_count = 100;
  size_t body_bytes = 1 << 20;
  // Of time:
  Instant::duration request_time = seconds(10);  // from a request's first byte to its last
  Instant::duration answer_time = seconds(30);   // that a service has
  Instant::duration take_time = seconds(20);     // that a client has to take output
  Instant::duration idle_time = seconds(300);    // of a connection without requests
  Instant::duration linger_time = seconds(2);    // for a client to close, after we have
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_OPTIONS_H_
