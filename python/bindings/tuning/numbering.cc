// tidegate._core.number_ints() and similar functions: keys as dense numbers.
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/gil.h"
#include "tuning/columns.h"
#include "tuning/key_numbers.h"

namespace tidegate::python {

void CheckCodes(const uint32_t* codes, size_t size, size_t keys) {
  uint32_t most = 0;
  for (size_t i = 0; i < size; ++i) most = std::max(most, codes[i]);
  if (size > 0 && most >= keys) {
    throw std::invalid_argument("a code is " + std::to_string(most) + "; expected codes below " +
                                std::to_string(keys) + ", the number of names");
  }
}

namespace {

// The codes of a column, and the position at which each key first appears.
struct Numbered {
  uint32_t* codes;
  std::vector<int64_t> firsts;

  void Add(size_t i, uint32_t number, bool is_new) {
    codes[i] = number;
    if (is_new) firsts.push_back(static_cast<int64_t>(i));
  }
};

void CheckCount(size_t keys) {
  if (keys >= kMostKeys) {
    throw std::length_error("there are more than 4294967294 keys; expected fewer");
  }
}

// Converts to 64 bits, so that differences of ints of any width wrap alike.
template <typename T>
uint64_t Widened(T item) {
  return static_cast<uint64_t>(static_cast<int64_t>(item));
}

// Numbers ints by a table if they lie close together, as ids mostly do, else by hash.
template <typename T>
void NumberInts(const T* items, size_t size, Numbered& numbered) {
  if (size == 0) return;
  const auto [least, most] = std::minmax_element(items, items + size);
  const uint64_t range = Widened(*most) - Widened(*least);
  if (range < std::max<uint64_t>(1 << 16, size)) {
    constexpr uint32_t kNone = kMostKeys;
    std::vector<uint32_t> table(range + 1, kNone);
    const uint64_t base = Widened(*least);
    for (size_t i = 0; i < size; ++i) {
      uint32_t& number = table[Widened(items[i]) - base];
      const bool is_new = number == kNone;
      if (is_new) {
        CheckCount(numbered.firsts.size());
        number = static_cast<uint32_t>(numbered.firsts.size());
      }
      numbered.Add(i, number, is_new);
    }
    return;
  }
  absl::flat_hash_map<T, uint32_t> numbers;
  constexpr size_t kAhead = 12;
  for (size_t i = 0; i < size; ++i) {
    if (i + kAhead < size) numbers.prefetch(items[i + kAhead]);
    const auto [found, is_new] =
        numbers.try_emplace(items[i], static_cast<uint32_t>(numbers.size()));
    if (is_new) CheckCount(numbers.size());
    numbered.Add(i, found->second, is_new);
  }
}

template <typename Number>
py::tuple Numbering(size_t size, const Number& number) {
  auto codes = NewColumn<uint32_t>(size);
  Numbered numbered{codes.mutable_data(), {}};
  number(numbered);
  return py::make_tuple(codes, ColumnOf(numbered.firsts));
}

template <typename T>
py::tuple IntsOf(const py::array& column) {
  const auto size = static_cast<size_t>(column.size());
  const T* const items = ItemsOf<T>(column, size, "the keys");
  return Numbering(
      size, [&](Numbered& numbered) { WithoutGil([&] { NumberInts(items, size, numbered); }); });
}

py::tuple PyNumberInts(const py::array& column) {
  const bool is_signed = column.dtype().kind() == 'i';
  switch (column.itemsize()) {
    case 1:
      return is_signed ? IntsOf<int8_t>(column) : IntsOf<uint8_t>(column);
    case 2:
      return is_signed ? IntsOf<int16_t>(column) : IntsOf<uint16_t>(column);
    case 4:
      return is_signed ? IntsOf<int32_t>(column) : IntsOf<uint32_t>(column);
    default:
      return is_signed ? IntsOf<int64_t>(column) : IntsOf<uint64_t>(column);
  }
}

// Numbers texts and bytes of one width, padded with zeros.
py::tuple PyNumberFixed(const py::array& column) {
  const auto size = static_cast<size_t>(column.size());
  const auto width = static_cast<size_t>(column.itemsize());
  const auto* const items = static_cast<const char*>(column.data());
  return Numbering(size, [&](Numbered& numbered) {
    WithoutGil([&] {
      KeyNumbers numbers;
      for (size_t i = 0; i < size; ++i) {
        const char* const item = items + i * width;
        // Keys are mostly shorter than their width, and the rest of it need not be hashed.
        size_t used = width;
        while (used > 0 && item[used - 1] == 0) --used;
        const auto [number, is_new] = numbers.Of({item, used});
        if (is_new) CheckCount(numbers.size());
        numbered.Add(i, number, is_new);
      }
    });
  });
}

// Numbers a list of str and bytes, by their UTF-8. The third item of the result is the position of
// the first item that is not a key, or -1.
py::tuple PyNumberObjects(const py::list& items) {
  auto codes = NewColumn<uint32_t>(items.size());
  Numbered numbered{codes.mutable_data(), {}};
  KeyNumbers numbers;
  std::vector<py::object> encoded;
  int64_t bad = -1;
  for (size_t i = 0; i < items.size(); ++i) {
    PyObject* const item = PyList_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    KeyView key;
    if (!key.Read(item)) {
      PyErr_Clear();
      bad = static_cast<int64_t>(i);
      break;
    }
    const auto [number, is_new] = numbers.Of(key.view());
    numbered.Add(i, number, is_new);
    if (py::object made = key.TakeEncoded(); made && is_new) encoded.push_back(std::move(made));
  }
  return py::make_tuple(codes, ColumnOf(numbered.firsts), bad);
}

// Returns (the first position of an instant that is out of range or -1, whether all are in order,
// the least, the greatest, whether one is not a whole number of milliseconds).
py::tuple PyScanTimes(const py::array& column, int64_t most) {
  const auto size = static_cast<size_t>(column.size());
  const auto* const times = ItemsOf<int64_t>(column, size, "the times");
  struct Found {
    int64_t bad = -1;
    bool in_order = true;
    int64_t least = std::numeric_limits<int64_t>::max();
    int64_t greatest = std::numeric_limits<int64_t>::min();
    bool is_fine = false;
  };
  const Found found = WithoutGil([&] {
    Found f;
    for (size_t i = 0; i < size; ++i) {
      if (i > 0 && times[i] < times[i - 1]) f.in_order = false;
      f.least = std::min(f.least, times[i]);
      f.greatest = std::max(f.greatest, times[i]);
    }
    if (size > 0 && (f.least < 0 || f.greatest > most)) {
      const auto* const bad = std::find_if(
          times, times + size, [most](int64_t time) { return time < 0 || time > most; });
      f.bad = bad - times;
    }
    f.is_fine =
        std::any_of(times, times + size, [](int64_t time) { return time % 1'000'000 != 0; });
    return f;
  });
  return py::make_tuple(found.bad, found.in_order, found.least, found.greatest, found.is_fine);
}

// How often each code occurs, and how often at positions where `marks` is not 0.
py::tuple PyCountByKey(const py::array& codes, size_t keys, const py::array& marks) {
  const auto size = static_cast<size_t>(codes.size());
  const auto* const items = ItemsOf<uint32_t>(codes, size, "the codes");
  const auto* const marked = ItemsOf<uint8_t>(marks, size, "the marks");
  auto all = NewColumn<int64_t>(keys);
  auto those = NewColumn<int64_t>(keys);
  int64_t* const all_items = all.mutable_data();
  int64_t* const those_items = those.mutable_data();
  WithoutGil([&] {
    CheckCodes(items, size, keys);
    std::fill_n(all_items, keys, 0);
    std::fill_n(those_items, keys, 0);
    for (size_t i = 0; i < size; ++i) {
      ++all_items[items[i]];
      those_items[items[i]] += marked[i] != 0;
    }
  });
  return py::make_tuple(all, those);
}

}  // namespace

void RegisterNumbering(py::module_& m) {
  m.def("number_ints", &PyNumberInts, py::arg("keys"));
  m.def("number_fixed", &PyNumberFixed, py::arg("keys"));
  m.def("number_objects", &PyNumberObjects, py::arg("keys"));
  m.def("scan_times", &PyScanTimes, py::arg("times_ns"), py::arg("most"));
  m.def("count_by_key", &PyCountByKey, py::arg("codes"), py::arg("keys"), py::arg("marks"));
}

}  // namespace tidegate::python
