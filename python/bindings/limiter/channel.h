// Delivers the results of finished calls to an event loop. The core reports them on a thread of its
// own, which never touches Python: it queues the results and makes a descriptor readable, once for
// all that have not been fetched. Then the loop calls drain(), which resolves their futures.
#ifndef TIDEGATE_PYTHON_BINDINGS_CHANNEL_H_
#define TIDEGATE_PYTHON_BINDINGS_CHANNEL_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "tidegate/decision.h"
#include "tidegate/store.h"
#include "tidegate/wake.h"

namespace tidegate::python {

class Channel {
 public:
  // The channel takes over both references. The owner keeps the decision's limit alive, and
  // everything else that the call needs.
  struct Call {
    PyObject* future;
    PyObject* owner;
    bool decides;
    Decision decision;
    std::shared_ptr<const Outcomes> outcomes;  // null if the caller did not ask for them
  };

  // The references of a destroyed channel; see its destructor.
  struct Orphans;

  Channel();
  // Needs no GIL, and runs on any thread: the main thread drops the remaining references.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int fd() const { return wake_.fd(); }
  // Needs no GIL. Call it from any thread.
  void Push(const Call& call);
  // Needs the GIL. Call it in the loop's thread.
  void Drain();
  // The descriptor becomes readable no more. Call it from any thread.
  void Silence();
  // Has Flush() of `store`, which `owner` keeps alive, called at the end of the loop's turn.
  // Returns false with a Python error set if the loop is closed.
  bool KickSoon(PyObject* channel, PyObject* loop, Store* store, PyObject* owner);
  void KickAll();

 private:
  Wake wake_;
  std::mutex mu_;
  bool silent_ = false;
  std::vector<Call> calls_;
  std::vector<Call> draining_;
  std::vector<std::pair<Store*, PyObject*>> to_kick_;  // only used by the loop's thread
  std::unique_ptr<Orphans> left_;                      // empty; allocated for the destructor
};

// Begins the call `op` for `loop`, which must not wait for it. `submit` begins it in the core, and
// returns the answer if there is no need to wait. Returns the decision, or None if `op` decides
// nothing; else a future of the loop. `owner` keeps the store, the limits and everything else that
// the call needs alive; `outcomes`, which may be null, is where the core writes them. Throws what
// `submit` throws, since a clock that is written in Python may raise.
pybind11::object BeginOn(pybind11::handle loop, pybind11::handle channel, pybind11::handle owner,
                         Store& store, Op op, const std::shared_ptr<Outcomes>& outcomes,
                         absl::FunctionRef<std::optional<Decision>(Store::Done)> submit);

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_CHANNEL_H_
