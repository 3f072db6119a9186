// The interface between the front, which speaks HTTP, and the services, which answer requests.
//
//   class Echo : public Service {
//     bool Handle(const Request& request, Answer* answer, const Later&) override {
//       answer->body = request.body;
//       return true;
//     }
//   };
#ifndef TIDEGATE_SERVER_CALL_H_
#define TIDEGATE_SERVER_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace tidegate::server {

struct Header {
  std::string_view name;  // in lower case
  std::string_view value;
};

// The client of a connection.
struct Peer {
  std::string_view address;  // an address of TCP, or the path of a Unix socket
  bool is_tcp = true;
};

// A request with its whole body. The body of a gRPC call is the message, without its frame. Views
// are valid until Handle() returns.
struct Request {
  std::string_view method;
  std::string_view path;   // as sent, without the query
  std::string_view query;  // as sent, without the "?"
  absl::Span<const Header> headers;
  std::string_view body;
  Peer peer;
  bool is_grpc = false;

  // The value of the first header of this name; empty without one.
  std::string_view header(std::string_view name) const;
};

// The codes of gRPC that services use.
enum class GrpcStatus : uint8_t {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kUnauthenticated = 16,
};

// For a gRPC call the front sends `body` as the message, and the status as trailers; it ignores
// `http_status` and `content_type`.
struct Answer {
  int http_status = 200;
  std::string_view content_type = "application/json";        // in static storage
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  std::string body;
  GrpcStatus grpc_status = GrpcStatus::kOk;
  std::string grpc_message;
};

// A call that is answered after Handle() has returned. If it is destroyed without an answer, the
// front answers that the service failed.
class Pending {
 public:
  virtual ~Pending() = default;
  // Called once, from any thread. Does nothing if the client has gone.
  virtual void Send(Answer answer) = 0;
};

// Makes the Pending of the call that Handle() is answering. Handle() may call this once.
using Later = absl::FunctionRef<std::unique_ptr<Pending>()>;

// By which protocol a call came. Calls of gRPC come by HTTP/2, and are counted apart.
enum class Protocol : uint8_t { kHttp1, kHttp2, kGrpc };
inline constexpr size_t kProtocols = 3;

// Under which name the front counts how long a service's calls take.
enum class TimedAs : uint8_t { kChecks, kEnvoy, kNothing };
inline constexpr size_t kTimedServices = 2;

// Thread-safe: every loop calls it.
class Service {
 public:
  virtual ~Service() = default;

  virtual TimedAs timed_as() const { return TimedAs::kNothing; }

  // Either fills `answer` and returns true, or takes the Pending from `later`, returns false, and
  // sends the answer through it. Never blocks.
  virtual bool Handle(const Request& request, Answer* answer, const Later& later) = 0;

  // Fills `answer` and returns true if this caller may not call the method at all. Before the front
  // unpacks the message of a call it asks this; the body of `request` is still packed.
  virtual bool Refuses(const Request& /*request*/, Answer* /*answer*/) { return false; }

  // Each loop calls this after a batch of requests, to send the calls that they submitted to
  // stores.
  virtual void Flush() {}
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CALL_H_
