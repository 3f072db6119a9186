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
  Connection(Surroundings* around, uint64_t id, Channel channel, std::string peer);

  uint64_t id() const { return id_; }
  int fd() const { return channel_.fd(); }
  // Reads once, into `buffer`, and handles what came.
  void OnReadable(absl::Span<char> buffer);
  // What wants_turn() asked for.
  void OnTurn(absl::Span<char> buffer);
  // The socket failed, or both sides are closed.
  void OnHangUp() { finished_ = true; }
  void Deliver(Posted posted);
  void Drain();
  void OnTime();
  // At the end of a turn: sends output, by way of the empty `scratch`.
  void Flush(std::string* scratch);
  Instant due() const;
  // Of epoll, that it waits for.
  uint32_t events() const;
  // It needs another turn at once.
  bool wants_turn() const;
  // It can be destroyed.
  bool finished() const { return finished_; }
  // It only waits for the client to close.
  bool lingering() const { return lingering_; }

  // For the loop:
  bool touched = false;            // in this turn
  uint32_t registered_events = 0;  // with epoll
  Instant timer = Instant::max();  // when the loop looks at due()

 private:
  void Receive(std::string_view bytes);
  // By the first bytes. Returns false if more must come.
  bool ChooseProtocol(std::string_view* bytes);
  void OnEnd();
  // Returns false if the rest of `bytes` waits for the client.
  bool Write(std::string_view bytes);
  bool WriteUnsent();
  void Linger();
  Instant now() const { return around_->now; }

  Surroundings* const around_;
  const uint64_t id_;
  Channel channel_;
  const std::string peer_;
  std::unique_ptr<Session> session_;  // null until the protocol is known
  std::string begun_;                 // the first bytes, until then
  std::string unsent_;
  Instant since_;          // the connection was accepted, or began to linger
  Instant blocked_since_;  // while there is unsent_
  bool ended_ = false;     // the client sends no more
  bool pending_ = false;   // TLS has more input
  bool more_ = false;      // there is more output
  bool was_ready_ = false;
  bool lingering_ = false;
  bool finished_ = false;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_CONNECTION_H_
