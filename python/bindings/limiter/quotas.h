// Converts Python's values to those of quotas, and back.
#ifndef TIDEGATE_PYTHON_BINDINGS_QUOTAS_H_
#define TIDEGATE_PYTHON_BINDINGS_QUOTAS_H_

#include <pybind11/pybind11.h>

#include "tidegate/quota.h"

namespace tidegate::python {

// (base, carried, topped up, used, available, resets, grants), each grant being (kind, units, left,
// expires, priority).
pybind11::tuple TupleOf(const QuotaStatus& status);

// Throws for invalid values.
QuotaTopUp TopUpFrom(const pybind11::object& units, const pybind11::object& expires_s,
                     const pybind11::object& priority);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_QUOTAS_H_
