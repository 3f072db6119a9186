// TLS 1.2 and newer, with certificates that can be replaced while connections are open.
#ifndef TIDEGATE_SERVER_FRONT_TLS_H_
#define TIDEGATE_SERVER_FRONT_TLS_H_

#include <openssl/ssl.h>

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tidegate::server {

// Paths of files in PEM.
struct TlsFiles {
  std::string certificate;  // with what leads to an authority
  std::string key;
  std::string client_authorities;  // clients must have a certificate of one; any client if empty
};

// Thread-safe.
class Tls {
 public:
  static absl::StatusOr<std::shared_ptr<Tls>> Load(const TlsFiles& files);

  // Loads the files again, for connections that begin from now on. Keeps what it had on an error.
  absl::Status Reload();
  // For one connection; null without memory. The caller frees it.
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
