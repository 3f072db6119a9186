// A connected socket, with or without TLS, that one thread may read while another
// writes. Never blocks: Poll() waits.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_STREAM_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_STREAM_H_

#include <hiredis/hiredis.h>
#include <openssl/types.h>
#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/monotonic.h"
#include "redis/transport/client.h"
#include "tidegate/redis_store.h"

namespace tidegate::redis {

// poll(2) until `deadline`; polls once if that has passed. Signals do not end it.
int Poll(pollfd* polls, size_t count, Instant deadline);
// The same for one descriptor: the events that came, or 0.
int Poll(int fd, short events, Instant deadline);

class Stream {
 public:
  explicit Stream(int fd);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  int fd() const { return fd_; }

  // Does the TLS handshake with the server, whose certificate must be for `host` unless the options
  // say otherwise.
  absl::Status StartTls(const RedisOptions& options, const std::string& host, Instant deadline);

  // Returns the number of bytes written: 0 if none can be written now, -1 if the stream is broken.
  ssize_t Write(const char* bytes, size_t size);
  // Reads the available replies. Returns null, or the reason why the stream can no longer be used.
  // For one thread at a time.
  const char* Read(std::vector<Reply>* replies);
  // Wakes the thread that waits for it.
  void Shutdown();

 private:
  struct FreeSsl {
    void operator()(SSL* ssl) const;
  };
  struct FreeReader {
    void operator()(redisReader* reader) const { redisReaderFree(reader); }
  };

  absl::Status PrepareTls(const RedisOptions& options, const std::string& host);
  // Does one step. Sets `wanted` to the events to poll for before the next step, and leaves it as
  // it is after the last step.
  absl::Status Handshake(const std::string& host, int* wanted);
  // Like read(2), but returns 0 if nothing is available, and -1 also at the end of the stream.
  ssize_t Receive(char* buffer, size_t size, bool* closed);
  // Reads or writes by TLS as `call` does, which sets the bytes done and returns OpenSSL's result.
  template <typename Call>
  ssize_t WithTls(bool* closed, Call call);

  int fd_;
  std::unique_ptr<redisReader, FreeReader> reader_;
  size_t unfinished_ = 0;  // bytes read since the last whole reply
  // One call of OpenSSL at a time; none of them waits.
  std::mutex tls_mu_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_STREAM_H_
