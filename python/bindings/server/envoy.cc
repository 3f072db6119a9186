// tidegate._service._native: Envoy's rate limit service.
#include "server/classes.h"

namespace tidegate::python {

void RegisterEnvoy(pybind11::module_& /*m*/) {}

}  // namespace tidegate::python
