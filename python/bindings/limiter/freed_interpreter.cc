#include "limiter/freed_interpreter.h"

#include <Python.h>

namespace tidegate::python {

#if PY_VERSION_HEX >= 0x030a0000 && PY_VERSION_HEX < 0x030b0000

namespace {

PyMemAllocatorEx wrapped;
const void* kept = nullptr;

// Wraps the function that frees memory without the GIL, such as an interpreter's state.
void Free(void* /*context*/, void* memory) {
  if (memory != kept) wrapped.free(wrapped.ctx, memory);
}

}  // namespace

void KeepFreedInterpreter() {
  kept = PyInterpreterState_Main();
  // Called twice if the interpreter is initialised again in this process.
  if (wrapped.free != nullptr) return;
  PyMem_GetAllocator(PYMEM_DOMAIN_RAW, &wrapped);
  PyMemAllocatorEx wrapper = wrapped;
  // The context does not change, so that a concurrent call may use it with either function.
  wrapper.free = &Free;
  PyMem_SetAllocator(PYMEM_DOMAIN_RAW, &wrapper);
}

#else

void KeepFreedInterpreter() {}

#endif

}  // namespace tidegate::python
