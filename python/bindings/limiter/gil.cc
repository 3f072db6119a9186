#include "limiter/gil.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "limiter/freed_interpreter.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

// How long a running hook or password function may take to return before the interpreter ends
// nevertheless.
constexpr std::chrono::milliseconds kPatience{500};

// Set for good by an atexit handler. Sequentially consistent with `entering`: either the handler
// sees that a thread is entering, or that thread sees that the interpreter is ending.
std::atomic<bool> ending{false};
// Threads of the core that found the interpreter running and are about to ask for the GIL.
std::atomic<int> entering{0};
// Threads of the core that have the GIL, wait for it, or released it for a while.
std::atomic<int> visiting{0};

// The state of this thread while it is inside WithoutGil(), and not inside WithGil() again.
constinit thread_local PyThreadState* released = nullptr;

bool HasGil() {
#if PY_VERSION_HEX >= 0x030d0000
  PyThreadState* const current = PyThreadState_GetUnchecked();
#else
  PyThreadState* const current = _PyThreadState_UncheckedGet();
#endif
  // Before 3.12 `current` is the state of whichever thread has the GIL.
  return current != nullptr && current == PyGILState_GetThisThreadState();
}

bool BeginToEnter() {
  entering.fetch_add(1);
  if (!IsEnding()) return true;
  entering.fetch_sub(1);
  return false;
}

void EndEntering() { entering.fetch_sub(1); }

// The atexit handler: refuses entry to threads of the core, and waits for those that have entered.
void End() {
  ending.store(true);
  WithoutGil([] {
    const auto nap = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
    while (entering.load() > 0) nap();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (visiting.load() > 0 && std::chrono::steady_clock::now() < deadline) nap();
  });
  KeepFreedInterpreter();
}

// A Python thread inside WithoutGil().
void CallOnPythonThread(absl::FunctionRef<void()> call) {
  std::exception_ptr thrown;
  bool raised = false;
  PyThreadState* const state = std::exchange(released, nullptr);
  RunPython([&] { PyEval_RestoreThread(state); });
  try {
    RunPython(call);
  } catch (py::error_already_set& error) {
    error.restore();
    raised = true;
  } catch (...) {
    thrown = std::current_exception();
  }
  released = PyEval_SaveThread();
  if (thrown != nullptr) std::rethrow_exception(thrown);
  if (raised) throw PythonRaised();
}

bool CallOnCoreThread(absl::FunctionRef<void()> call) {
  if (!BeginToEnter()) return false;
  visiting.fetch_add(1);
  const PyGILState_STATE state = RunPython([] { return PyGILState_Ensure(); });
  EndEntering();
  std::exception_ptr thrown;
  bool raised = false;
  try {
    RunPython(call);
  } catch (const py::error_already_set&) {
    raised = true;
  } catch (...) {
    thrown = std::current_exception();
  }
  // Runs the Python code that waits for the end of a thread.
  RunPython([&] { PyGILState_Release(state); });
  visiting.fetch_sub(1);
  if (thrown != nullptr) std::rethrow_exception(thrown);
  if (raised) throw PythonRaised();
  return true;
}

}  // namespace

bool IsEnding() {
  if (ending.load()) return true;
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

bool WithGil(absl::FunctionRef<void()> call) {
  if (released != nullptr) {
    CallOnPythonThread(call);
  } else if (HasGil()) {
    call();
  } else {
    return CallOnCoreThread(call);
  }
  return true;
}

void LettingGoOfGil(absl::FunctionRef<void()> call) {
  if (released == nullptr && !IsEnding() && HasGil()) {
    internal::CallWithoutGil(call);
  } else {
    call();
  }
}

bool UnlessEnding(absl::FunctionRef<void()> call) {
  if (!BeginToEnter()) return false;
  call();
  EndEntering();
  return true;
}

void internal::Park() {
  // A parked thread must not take the signals of threads that go on.
  sigset_t all;
  sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, nullptr);
  for (;;) (void)pause();
}

void internal::CallWithoutGil(absl::FunctionRef<void()> call) {
  std::exception_ptr thrown;
  bool raised = false;
  PyThreadState* const state = PyEval_SaveThread();
  released = state;
  try {
    RunPython(call);
  } catch (const PythonRaised&) {
    raised = true;
  } catch (...) {
    thrown = std::current_exception();
  }
  released = nullptr;
  RunPython([&] { PyEval_RestoreThread(state); });
  if (thrown != nullptr) std::rethrow_exception(thrown);
  if (raised) throw py::error_already_set();
}

void RegisterGil() {
  ending.store(false);
  // Resets the state of the parent's threads in a child.
  (void)pthread_atfork(nullptr, nullptr, [] {
    entering.store(0);
    visiting.store(0);
  });
  py::module_::import("atexit").attr("register")(py::cpp_function(&End));
}

}  // namespace tidegate::python
