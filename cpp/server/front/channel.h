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
  // Takes ownership of `ssl`, which is for a server; null without TLS.
  Channel(Descriptor socket, SSL* ssl);

  int fd() const { return socket_.get(); }
  bool is_tls() const { return ssl_ != nullptr; }
  // Whether the TLS handshake is done; always true without TLS.
  bool is_ready() const;
  // The protocol chosen by ALPN; empty without ALPN.
  std::string_view protocol() const;
  // Returns the number of bytes read, 0 if none are available now, -1 at the end.
  ssize_t Read(char* buffer, size_t size);
  // Returns the number of bytes written, 0 if none can be written now, -1 at the end.
  ssize_t Write(std::string_view bytes);
  // Whether TLS must write before it can read.
  bool wants_to_write() const { return wants_to_write_; }
  // Whether TLS has bytes that epoll does not report.
  bool has_pending() const;
  // Tells the client that no more output will come.
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
