// Envoy's rate limit service with descriptors of all kinds, for fuzzers.
#ifndef TIDEGATE_TESTS_FUZZ_OPEN_ENVOY_SERVICE_H_
#define TIDEGATE_TESTS_FUZZ_OPEN_ENVOY_SERVICE_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "server/envoy/envoy_service.h"
#include "tidegate/memory_store.h"

namespace tidegate::server::envoy {

inline void Check(bool holds) {
  if (!holds) std::abort();
}

inline EnvoyService& OpenEnvoyService() {
  static const std::shared_ptr<EnvoyService> service = [] {
    auto tree = std::make_shared<DescriptorTree>();
    const auto domain = tree->AddDomain({.name = "d"});
    const auto user = tree->AddDescriptor(*domain, {.key = "k", .limits = {"5/minute", "9/hour"}});
    (void)tree->AddDescriptor(*user, {.key = "p", .value = "a*", .share_threshold = true});
    (void)tree->AddDescriptor(*user, {.key = "q", .limits = {"3/day"}, .quota = true});
    (void)tree->AddDescriptor(*domain, {.key = "k", .value = "v*", .limits = {"1/day"}});
    auto made = std::make_shared<EnvoyService>(
        *MemoryStore::Create({.capacity = 10'000}),
        std::make_shared<ManualClock>(int64_t{1'700'000'000} * 1'000'000'000), "fuzz",
        ServiceOptions{.response_headers = true});
    Check(made->Use(tree).ok());
    return made;
  }();
  return *service;
}

// The answer to these bytes, which the service gives at once.
inline Answer Ask(const uint8_t* data, size_t size, bool is_grpc) {
  // A copy, so that the sanitizer finds a read beyond its end.
  const std::string body(reinterpret_cast<const char*>(data), size);
  Request request;
  request.method = "POST";
  request.is_grpc = is_grpc;
  request.body = body;
  Answer answer;
  Check(OpenEnvoyService().Handle(request, &answer,
                                  []() -> std::unique_ptr<Pending> { std::abort(); }));
  return answer;
}

}  // namespace tidegate::server::envoy

#endif  // TIDEGATE_TESTS_FUZZ_OPEN_ENVOY_SERVICE_H_
