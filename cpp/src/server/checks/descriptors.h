// What reflection says of tidegate.v1.
#ifndef TIDEGATE_SERVER_CHECKS_DESCRIPTORS_H_
#define TIDEGATE_SERVER_CHECKS_DESCRIPTORS_H_

#include <string_view>
#include <vector>

namespace tidegate::server {

// Serialized google.protobuf.FileDescriptorProto messages, those that others import first.
std::vector<std::string_view> CheckDescriptors();

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_CHECKS_DESCRIPTORS_H_
