// In CPython 3.10 threads that wait for the GIL read the interpreter's state after it was freed:
// since 3.10.8 such a thread withdraws its request for the GIL before it ends. The process then
// crashes if any daemon thread runs while the interpreter ends. Other versions do not free this
// state, or do not read it.
#ifndef TIDEGATE_PYTHON_BINDINGS_FREED_INTERPRETER_H_
#define TIDEGATE_PYTHON_BINDINGS_FREED_INTERPRETER_H_

namespace tidegate::python {

// Keeps the state of the main interpreter in memory until the process ends. Must be called with the
// GIL, when the interpreter is about to end. A running tracemalloc undoes it.
void KeepFreedInterpreter();

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_FREED_INTERPRETER_H_
