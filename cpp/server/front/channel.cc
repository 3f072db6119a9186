#include "server/front/channel.h"

#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "redis/transport/openssl_use.h"

namespace tidegate::server {
namespace {

using redis::OpenSslUse;

bool MayRetry(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

int SslSize(size_t size) {
  return static_cast<int>(std::min<size_t>(size, std::numeric_limits<int>::max()));
}

}  // namespace

void Channel::Free::operator()(SSL* ssl) const {
  const OpenSslUse use;
  if (use) SSL_free(ssl);
}

Channel::Channel(Descriptor socket, SSL* ssl) : socket_(std::move(socket)), ssl_(ssl) {
  if (ssl_ == nullptr) return;
  const OpenSslUse use;
  broken_ = !use || SSL_set_fd(ssl_.get(), socket_.get()) != 1;
}

bool Channel::is_ready() const { return ssl_ == nullptr || SSL_get_state(ssl_.get()) == TLS_ST_OK; }

std::string_view Channel::protocol() const {
  if (ssl_ == nullptr) return {};
  const unsigned char* name = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &name, &size);
  return {reinterpret_cast<const char*>(name), size};
}

bool Channel::has_pending() const { return ssl_ != nullptr && SSL_has_pending(ssl_.get()) != 0; }

ssize_t Channel::Read(char* buffer, size_t size) {
  if (broken_) return -1;
  if (ssl_ != nullptr) return ReadTls(buffer, size);
  const ssize_t read = recv(socket_.get(), buffer, size, 0);
  if (read > 0) return read;
  return read < 0 && MayRetry(errno) ? 0 : -1;
}

ssize_t Channel::Write(std::string_view bytes) {
  if (broken_) return -1;
  if (ssl_ != nullptr) return WriteTls(bytes);
  const ssize_t written = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (written >= 0) return written;
  return MayRetry(errno) ? 0 : -1;
}

// SSL_read() returns one record of TLS at a time, so it is repeated until the buffer is full.
ssize_t Channel::ReadTls(char* buffer, size_t size) {
  const OpenSslUse use;
  if (!use) return -1;
  wants_to_write_ = false;
  size_t read = 0;
  while (read < size) {
    ERR_clear_error();
    const int result = SSL_read(ssl_.get(), buffer + read, SslSize(size - read));
    if (result <= 0) {
      const ssize_t failed = Failed(result);
      return read > 0 ? static_cast<ssize_t>(read) : failed;
    }
    read += static_cast<size_t>(result);
  }
  return static_cast<ssize_t>(read);
}

ssize_t Channel::WriteTls(std::string_view bytes) {
  const OpenSslUse use;
  if (!use) return -1;
  ERR_clear_error();
  const int result = SSL_write(ssl_.get(), bytes.data(), SslSize(bytes.size()));
  return result > 0 ? result : Failed(result);
}

// Returns 0 if the call can be repeated, and -1 otherwise.
ssize_t Channel::Failed(int result) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return 0;
    case SSL_ERROR_WANT_WRITE:
      wants_to_write_ = true;
      return 0;
    default:
      broken_ = true;
      return -1;
  }
}

void Channel::ShutdownWrite() {
  if (ssl_ != nullptr && !broken_) {
    const OpenSslUse use;
    if (use && is_ready()) {
      ERR_clear_error();
      (void)SSL_shutdown(ssl_.get());
    }
  }
  (void)shutdown(socket_.get(), SHUT_WR);
}

}  // namespace tidegate::server
