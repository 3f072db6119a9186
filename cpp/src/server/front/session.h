// A connection as its protocol sees it: bytes in, bytes out. No session knows of sockets or looks
// at a clock.
#ifndef TIDEGATE_SERVER_FRONT_SESSION_H_
#define TIDEGATE_SERVER_FRONT_SESSION_H_

#include <memory>
#include <string>
#include <string_view>

#include "base/monotonic.h"
#include "server/front/counters.h"
#include "server/front/mailbox.h"
#include "server/front/options.h"
#include "server/front/routes.h"

namespace tidegate::server {

class Http2Streams;

// What the sessions of a loop share. One thread uses it.
struct Surroundings {
  FrontOptions options;
  const Routes* routes = nullptr;
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  Counters* counters = nullptr;
  Instant now;           // of this turn of the loop
  std::string date;      // of now, for headers
  bool handled = false;  // a service was called since it was last flushed
  bool draining = false;
  std::shared_ptr<Http2Streams> http2_streams;
};

class Session {
 public:
  virtual ~Session() = default;

  // Takes bytes from the client.
  virtual void Receive(std::string_view bytes) = 0;
  // An answer from another thread.
  virtual void Deliver(Posted posted) = 0;
  // Appends output, some 64 KiB at most.
  virtual void Fill(std::string* out) = 0;
  // No new requests are taken after a while, in which the client learns of it.
  virtual void Drain() = 0;
  // When to call OnTime(), by what is known now.
  virtual Instant due() const = 0;
  virtual void OnTime() = 0;
  // There is input that was left until output was taken: Receive({}) goes on.
  virtual bool wants_turn() const { return false; }
  // Requests are being received or answered.
  virtual bool busy() const = 0;
  // Whether input is of use now. It is not while a request of HTTP/1.1 is answered.
  virtual bool wants_input() const = 0;
  // Nothing more will be received or answered. Fill() may still have output.
  virtual bool over() const = 0;
};

inline constexpr size_t kOutputChunk = 64 << 10;
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::unique_ptr<Session> MakeHttp1Session(Surroundings* around, uint64_t connection,
                                          std::string_view peer);
std::unique_ptr<Session> MakeHttp2Session(Surroundings* around, uint64_t connection,
                                          std::string_view peer);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_SESSION_H_
