// OpenSSL frees what its users share when the process exits, though other threads may be inside.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_OPENSSL_USE_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_OPENSSL_USE_H_

namespace tidegate::redis {

// Lives while a thread is inside OpenSSL, which the process waits for at its exit. Not for calls
// that may block.
class OpenSslUse {
 public:
  OpenSslUse();
  ~OpenSslUse();
  OpenSslUse(const OpenSslUse&) = delete;
  OpenSslUse& operator=(const OpenSslUse&) = delete;

  // False once the process is exiting: nothing of OpenSSL may be called then.
  explicit operator bool() const { return allowed_; }

 private:
  const bool allowed_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_OPENSSL_USE_H_
