#include "server/front/dispatch.h"

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace tidegate::server {
namespace {

// `text` has no quotes and no control characters.
std::string ErrorBody(std::string_view text) {
  return absl::StrCat("{\"error\":\"", Absl(text), "\"}");
}

void Clear(Answer* answer) {
  answer->http_status = 200;
  answer->content_type = "application/json";
  answer->headers.clear();
  answer->body.clear();
  answer->grpc_status = GrpcStatus::kOk;
  answer->grpc_message.clear();
}

}  // namespace

void Refuse(int http_status, std::string_view why, Answer* answer) {
  Clear(answer);
  answer->http_status = http_status;
  answer->body = ErrorBody(why);
}

void RefuseGrpc(GrpcStatus status, std::string_view why, Answer* answer) {
  Clear(answer);
  answer->grpc_status = status;
  answer->grpc_message = std::string(why);
}

bool Call(Service* service, const Request& request, CallId id, Surroundings* around,
          Answer* answer) {
  around->handled = true;
  const auto later = [&] { return MakePending(around->mailbox, id); };
  Clear(answer);
  try {
    return service->Handle(request, answer, later);
  } catch (const std::exception&) {
    around->counters->errors_service.Add();
    if (request.is_grpc) {
      RefuseGrpc(GrpcStatus::kInternal, "The service failed", answer);
    } else {
      Refuse(500, "The service failed", answer);
    }
    return true;
  }
}

bool Dispatch(const Request& request, CallId id, Surroundings* around, Answer* answer) {
  const Routes::Http found = around->routes->FindHttp(request.method, request.path);
  if (found.service != nullptr) return Call(found.service, request, id, around, answer);
  if (found.path_exists) {
    Refuse(405, "Expected another method for this path", answer);
  } else {
    Refuse(404, "Expected a path of this service", answer);
  }
  return true;
}

void SetTarget(std::string_view target, Request* request) {
  const size_t mark = target.find('?');
  request->path = target.substr(0, mark);
  request->query = mark == std::string_view::npos ? std::string_view() : target.substr(mark + 1);
}

std::string_view ReasonOf(int http_status) {
  switch (http_status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

bool IsFieldValue(std::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
  });
}

bool IsFieldName(std::string_view name) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !name.empty() && std::all_of(name.begin(), name.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

}  // namespace tidegate::server
