// TLS 1.2 and 1.3. Certificates can be replaced while connections are open.
#ifndef TIDEGATE_SERVER_FRONT_TLS_H_
#define TIDEGATE_SERVER_FRONT_TLS_H_

#include <openssl/ssl.h>

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tidegate::server {

// Paths of files in PEM, and what is spoken.
struct TlsFiles {
  std::string certificate;  // with its chain up to an authority
  std::string key;
  std::string client_authorities;  // clients need a certificate of these; if empty, none is needed
  bool only_1_3 = false;           // refuses TLS 1.2
  // Of TLS 1.2, in OpenSSL's form. Those with forward secrecy and authenticated encryption: none
  // has CBC or SHA-1.
  std::string ciphers = "ECDHE+AESGCM:ECDHE+CHACHA20";
};

// Thread-safe.
class Tls {
 public:
  static absl::StatusOr<std::shared_ptr<Tls>> Load(const TlsFiles& files);

  // Loads the files again, for new connections. After an error the old certificates stay.
  absl::Status Reload();
  // Makes the SSL of one connection, which the caller frees; null if memory is short.
  SSL* NewSession();

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  using Context = std::unique_ptr<SSL_CTX, Free>;

  explicit Tls(const TlsFiles& files) : files_(files) {}
  static absl::StatusOr<Context> Make(const TlsFiles& files);

  const TlsFiles files_;
  std::mutex mu_;
  Context context_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_TLS_H_
