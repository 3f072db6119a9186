// Bodies of single and of many REST checks, paths and queries of statuses, and headers of gateways:
// each gets an answer, which for malformed input is a reason in JSON.
#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "open_check_service.h"

namespace {

using tidegate::server::Ask;
using tidegate::server::Check;
using tidegate::server::Header;
using tidegate::server::Request;

tidegate::server::Answer AnswerAs(uint8_t kind, std::string_view data) {
  Request request;
  std::string path;
  Header headers[] = {{"content-type", "application/json"}, {"x-original-uri", {}}};
  request.headers = headers;
  if (kind == 0 || kind == 3) {
    request.method = "POST";
    request.path = kind == 0 ? "/v1/ratelimit/check" : "/v1/ratelimit/check-many";
    request.body = data;
    return Ask(request);
  }
  request.method = "GET";
  if (kind == 1) {
    const size_t mark = data.find('?');
    path = "/v1/ratelimit/status/" + std::string(data.substr(0, mark));
    if (mark != std::string_view::npos) request.query = data.substr(mark + 1);
  } else {
    path = "/v1/ratelimit/auth";
    headers[1].value = data;
  }
  request.path = path;
  return Ask(request);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto answer = AnswerAs(data[0] % 4, rest);
  switch (answer.http_status) {
    case 204:
    case 429:
      Check(answer.body.empty());
      return 0;
    case 200:
    case 400:
    case 404:
    case 413:
      break;
    default:
      Check(false);
  }
  simdjson::dom::parser parser;
  Check(parser.parse(answer.body).error() == simdjson::SUCCESS);
  return 0;
}
