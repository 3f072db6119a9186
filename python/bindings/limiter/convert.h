// Converts Python's values to the core's, with errors that say what was given and what is expected.
// Everything here needs the GIL.
#ifndef TIDEGATE_PYTHON_BINDINGS_CONVERT_H_
#define TIDEGATE_PYTHON_BINDINGS_CONVERT_H_

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tidegate::python {

namespace py = pybind11;

// The exceptions of tidegate.limiter.errors.
enum class Error { kConfiguration, kArgumentType, kClosed, kStorage };
// Sets the Python error indicator; the caller returns nullptr or throws
// py::error_already_set.
void SetError(Error error, const std::string& message);
[[noreturn]] void Throw(Error error, const std::string& message);

// Throws unless ok: ConfigurationError for an invalid argument, StorageError for other errors of a
// store.
void ThrowUnlessOk(const absl::Status& status);
template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowUnlessOk(value.status());
  return *std::move(value);
}

// repr(object), cut to a length that suits a message; never fails.
std::string Shown(PyObject* object);

// The bytes of a key: the UTF-8 of a str, or bytes themselves. Lone surrogates are encoded too.
// `view` lives as long as the object and this.
class KeyView {
 public:
  // Returns false with the error indicator set if `key` is invalid. A call of it would cost as much
  // as reading a usual key, and there are too many calls for a compiler to inline them by itself.
  __attribute__((always_inline)) inline bool Read(PyObject* key) {
    if (PyUnicode_Check(key) && PyUnicode_IS_COMPACT_ASCII(key)) [[likely]] {
      view_ = {static_cast<const char*>(PyUnicode_DATA(key)),
               static_cast<size_t>(PyUnicode_GET_LENGTH(key))};
      if (!view_.empty()) [[likely]]
        return true;
    }
    return ReadOther(key);
  }
  std::string_view view() const { return view_; }
  // The object that keeps `view` alive beside the key itself, or nullptr.
  py::object TakeEncoded() { return std::move(encoded_); }

 private:
  bool ReadOther(PyObject* key);

  std::string_view view_;
  py::object encoded_;
};

// `value`, named `what` in errors, as a Python int. Null with the error indicator set if it is not
// an int, or a bool.
py::object IntFrom(PyObject* value, const char* what, const char* accepted);

// An int of nanoseconds, saturated. Throws if `ns`, named `what` in errors, is not an int.
int64_t NsFrom(const py::handle& ns, const char* what);

// An int from 1 up; values beyond 64 bits become the largest value, which exceeds every limit.
// Returns false with the error indicator set otherwise.
bool ReadCost(PyObject* cost, int64_t* value);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_CONVERT_H_
