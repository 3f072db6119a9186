// tidegate._service._native: the front: HTTP/1.1 and HTTP/2.
#include "server/classes.h"

namespace tidegate::python {

void RegisterFront(pybind11::module_& /*m*/) {}

}  // namespace tidegate::python
