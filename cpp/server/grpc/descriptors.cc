#include "server/grpc/descriptors.h"

namespace tidegate::server {
namespace {

#include "server/grpc/descriptors.inc"

template <typename Bytes>
std::string_view View(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes), sizeof bytes};
}

}  // namespace

std::string_view HealthDescriptor() { return View(kHealth); }
std::string_view ReflectionDescriptor() { return View(kReflection); }
std::string_view ReflectionAlphaDescriptor() { return View(kReflectionAlpha); }

}  // namespace tidegate::server
