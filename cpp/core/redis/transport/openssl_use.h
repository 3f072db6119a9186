// OpenSSL frees shared data when the process exits, though other threads may still use it.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_OPENSSL_USE_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_OPENSSL_USE_H_

namespace tidegate::redis {

// Held while a thread is inside OpenSSL; the exit of the process waits for its end. Not for calls
// that may block.
class OpenSslUse {
 public:
  OpenSslUse();
  ~OpenSslUse();
  OpenSslUse(const OpenSslUse&) = delete;
  OpenSslUse& operator=(const OpenSslUse&) = delete;

  // False once the process is exiting: then no function of OpenSSL may be called.
  explicit operator bool() const { return allowed_; }

 private:
  const bool allowed_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_OPENSSL_USE_H_
