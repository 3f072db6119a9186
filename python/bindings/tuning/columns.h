// Columns of NumPy, as the core takes them. The package has checked and converted them, so an error
// found here is a mistake of the package, or one that only a look at all items can find.
#ifndef TIDEGATE_PYTHON_BINDINGS_TUNING_COLUMNS_H_
#define TIDEGATE_PYTHON_BINDINGS_TUNING_COLUMNS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tidegate::python {

namespace py = pybind11;

// The `size` items of `column`, which must be contiguous. `what` names it in errors.
template <typename T>
const T* ItemsOf(const py::array& column, size_t size, const char* what) {
  const bool fits = py::isinstance<py::array_t<T>>(column) && column.ndim() == 1 &&
                    (column.flags() & py::array::c_style) != 0 &&
                    static_cast<size_t>(column.size()) == size;
  if (!fits) {
    throw std::invalid_argument(
        std::string(what) + " are of another type or length; expected those of the other columns");
  }
  return static_cast<const T*>(column.data());
}

template <typename T>
T* WritableItemsOf(py::array& column, size_t size, const char* what) {
  ItemsOf<T>(column, size, what);
  return static_cast<T*>(column.mutable_data());
}

// A column that owns its memory.
template <typename T>
py::array_t<T> NewColumn(size_t size) {
  return py::array_t<T>(static_cast<py::ssize_t>(size));
}

template <typename T>
py::array_t<T> ColumnOf(const std::vector<T>& items) {
  auto column = NewColumn<T>(items.size());
  std::copy(items.begin(), items.end(), column.mutable_data());
  return column;
}

// Throws unless all of `codes` are below `keys`.
void CheckCodes(const uint32_t* codes, size_t size, size_t keys);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_TUNING_COLUMNS_H_
