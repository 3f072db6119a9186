// The reason why a call was not answered as expected: as problem+json, or as a status of gRPC.
#ifndef TIDEGATE_SERVER_PROBLEM_H_
#define TIDEGATE_SERVER_PROBLEM_H_

#include <string>
#include <string_view>
#include <utility>

#include "server/call.h"

namespace tidegate::server {

struct Problem {
  int http_status = 400;
  GrpcStatus grpc_status = GrpcStatus::kInvalidArgument;
  std::string detail;  // what was given, and what is expected; UTF-8

  static Problem BadRequest(std::string detail) {
    return {400, GrpcStatus::kInvalidArgument, std::move(detail)};
  }
};

// The reason phrase of a status of HTTP.
std::string_view ReasonOf(int http_status);

// Fills the answer of a problem, for gRPC or for HTTP.
void AnswerProblem(const Problem& problem, bool is_grpc, Answer* answer);

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_PROBLEM_H_
