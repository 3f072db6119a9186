#include "server/front/tls.h"

#include <openssl/err.h>

#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "redis/transport/openssl_use.h"

namespace tidegate::server {
namespace {

using redis::OpenSslUse;

// Protocols in the order of preference, each preceded by its length.
constexpr std::string_view kProtocols = "\x02h2\x08http/1.1";

std::string ReasonOf(unsigned long code) {
  // OpenSSL has no text for an error of the system, such as a file that does not exist.
  if (ERR_GET_LIB(code) == ERR_LIB_SYS) {
    return std::generic_category().message(ERR_GET_REASON(code));
  }
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason is known" : reason;
}

absl::Status BadFile(std::string_view what, const std::string& path) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  return absl::InvalidArgumentError(absl::StrCat("the file ", path, " cannot be read (",
                                                 ReasonOf(code), "); expected ", Absl(what),
                                                 " in PEM"));
}

int SelectProtocol(SSL* /*ssl*/, const unsigned char** out, unsigned char* out_size,
                   const unsigned char* offered, unsigned int offered_size, void* /*unused*/) {
  unsigned char* selected = nullptr;
  const int result = SSL_select_next_proto(
      &selected, out_size, reinterpret_cast<const unsigned char*>(kProtocols.data()),
      static_cast<unsigned int>(kProtocols.size()), offered, offered_size);
  if (result != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *out = selected;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

absl::StatusOr<Tls::Context> Tls::Make(const TlsFiles& files) {
  const OpenSslUse use;
  if (!use) return absl::CancelledError("The process is exiting");
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return absl::ResourceExhaustedError("OpenSSL made no context");
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, files.only_1_3 ? TLS1_3_VERSION : TLS1_2_VERSION);
  if (SSL_CTX_set_cipher_list(raw, files.ciphers.c_str()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat("the ciphers are \"", files.ciphers,
                     "\"; expected names that OpenSSL knows, such as \"ECDHE+AESGCM\""));
  }
  SSL_CTX_set_options(
      raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                            SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_alpn_select_cb(raw, SelectProtocol, nullptr);
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1) {
    return BadFile("a certificate", files.certificate);
  }
  if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(raw) != 1) {
    return BadFile("the private key of the certificate", files.key);
  }
  if (files.client_authorities.empty()) return context;
  const char* const path = files.client_authorities.c_str();
  if (SSL_CTX_load_verify_locations(raw, path, nullptr) != 1) {
    return BadFile("the authorities of clients", files.client_authorities);
  }
  SSL_CTX_set_client_CA_list(raw, SSL_load_client_CA_file(path));
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  constexpr std::string_view kSessions = "tidegate";  // OpenSSL needs a name if clients are known
  (void)SSL_CTX_set_session_id_context(raw,
                                       reinterpret_cast<const unsigned char*>(kSessions.data()),
                                       static_cast<unsigned int>(kSessions.size()));
  return context;
}

absl::StatusOr<std::shared_ptr<Tls>> Tls::Load(const TlsFiles& files) {
  const std::shared_ptr<Tls> tls(new Tls(files));
  if (absl::Status status = tls->Reload(); !status.ok()) return status;
  return tls;
}

absl::Status Tls::Reload() {
  absl::StatusOr<Context> context = Make(files_);
  if (!context.ok()) return context.status();
  const std::lock_guard lock(mu_);
  context_.swap(*context);
  return absl::OkStatus();
}

SSL* Tls::NewSession() {
  const OpenSslUse use;
  if (!use) return nullptr;
  const std::lock_guard lock(mu_);
  SSL* const ssl = SSL_new(context_.get());
  if (ssl != nullptr) SSL_set_accept_state(ssl);
  return ssl;
}

}  // namespace tidegate::server
