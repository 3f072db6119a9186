// A client's connection: its socket, its protocol, and output that waits for the client.
#ifndef TIDEGATE_SERVER_FRONT_CONNECTION_H_
#define TIDEGATE_SERVER_FRONT_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/types/span.h"
#include "server/front/channel.h"
#include "server/front/session.h"

namespace tidegate::server {

class Connection {
 public:
  // `address` is that of the client, or the path of the Unix socket.
  Connection(Surroundings* around, uint64_t id, Channel channel, std::string address, bool is_tcp);

  uint64_t id() const { return id_; }
  int fd() const { return channel_.fd(); }
  // Reads once, into `buffer`, and handles what came.
  void OnReadable(absl::Span<char> buffer);
  // Runs the turn that wants_turn() asked for.
  void OnTurn(absl::Span<char> buffer);
  // Called if the socket failed, or if both sides are closed.
  void OnHangUp() { finished_ = true; }
  void Deliver(Posted posted);
  void Drain();
  void OnTime();
  // Sends output at the end of a turn. `scratch` is an empty buffer.
  void Flush(std::string* scratch);
  Instant due() const;
  // The epoll events that the connection waits for.
  uint32_t events() const;
  // Whether the connection needs another turn at once.
  bool wants_turn() const;
  // Whether the connection can be destroyed.
  bool finished() const { return finished_; }
  // Whether the connection only waits for the client to close.
  bool lingering() const { return lingering_; }

  // Fields for the loop:
  bool touched = false;            // whether this turn touched it
  uint32_t registered_events = 0;  // the events registered with epoll
  Instant timer = Instant::max();  // when the loop checks due()

 private:
  void Receive(std::string_view bytes);
  // Chooses the protocol by the first bytes. Returns false if it needs more bytes.
  bool ChooseProtocol(std::string_view* bytes);
  void OnEnd();
  // Returns false if the rest of `bytes` has to wait until the client takes output.
  bool Write(std::string_view bytes);
  bool WriteUnsent();
  void Linger();
  Instant now() const { return around_->now; }

  Surroundings* const around_;
  const uint64_t id_;
  Channel channel_;
  const std::string address_;
  const bool is_tcp_;
  std::unique_ptr<Session> session_;  // null until the protocol is known
  std::string begun_;                 // the first bytes, until the protocol is known
  std::string unsent_;
  Instant since_;          // when the connection was accepted, or began to linger
  Instant blocked_since_;  // since when there is output in unsent_
  bool ended_ = false;     // whether the client sends no more
  bool pending_ = false;   // whether TLS has more input
  bool more_ = false;      // whether there is more output
  bool was_ready_ = false;
  bool lingering_ = false;
  bool finished_ = false;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_CONNECTION_H_
