// Calls a service without a front.
#ifndef TIDEGATE_TESTS_EXTENSION_DIRECT_CALL_H_
#define TIDEGATE_TESTS_EXTENSION_DIRECT_CALL_H_

#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "server/front/routes.h"

namespace tidegate::python {

// Returns (status, headers, body) for HTTP, and (code, message, body) for gRPC. Raises TimeoutError
// if the service does not answer within 10 s.
pybind11::tuple CallDirectly(server::RoutedService& service, const std::string& method,
                             const std::string& target,
                             const std::vector<std::pair<std::string, std::string>>& headers,
                             const pybind11::bytes& body, bool is_grpc);

}  // namespace tidegate::python

#endif  // TIDEGATE_TESTS_EXTENSION_DIRECT_CALL_H_
