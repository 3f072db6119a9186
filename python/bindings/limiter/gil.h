// The only file of the bindings that releases or takes the GIL, so that the interpreter may end
// while threads are in the core, or in Python on the core's behalf.
//
// CPython up to 3.13 ends a thread that asks for the GIL of an interpreter that is ending: by
// pthread_exit(), which unwinds the stack by force. Unwinding a noexcept frame aborts the process,
// and destructors change reference counts without the GIL. From 3.14 on such a thread waits until
// the process ends. This file makes it wait with every version, in the call that asked for the GIL.
#ifndef TIDEGATE_PYTHON_BINDINGS_GIL_H_
#define TIDEGATE_PYTHON_BINDINGS_GIL_H_

#include <pybind11/pybind11.h>

#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/functional/function_ref.h"

#if defined(__GLIBCXX__)
#include <cxxabi.h>
#endif

namespace tidegate::python {

// Whether the interpreter is ending: true once our atexit handler has run. Handlers run in the
// reverse order of their registration.
bool IsEnding();

// Calls `call` without the GIL, which the caller has, and returns or throws what `call` does. Never
// returns if the interpreter has ended meanwhile, unless this is the thread that ends it.
template <typename Call>
auto WithoutGil(Call call);

// Calls `call`, which throws nothing and needs no GIL, on any thread: without the GIL, if the
// caller has it and the interpreter is not ending. For destructors.
void LettingGoOfGil(absl::FunctionRef<void()> call);

// Calls `call` with the GIL, on any thread, also inside WithoutGil(). Returns false, and calls
// nothing, if this is a thread of the core and the interpreter is ending. Throws PythonRaised for a
// Python exception if the GIL is not held on return.
bool WithGil(absl::FunctionRef<void()> call);

// Stands for a Python exception, which a thread without the GIL cannot carry. Inside WithoutGil()
// the exception is set in the thread's state, and WithoutGil() throws it; threads of the core drop
// it.
class PythonRaised final : public std::exception {
 public:
  const char* what() const noexcept override { return "a Python function raised an exception"; }
};

// Calls `call`, which needs no GIL, on any thread. The interpreter does not end meanwhile.
// Returns false, and calls nothing, if it is ending already.
bool UnlessEnding(absl::FunctionRef<void()> call);

// Calls `call`, a function of the C API, with the GIL. `call` may run Python code, in which the
// thread may be ended with the interpreter. `call` must own no reference, since it is unwound then.
template <typename Call>
auto RunPython(Call call);

// callable(*arguments), as RunPython() calls it. Throws py::error_already_set.
template <typename... Arguments>
pybind11::object CallPython(const pybind11::handle& callable, const Arguments&... arguments);

// Registers the handler that runs when the interpreter ends.
void RegisterGil();

// ------------------------------------------------------------- implementation

namespace internal {

// Waits until the process ends.
[[noreturn]] void Park();
void CallWithoutGil(absl::FunctionRef<void()> call);

}  // namespace internal

template <typename Call>
auto WithoutGil(Call call) {
  using Result = std::invoke_result_t<Call&>;
  if constexpr (std::is_void_v<Result>) {
    internal::CallWithoutGil(call);
  } else {
    std::optional<Result> result;
    internal::CallWithoutGil([&] { result.emplace(call()); });
    return *std::move(result);
  }
}

// UBSan takes the unwinding of an ending thread, which has no object, for a null reference.
template <typename Call>
__attribute__((no_sanitize("undefined"))) auto RunPython(Call call) {
#if defined(__GLIBCXX__)
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    internal::Park();
  }
#else
  return call();
#endif
}

template <typename... Arguments>
pybind11::object CallPython(const pybind11::handle& callable, const Arguments&... arguments) {
  const pybind11::tuple packed = pybind11::make_tuple(arguments...);
  PyObject* const result =
      RunPython([&] { return PyObject_CallObject(callable.ptr(), packed.ptr()); });
  if (result == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(result);
}

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_GIL_H_
