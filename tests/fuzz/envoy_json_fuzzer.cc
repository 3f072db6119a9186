// Any body for /json of Envoy's rate limit service is answered in JSON.
#include <simdjson.h>

#include <cstddef>
#include <cstdint>

#include "open_envoy_service.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tidegate::server::envoy::Check;
  const auto answer = tidegate::server::envoy::Ask(data, size, /*is_grpc=*/false);
  const int status = answer.http_status;
  Check(status == 200 || status == 400 || status == 429);
  simdjson::dom::parser parser;
  Check(parser.parse(answer.body).error() == simdjson::SUCCESS);
  return 0;
}
