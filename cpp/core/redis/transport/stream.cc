#include "redis/transport/stream.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "redis/transport/openssl_use.h"
#include "redis/transport/system_authorities.h"

namespace tidegate::redis {
namespace {

// On systems without this flag, dial.cc sets a socket option.
#if defined(MSG_NOSIGNAL)
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif

// ------------------------------------------------- OpenSSL over our own socket calls

// OpenSSL's own socket BIO would raise SIGPIPE.
int BioWrite(BIO* bio, const char* bytes, int size) {
  const int fd = *static_cast<int*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t n = send(fd, bytes, static_cast<size_t>(size), kNoSignal);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

int BioRead(BIO* bio, char* bytes, int size) {
  const int fd = *static_cast<int*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t n = recv(fd, bytes, static_cast<size_t>(size), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(n);
}

long BioControl(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// `fd` must outlive it.
BIO* NewBio(int* fd) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tidegate");
    BIO_meth_set_write(m, BioWrite);
    BIO_meth_set_read(m, BioRead);
    BIO_meth_set_ctrl(m, BioControl);
    return m;
  }();
  BIO* bio = BIO_new(method);
  BIO_set_data(bio, fd);
  BIO_set_init(bio, 1);
  return bio;
}

constexpr const char* kExiting = "TLS: the process is exiting";

absl::Status TlsFailed(const std::string& what) {
  const unsigned long error = ERR_get_error();
  char text[256] = "";
  if (error != 0) ERR_error_string_n(error, text, sizeof text);
  ERR_clear_error();
  return absl::UnavailableError(error == 0 ? what : absl::StrCat(what, ": ", text));
}

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using Context = std::unique_ptr<SSL_CTX, FreeContext>;

// Called for each connection, so that renewed certificate files are read.
absl::StatusOr<Context> MakeContext(const RedisTls& tls) {
  Context context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return TlsFailed("TLS: no context");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(context.get(), tls.verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
  const bool found = tls.ca_file.empty() && tls.ca_dir.empty()
                         ? TrustSystemAuthorities(context.get())
                         : SSL_CTX_load_verify_locations(
                               context.get(), tls.ca_file.empty() ? nullptr : tls.ca_file.c_str(),
                               tls.ca_dir.empty() ? nullptr : tls.ca_dir.c_str()) == 1;
  if (!found) {
    return TlsFailed(
        absl::StrCat("TLS: cannot read the CA certificates ", tls.ca_file, tls.ca_dir));
  }
  if (!tls.cert_file.empty()) {
    const std::string& key = tls.key_file.empty() ? tls.cert_file : tls.key_file;
    if (SSL_CTX_use_certificate_chain_file(context.get(), tls.cert_file.c_str()) != 1) {
      return TlsFailed(absl::StrCat("TLS: cannot read the certificate ", tls.cert_file));
    }
    if (SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) != 1) {
      return TlsFailed(absl::StrCat("TLS: cannot read the key ", key));
    }
  }
  return context;
}

// Far beyond any reply to our commands.
constexpr int64_t kMostElements = 1 << 20;
constexpr size_t kMostBytes = 16 << 20;

// hiredis's function for arrays, unless the array would exhaust the memory.
template <typename Size>
void* BoundedArray(const redisReadTask* task, Size elements) {
  static const auto* const functions = [] {
    redisReader* const reader = redisReaderCreate();
    const auto* const found = reader->fn;
    redisReaderFree(reader);
    return found;
  }();
  return static_cast<int64_t>(elements) > kMostElements ? nullptr
                                                        : functions->createArray(task, elements);
}

redisReader* NewReader() {
  redisReader* const reader = redisReaderCreate();
  static redisReplyObjectFunctions functions = [reader] {
    redisReplyObjectFunctions bounded = *reader->fn;
    bounded.createArray = BoundedArray;
    return bounded;
  }();
  reader->fn = &functions;
  return reader;
}

bool IsAddress(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

}  // namespace

int Poll(pollfd* polls, size_t count, Instant deadline) {
  for (;;) {
    const Instant now = MonotonicNow();
    int64_t ms = 0;
    if (deadline > now) {
      constexpr int64_t kMostMs = 1'000'000;
      ms = std::min(std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count(), kMostMs);
    }
    const int n = poll(polls, static_cast<nfds_t>(count), static_cast<int>(ms));
    if (n > 0 || (n == 0 && deadline <= MonotonicNow())) return n;
    if (n < 0 && errno != EINTR) return n;
  }
}

int Poll(int fd, short events, Instant deadline) {
  pollfd wait{fd, events, 0};
  const int n = Poll(&wait, 1, deadline);
  return n < 0 ? POLLERR : n == 0 ? 0 : wait.revents;
}

void Stream::FreeSsl::operator()(SSL* ssl) const {
  if (const OpenSslUse use; use) SSL_free(ssl);
}

Stream::Stream(int fd) : fd_(fd), reader_(NewReader()) {}

Stream::~Stream() { close(fd_); }

absl::Status Stream::StartTls(const RedisOptions& options, const std::string& host,
                              Instant deadline) {
  if (absl::Status s = PrepareTls(options, host); !s.ok()) return s;
  for (;;) {
    int wanted = 0;
    if (absl::Status s = Handshake(host, &wanted); !s.ok() || wanted == 0) return s;
    if (Poll(fd_, static_cast<short>(wanted), deadline) == 0) {
      return absl::UnavailableError("TLS: no answer in time");
    }
  }
}

absl::Status Stream::PrepareTls(const RedisOptions& options, const std::string& host) {
  const OpenSslUse use;
  if (!use) return absl::UnavailableError(kExiting);
  const RedisTls& tls = *options.tls;
  absl::StatusOr<Context> context = MakeContext(tls);
  if (!context.ok()) return context.status();
  ssl_.reset(SSL_new(context->get()));
  if (ssl_ == nullptr) return TlsFailed("TLS: no connection");
  BIO* const bio = NewBio(&fd_);
  SSL_set_bio(ssl_.get(), bio, bio);
  if (!IsAddress(host)) SSL_set_tlsext_host_name(ssl_.get(), host.c_str());
  if (tls.verify && tls.check_hostname) {
    X509_VERIFY_PARAM* const param = SSL_get0_param(ssl_.get());
    const int set = IsAddress(host) ? X509_VERIFY_PARAM_set1_ip_asc(param, host.c_str())
                                    : X509_VERIFY_PARAM_set1_host(param, host.c_str(), 0);
    if (set != 1) return TlsFailed(absl::StrCat("TLS: no certificate can be for ", host));
  }
  return absl::OkStatus();
}

absl::Status Stream::Handshake(const std::string& host, int* wanted) {
  const OpenSslUse use;
  if (!use) return absl::UnavailableError(kExiting);
  const int n = SSL_connect(ssl_.get());
  if (n == 1) return absl::OkStatus();
  const int error = SSL_get_error(ssl_.get(), n);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
    *wanted = error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    return absl::OkStatus();
  }
  const long verdict = SSL_get_verify_result(ssl_.get());
  if (verdict != X509_V_OK) {
    ERR_clear_error();
    return absl::UnavailableError(absl::StrCat(
        "TLS: the certificate of ", host, " is refused: ", X509_verify_cert_error_string(verdict)));
  }
  return TlsFailed("TLS: the server ended the handshake");
}

template <typename Call>
ssize_t Stream::WithTls(bool* closed, Call call) {
  const std::lock_guard<std::mutex> lock(tls_mu_);
  const OpenSslUse use;
  if (!use) return -1;
  size_t done = 0;
  ERR_clear_error();
  const int n = call(&done);
  if (n == 1) return static_cast<ssize_t>(done);
  const int error = SSL_get_error(ssl_.get(), n);
  if (closed != nullptr) *closed = error == SSL_ERROR_ZERO_RETURN;
  // A write wants to read where the server renews its keys, which the reading thread handles.
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

ssize_t Stream::Write(const char* bytes, size_t size) {
  if (ssl_ == nullptr) {
    const ssize_t n = send(fd_, bytes, size, kNoSignal);
    return n >= 0 ? n : errno == EAGAIN || errno == EINTR ? 0 : -1;
  }
  return WithTls(nullptr,
                 [&](size_t* done) { return SSL_write_ex(ssl_.get(), bytes, size, done); });
}

ssize_t Stream::Receive(char* buffer, size_t size, bool* closed) {
  if (ssl_ == nullptr) {
    const ssize_t n = recv(fd_, buffer, size, MSG_DONTWAIT);
    *closed = n == 0;
    return n > 0 ? n : n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
  }
  return WithTls(closed, [&](size_t* done) { return SSL_read_ex(ssl_.get(), buffer, size, done); });
}

const char* Stream::Read(std::vector<Reply>* replies) {
  char buffer[65536];
  for (;;) {
    bool closed = false;
    const ssize_t n = Receive(buffer, sizeof buffer, &closed);
    if (n == 0) return nullptr;
    if (n < 0) return closed ? "the server closed the connection" : "the connection broke";
    unfinished_ += static_cast<size_t>(n);
    if (unfinished_ > kMostBytes ||
        redisReaderFeed(reader_.get(), buffer, static_cast<size_t>(n)) != REDIS_OK) {
      return "the reply is too large";
    }
    for (;;) {
      void* made = nullptr;
      if (redisReaderGetReply(reader_.get(), &made) != REDIS_OK) {
        return "the server does not speak the protocol of Redis";
      }
      if (made == nullptr) break;
      unfinished_ = 0;
      replies->emplace_back(static_cast<redisReply*>(made));
    }
    // Data buffered in OpenSSL makes no descriptor readable.
    if (ssl_ == nullptr) return nullptr;
  }
}

void Stream::Shutdown() { (void)shutdown(fd_, SHUT_RDWR); }

}  // namespace tidegate::redis
