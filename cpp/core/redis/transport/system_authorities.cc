#include "redis/transport/system_authorities.h"

#include <openssl/x509.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace tidegate::redis {
namespace {

bool IsThere(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

// The paths of Debian, Alpine and Arch; of Fedora and its relatives; of SUSE; of macOS and others.
const std::array<std::string, 4>& Places() {
  static const auto* const places = new std::array<std::string, 4>{
      "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
      "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
  return *places;
}

}  // namespace

std::string AuthoritiesElsewhere(absl::Span<const std::string> usual,
                                 absl::Span<const std::string> elsewhere) {
  if (std::any_of(usual.begin(), usual.end(), IsThere)) return "";
  const auto found = std::find_if(elsewhere.begin(), elsewhere.end(), IsThere);
  return found == elsewhere.end() ? "" : *found;
}

bool TrustSystemAuthorities(SSL_CTX* context) {
  const bool is_told = std::getenv(X509_get_default_cert_file_env()) != nullptr ||
                       std::getenv(X509_get_default_cert_dir_env()) != nullptr;
  const std::array<std::string, 2> usual = {X509_get_default_cert_file(),
                                            X509_get_default_cert_dir()};
  const std::string elsewhere = is_told ? "" : AuthoritiesElsewhere(usual, Places());
  return elsewhere.empty()
             ? SSL_CTX_set_default_verify_paths(context) == 1
             : SSL_CTX_load_verify_locations(context, elsewhere.c_str(), nullptr) == 1;
}

}  // namespace tidegate::redis
