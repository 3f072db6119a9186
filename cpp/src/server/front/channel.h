// A connected socket, with or without TLS. Never blocks.
#ifndef TIDEGATE_SERVER_FRONT_CHANNEL_H_
#define TIDEGATE_SERVER_FRONT_CHANNEL_H_

#include <openssl/ssl.h>
#include <sys/types.h>

#include <memory>
#include <string_view>

#include "server/front/descriptor.h"

namespace tidegate::server {

class Channel {
 public:
  // `ssl` is of a server; null without TLS. Takes it.
  Channel(Descriptor socket, SSL* ssl);

  int fd() const { return socket_.get(); }
  bool is_tls() const { return ssl_ != nullptr; }
  // The handshake of TLS is done, if there is any.
  bool is_ready() const;
  // By ALPN; empty if there was none.
  std::string_view protocol() const;
  // Bytes that were read, 0 if none are there now, -1 at the end.
  ssize_t Read(char* buffer, size_t size);
  // Bytes that were written, 0 if none can be now, -1 at the end.
  ssize_t Write(std::string_view bytes);
  // TLS must write before it can read.
  bool wants_to_write() const { return wants_to_write_; }
  // Bytes are there that epoll does not know of.
  bool has_pending() const;
  // Tells the client that nothing more will come.
  void ShutdownWrite();

 private:
  struct Free {
    void operator()(SSL* ssl) const;
  };

  ssize_t ReadTls(char* buffer, size_t size);
  ssize_t WriteTls(std::string_view bytes);
  ssize_t Failed(int result);

  Descriptor socket_;
  std::unique_ptr<SSL, Free> ssl_;
  bool wants_to_write_ = false;
  bool broken_ = false;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_CHANNEL_H_
