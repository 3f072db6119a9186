// An error in a call, which is answered as problem+json or as a gRPC status.
#ifndef TIDEGATE_SERVER_CHECKS_PROBLEM_H_
#define TIDEGATE_SERVER_CHECKS_PROBLEM_H_

#include <string>
#include <string_view>

#include "server/call.h"

namespace tidegate::server {

struct Problem {
  int http_status = 400;
  GrpcStatus grpc_status = GrpcStatus::kInvalidArgument;
  std::string detail;  // what was given, and what is expected; ASCII

  static Problem BadRequest(std::string detail) {
    return {400, GrpcStatus::kInvalidArgument, std::move(detail)};
  }
};

// Quotes `text`, which may have any bytes and length, for a message in ASCII.
std::string ShownText(std::string_view text);

// Appends `text` as a JSON string. Bytes that are not UTF-8 become U+FFFD.
void AppendJsonString(std::string_view text, std::string* json);

// Fills the answer of a problem, for gRPC or for HTTP.
void AnswerProblem(const Problem& problem, bool is_grpc, Answer* answer);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_PROBLEM_H_
