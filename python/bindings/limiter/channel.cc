#include "limiter/channel.h"

#include <atomic>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "limiter/classes.h"
#include "limiter/decision.h"
#include "limiter/gil.h"

namespace tidegate::python {

struct Channel::Orphans {
  std::vector<Call> calls;
  std::vector<std::pair<Store*, PyObject*>> to_kick;
  Orphans* next = nullptr;
};

namespace {

namespace py = pybind11;

// Resolves one future; an error in it is reported to the loop.
void Resolve(const Channel::Call& call, PyObject* done, PyObject* set_result) {
  PyObject* over = PyObject_CallMethodNoArgs(call.future, done);
  if (over == Py_False) {
    PyObject* made =
        call.decides ? NewDecision(call.decision, call.owner, call.outcomes.get()) : nullptr;
    PyObject* value = call.decides ? made : Py_None;
    PyObject* none =
        value == nullptr ? nullptr : PyObject_CallMethodOneArg(call.future, set_result, value);
    Py_XDECREF(made);
    Py_XDECREF(none);
  }
  Py_XDECREF(over);
  if (PyErr_Occurred() != nullptr) PyErr_WriteUnraisable(call.future);
}

// References of destroyed channels. They can only be dropped with the GIL, which a channel's
// destructor may not hold. There is no lock, which a fork() could leave held.
std::atomic<Channel::Orphans*> orphans{nullptr};

void DropOrphans() {
  Channel::Orphans* each = orphans.exchange(nullptr, std::memory_order_acq_rel);
  while (each != nullptr) {
    for (const Channel::Call& call : each->calls) {
      Py_DECREF(call.future);
      Py_DECREF(call.owner);
    }
    for (const auto& [limiter, owner] : each->to_kick) Py_DECREF(owner);
    delete std::exchange(each, each->next);
  }
}

int DropOrphansSoon(void*) {
  DropOrphans();
  return 0;
}

}  // namespace

Channel::Channel() : left_(std::make_unique<Orphans>()) {}

// It allocates no memory.
Channel::~Channel() {
  if (calls_.empty() && to_kick_.empty()) return;
  Orphans* const left = left_.release();
  left->calls.swap(calls_);
  left->to_kick.swap(to_kick_);
  left->next = orphans.load(std::memory_order_relaxed);
  while (!orphans.compare_exchange_weak(left->next, left, std::memory_order_release,
                                        std::memory_order_relaxed)) {
  }
  // If the queue of pending calls is full, the next channel drops the references.
  (void)UnlessEnding([] { (void)Py_AddPendingCall(DropOrphansSoon, nullptr); });
}

void Channel::Push(const Call& call) {
  const std::lock_guard<std::mutex> lock(mu_);
  const bool first = calls_.empty();
  calls_.push_back(call);
  // With the lock, so that Silence() clears what was signalled.
  if (first && !silent_) wake_.Signal();
}

void Channel::Drain() {
  static PyObject* const done = PyUnicode_InternFromString("done");
  static PyObject* const set_result = PyUnicode_InternFromString("set_result");
  // Cleared before the calls are taken, so that later calls signal again.
  wake_.Clear();
  {
    const std::lock_guard<std::mutex> lock(mu_);
    draining_.swap(calls_);
  }
  for (const Call& call : draining_) {
    RunPython([&] { Resolve(call, done, set_result); });
    Py_DECREF(call.future);
    Py_DECREF(call.owner);
  }
  draining_.clear();
}

void Channel::Silence() {
  const std::lock_guard<std::mutex> lock(mu_);
  silent_ = true;
  wake_.Clear();
}

bool Channel::KickSoon(PyObject* channel, PyObject* loop, Store* store, PyObject* owner) {
  static PyObject* const call_soon = PyUnicode_InternFromString("call_soon");
  static PyObject* const kick = PyUnicode_InternFromString("_kick");
  for (const auto& [known, object] : to_kick_) {
    if (known == store) return true;
  }
  if (to_kick_.empty()) {
    const auto method = py::reinterpret_steal<py::object>(PyObject_GetAttr(channel, kick));
    if (!method) return false;
    const auto handle = py::reinterpret_steal<py::object>(
        RunPython([&] { return PyObject_CallMethodOneArg(loop, call_soon, method.ptr()); }));
    if (!handle) return false;
  }
  Py_INCREF(owner);
  to_kick_.emplace_back(store, owner);
  return true;
}

void Channel::KickAll() {
  std::vector<std::pair<Store*, PyObject*>> now;
  now.swap(to_kick_);
  for (const auto& [store, owner] : now) {
    store->Flush();
    Py_DECREF(owner);
  }
}

py::object BeginOn(py::handle loop, py::handle channel_object, py::handle owner, Store& store,
                   Op op, const std::shared_ptr<Outcomes>& outcomes,
                   absl::FunctionRef<std::optional<Decision>(Store::Done)> submit) {
  static PyObject* const create_future = PyUnicode_InternFromString("create_future");
  auto channel = channel_object.cast<std::shared_ptr<Channel>>();
  Channel& heard = *channel;
  const auto future = py::reinterpret_steal<py::object>(
      RunPython([&] { return PyObject_CallMethodNoArgs(loop.ptr(), create_future); }));
  if (!future) throw py::error_already_set();
  const bool decides = IsDecision(op);
  // The channel takes over these two references, unless the answer is known at once.
  py::object kept = future;
  auto keeper = py::reinterpret_borrow<py::object>(owner);
  const std::optional<Decision> early =
      submit([channel = std::move(channel), future = kept.ptr(), owner = keeper.ptr(), decides,
              outcomes](const Decision& decision) {
        channel->Push({future, owner, decides, decision, outcomes});
      });
  if (!early.has_value()) {
    (void)kept.release();
    (void)keeper.release();
    if (!heard.KickSoon(channel_object.ptr(), loop.ptr(), &store, owner.ptr())) {
      throw py::error_already_set();
    }
    return future;
  }
  if (!decides) return py::none();
  return py::reinterpret_steal<py::object>(NewDecision(*early, owner.ptr(), outcomes.get()));
}

void RegisterChannel(py::module_& m) {
  py::class_<Channel, std::shared_ptr<Channel>>(m, "Channel")
      .def(py::init([] {
        DropOrphans();
        try {
          return std::make_shared<Channel>();
        } catch (const std::system_error& error) {
          errno = error.code().value();
          PyErr_SetFromErrno(PyExc_OSError);
          throw py::error_already_set();
        }
      }))
      .def("fileno", &Channel::fd)
      .def("drain", &Channel::Drain)
      .def("_silence", &Channel::Silence)
      .def("_kick", &Channel::KickAll);
}

}  // namespace tidegate::python
