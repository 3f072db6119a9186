// Limiter.hit_many. The GIL is held if each decision is a step in memory.
#include <pybind11/numpy.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "limiter/convert.h"
#include "limiter/gil.h"
#include "limiter/limiter.h"
#include "tidegate/limiter.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;

// The items of a sequence, as a tuple that no other code can change meanwhile: not the code of a
// cost or a clock, nor another thread while the GIL is released.
class Items {
 public:
  Items(const py::object& sequence, const char* what, const char* accepted, bool as_tuple) {
    if (PySequence_Check(sequence.ptr()) == 0 && Py_TYPE(sequence.ptr())->tp_iter == nullptr) {
      Throw(Error::kArgumentType,
            std::string(what) + " are " + Shown(sequence.ptr()) + "; expected " + accepted);
    }
    items_ = py::reinterpret_steal<py::object>(RunPython([&] {
      return as_tuple ? PySequence_Tuple(sequence.ptr()) : PySequence_Fast(sequence.ptr(), what);
    }));
    if (!items_) throw py::error_already_set();
  }
  size_t size() const { return static_cast<size_t>(PySequence_Fast_GET_SIZE(items_.ptr())); }
  PyObject* operator[](size_t i) const { return PySequence_Fast_ITEMS(items_.ptr())[i]; }

  // Prefetches the next items: each is a separate object, which is rarely in the cache.
  void Prefetch(size_t i) const {
    constexpr size_t kAhead = 16;
    if (i + kAhead >= size()) return;
    PyObject* const item = (*this)[i + kAhead];
    __builtin_prefetch(item);
    __builtin_prefetch(reinterpret_cast<const char*>(item) + sizeof(PyASCIIObject));
  }

 private:
  py::object items_;
};

constexpr const char* kAcceptedKeys = "a list of str or bytes";

std::vector<Fingerprint> FingerprintsOf(const Limiter& limiter, const Items& keys) {
  std::vector<Fingerprint> fingerprints;
  fingerprints.reserve(keys.size());
  // Fingerprints are written into a block and read later: a read right after the write would stall,
  // since it reads as a whole what was written in halves.
  constexpr size_t kBlock = 128;
  Fingerprint block[kBlock];
  for (size_t start = 0; start < keys.size(); start += kBlock) {
    const size_t n = std::min(kBlock, keys.size() - start);
    for (size_t i = 0; i < n; ++i) {
      keys.Prefetch(start + i);
      KeyView key;
      if (!key.Read(keys[start + i])) throw py::error_already_set();
      const Fingerprint print = limiter.FingerprintOf(key.view());
      block[i].lo = print.lo;
      block[i].hi = print.hi;
    }
    fingerprints.insert(fingerprints.end(), block, block + n);
  }
  return fingerprints;
}

std::vector<int64_t> AmountsOf(const py::object& costs, size_t keys) {
  std::vector<int64_t> amounts;
  if (costs.is_none()) return amounts;
  const Items given(costs, "the costs", "a list of int", /*as_tuple=*/true);
  if (given.size() != keys) {
    Throw(Error::kConfiguration, std::to_string(keys) + " keys were given with " +
                                     std::to_string(given.size()) +
                                     " costs; expected a cost for each key");
  }
  amounts.resize(keys);
  for (size_t i = 0; i < keys; ++i) {
    if (!ReadCost(given[i], &amounts[i])) throw py::error_already_set();
  }
  return amounts;
}

std::vector<char> Allowed(Limiter& limiter, const py::object& keys, const py::object& costs) {
  if (PyUnicode_Check(keys.ptr()) || PyBytes_Check(keys.ptr())) {
    Throw(Error::kArgumentType,
          "the keys are " + Shown(keys.ptr()) + "; expected " + kAcceptedKeys);
  }
  const bool by_fingerprints = costs.is_none() && limiter.TakesFingerprints();
  // No other code runs while fingerprints are made, and the keys are not needed afterwards.
  const Items items(keys, "the keys", kAcceptedKeys, /*as_tuple=*/!by_fingerprints);
  std::vector<char> allowed(items.size());
  static_assert(sizeof(bool) == 1);
  auto* const answers = reinterpret_cast<bool*>(allowed.data());
  if (by_fingerprints) {
    limiter.HitMany(FingerprintsOf(limiter, items), answers);
    return allowed;
  }
  std::vector<std::string_view> views(items.size());
  std::vector<py::object> encoded;
  for (size_t i = 0; i < items.size(); ++i) {
    items.Prefetch(i);
    KeyView key;
    if (!key.Read(items[i])) throw py::error_already_set();
    views[i] = key.view();
    if (py::object kept = key.TakeEncoded()) encoded.push_back(std::move(kept));
  }
  const std::vector<int64_t> amounts = AmountsOf(costs, items.size());
  Run(limiter, [&] { limiter.HitMany(views, amounts, answers); });
  return allowed;
}

bool IsArray(const py::object& object) {
  // If NumPy was never imported, `keys` is no array.
  const py::object numpy = py::module_::import("sys").attr("modules").attr("get")("numpy");
  return !numpy.is_none() && py::isinstance(object, numpy.attr("ndarray"));
}

}  // namespace

py::object HitMany(Limiter& limiter, const py::object& keys, const py::object& costs) {
  const bool array = IsArray(keys);
  const py::object key_list = array ? keys.attr("ravel")().attr("tolist")() : keys;
  const py::object cost_list =
      !costs.is_none() && IsArray(costs) ? costs.attr("ravel")().attr("tolist")() : costs;
  const std::vector<char> allowed = Allowed(limiter, key_list, cost_list);
  if (array) {
    py::array_t<bool> result(static_cast<py::ssize_t>(allowed.size()));
    std::copy(allowed.begin(), allowed.end(), result.mutable_data());
    return result;
  }
  auto list =
      py::reinterpret_steal<py::object>(PyList_New(static_cast<Py_ssize_t>(allowed.size())));
  if (!list) throw py::error_already_set();
  for (size_t i = 0; i < allowed.size(); ++i) {
    PyObject* value = allowed[i] != 0 ? Py_True : Py_False;
    Py_INCREF(value);
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), value);
  }
  return list;
}

}  // namespace tidegate::python
