// tidegate._service._native: the services that answer checks by rules.
#include "server/classes.h"

namespace tidegate::python {

void RegisterChecks(pybind11::module_& /*m*/) {}

}  // namespace tidegate::python
