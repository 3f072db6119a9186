// The descriptors of gRPC's own services: serialized google.protobuf.FileDescriptorProto messages.
// scripts/descriptors.py writes descriptors.inc.
#ifndef TIDEGATE_SERVER_GRPC_DESCRIPTORS_H_
#define TIDEGATE_SERVER_GRPC_DESCRIPTORS_H_

#include <string_view>

namespace tidegate::server {

std::string_view HealthDescriptor();
std::string_view ReflectionDescriptor();       // grpc.reflection.v1
std::string_view ReflectionAlphaDescriptor();  // grpc.reflection.v1alpha

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_GRPC_DESCRIPTORS_H_
