// The descriptors of tidegate.v1 for reflection.
#ifndef TIDEGATE_SERVER_CHECKS_DESCRIPTORS_H_
#define TIDEGATE_SERVER_CHECKS_DESCRIPTORS_H_

#include <string_view>
#include <vector>

namespace tidegate::server {

// Serialized google.protobuf.FileDescriptorProto messages; imported files come first.
std::vector<std::string_view> CheckDescriptors();

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_DESCRIPTORS_H_
