// CPython 3.10 lets threads that wait for the GIL read the interpreter's state after it has freed
// it: since 3.10.8 such a thread takes back its request for the GIL before it ends. Then the
// process crashes, if any daemon thread computes while the interpreter ends. Other versions do not
// free this state, or do not read it.
#ifndef TIDEGATE_PYTHON_BINDINGS_FREED_INTERPRETER_H_
#define TIDEGATE_PYTHON_BINDINGS_FREED_INTERPRETER_H_

namespace tidegate::python {

// Keeps the state of the main interpreter in memory until the process ends. Must be called with the
// GIL, when the interpreter is about to end. A running tracemalloc undoes it.
void KeepFreedInterpreter();

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_FREED_INTERPRETER_H_
