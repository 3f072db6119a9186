// Means for calls that every request makes: methods of CPython's fast-call convention on classes of
// pybind11 (docs/adr/0004-fast-call-methods.md), and types written against the C API.
#ifndef TIDEGATE_PYTHON_BINDINGS_FAST_CALL_H_
#define TIDEGATE_PYTHON_BINDINGS_FAST_CALL_H_

#include <pybind11/pybind11.h>

#include <cstring>
#include <exception>
#include <new>

namespace tidegate::python {

// Runs `call`, which returns a new reference, and sets what it throws as the Python error; what is
// written against the C API must let no exception through.
template <typename Call>
PyObject* Guarded(Call call) {
  try {
    return call();
  } catch (pybind11::error_already_set& error) {
    error.restore();
  } catch (const pybind11::builtin_exception& error) {
    error.set_error();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

template <typename Function>
PyCFunction AsMethod(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// Adds `methods`, which end with one that has no name, as plain method descriptors. Interpreters
// from 3.11 on call such a descriptor directly only if the object's class is exactly the one that
// it was made for.
inline void AddFastMethods(const pybind11::type& type, PyMethodDef* methods) {
  for (PyMethodDef* method = methods; method->ml_name != nullptr; ++method) {
    type.attr(method->ml_name) = pybind11::reinterpret_steal<pybind11::object>(
        PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), method));
  }
}

// Makes `type`, which lives as long as the process, ready and adds it to the module as `name`.
inline void AddType(pybind11::module_& m, const char* name, PyTypeObject& type) {
  auto* const object = reinterpret_cast<PyObject*>(&type);
  Py_SET_REFCNT(object, 1);
  if (PyType_Ready(&type) < 0) throw pybind11::error_already_set();
  m.add_object(name, object);
}

// What a type whose objects are called needs beside its name.
struct CalledType {
  Py_ssize_t size;
  Py_ssize_t call_offset;  // of its vectorcallfunc
  destructor dealloc;
  traverseproc traverse;
  inquiry clear;
};

// Makes `type` ready as `kind` says and adds it to tidegate._core, as the last part of
// `whole_name`.
inline void AddCalledType(pybind11::module_& m, const char* whole_name, PyTypeObject& type,
                          const CalledType& kind, newfunc make, const char* doc) {
  type.tp_name = whole_name;
  type.tp_basicsize = kind.size;
  type.tp_new = make;
  type.tp_dealloc = kind.dealloc;
  type.tp_traverse = kind.traverse;
  type.tp_clear = kind.clear;
  type.tp_call = PyVectorcall_Call;
  type.tp_vectorcall_offset = kind.call_offset;
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_doc = doc;
  AddType(m, std::strrchr(whole_name, '.') + 1, type);
}

// An attribute name that each request looks up; it is created once and never freed.
inline PyObject* Interned(const char* text) {
  PyObject* const name = PyUnicode_InternFromString(text);
  if (name == nullptr) throw pybind11::error_already_set();
  return name;
}

// The C++ object in `self`; null if __init__ was not run.
template <typename T>
T* HeldBy(PyObject* self) {
  // The pointer of a simple instance is inline.
  auto* instance = reinterpret_cast<pybind11::detail::instance*>(self);
  return static_cast<T*>(instance->simple_layout ? instance->simple_value_holder[0]
                                                 : instance->nonsimple.values_and_holders[0]);
}

// The same, also for an object that is being made, which has none yet.
template <typename T>
T* HeldOrNull(PyObject* self) {
  // The first word of either layout.
  const auto* instance = reinterpret_cast<pybind11::detail::instance*>(self);
  return instance->simple_value_holder[0] == nullptr ? nullptr : HeldBy<T>(self);
}

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_FAST_CALL_H_
