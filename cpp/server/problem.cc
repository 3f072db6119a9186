#include "server/problem.h"

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "server/json_text.h"

namespace tidegate::server {

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
    case 409:
      return "Conflict";
    case 410:
      return "Gone";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 421:
      return "Misdirected Request";
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

void AnswerProblem(const Problem& problem, bool is_grpc, Answer* answer) {
  answer->body.clear();
  if (is_grpc) {
    answer->grpc_status = problem.grpc_status;
    answer->grpc_message = problem.detail;
    return;
  }
  answer->http_status = problem.http_status;
  answer->content_type = "application/problem+json";
  absl::StrAppend(&answer->body, R"({"type":"about:blank","title":")",
                  Absl(ReasonOf(problem.http_status)), R"(","status":)", problem.http_status,
                  R"(,"detail":)");
  AppendJsonString(problem.detail, &answer->body);
  answer->body += "}\n";
}

}  // namespace tidegate::server
