// The protocol of a connection: bytes in, bytes out. A session uses neither sockets nor clocks.
#ifndef TIDEGATE_SERVER_FRONT_SESSION_H_
#define TIDEGATE_SERVER_FRONT_SESSION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
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

// The state that the sessions of a loop share. One thread uses it.
struct Surroundings {
  FrontOptions options;
  const Routes* routes = nullptr;
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  Counters* counters = nullptr;
  Instant now;           // the instant of this turn of the loop
  std::string date;      // the current date, for headers
  bool handled = false;  // whether a service was called since the last flush
  // The timed calls that services answered at once and whose times are not counted yet.
  std::array<std::array<uint32_t, kProtocols>, kTimedServices> answered{};
  bool has_answered = false;
  bool draining = false;
  Instant drain_began;  // if draining
  std::shared_ptr<Http2Streams> http2_streams;

  // When to close a connection that has had no request since `since`. A client that has just sent
  // one would not know whether it was read, so a drain leaves each connection a while from its
  // beginning on.
  Instant IdleDue(Instant since) const {
    const Instant usual = since + options.idle_time;
    if (!draining) return usual;
    return std::min(usual, std::max(since, drain_began) + options.drain_idle_time);
  }
};

class Session {
 public:
  virtual ~Session() = default;

  // Receives bytes from the client.
  virtual void Receive(std::string_view bytes) = 0;
  // Takes an answer from another thread.
  virtual void Deliver(Posted posted) = 0;
  // Appends output, at most about 64 KiB.
  virtual void Fill(std::string* out) = 0;
  // Tells the client, and accepts no new requests after a short while.
  virtual void Drain() = 0;
  // When to call OnTime(), as far as is known now.
  virtual Instant due() const = 0;
  virtual void OnTime() = 0;
  // Whether input waits until output is taken; Receive({}) then continues.
  virtual bool wants_turn() const { return false; }
  // Whether requests are being received or answered.
  virtual bool busy() const = 0;
  // Whether input can be used now; not while an HTTP/1.1 request is being answered.
  virtual bool wants_input() const = 0;
  // Whether nothing more will be received or answered. Fill() may still have output.
  virtual bool over() const = 0;
};

inline constexpr size_t kOutputChunk = 64 << 10;
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::unique_ptr<Session> MakeHttp1Session(Surroundings* around, uint64_t connection, Peer peer);
std::unique_ptr<Session> MakeHttp2Session(Surroundings* around, uint64_t connection, Peer peer);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_SESSION_H_
