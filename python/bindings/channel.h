// How an event loop hears of calls that it did not wait for. The core tells of them on
// a thread of its own, which never touches Python: it leaves what came out and makes a
// descriptor readable, once for all that has not been fetched. The loop calls drain()
// then, which resolves their futures.
#ifndef TIDEGATE_PYTHON_BINDINGS_CHANNEL_H_
#define TIDEGATE_PYTHON_BINDINGS_CHANNEL_H_

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tidegate/decision.h"
#include "tidegate/store.h"
#include "tidegate/wake.h"

namespace tidegate::python {

class Channel {
 public:
  // Both references are given to the channel; the owner keeps the decision's limit and
  // whatever else the call needs.
  struct Call {
    PyObject* future;
    PyObject* owner;
    bool decides;
    Decision decision;
    std::shared_ptr<const Outcomes> outcomes;  // null where they were not asked for
  };

  // What is left when a channel is gone; see its destructor.
  struct Orphans;

  Channel();
  // Without the GIL, from any thread: the main thread drops what references are left.
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int fd() const { return wake_.fd(); }
  // Without the GIL, from any thread.
  void Push(const Call& call);
  // With the GIL, in the loop's thread.
  void Drain();
  // Has Flush() called of `store`, which `owner` keeps, when the loop is done with what
  // it is at. False with a Python error set where the loop is closed.
  bool KickSoon(PyObject* channel, PyObject* loop, Store* store, PyObject* owner);
  void KickAll();

 private:
  Wake wake_;
  std::mutex mu_;
  std::vector<Call> calls_;
  std::vector<Call> draining_;
  std::vector<std::pair<Store*, PyObject*>> to_kick_;  // by the loop's thread alone
  std::unique_ptr<Orphans> left_;                      // empty; there before it is needed
};

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_CHANNEL_H_
