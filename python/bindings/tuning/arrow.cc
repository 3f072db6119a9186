// tidegate._core.arrow_column(): a column of Arrow from any library, through the PyCapsule
// interface. The structures are those of Arrow's C data interface, which never change.
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "limiter/classes.h"
#include "limiter/convert.h"
#include "limiter/gil.h"
#include "tuning/columns.h"
#include "tuning/key_numbers.h"

// NOLINTBEGIN(readability-identifier-naming): the names are Arrow's.
extern "C" {
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};
struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};
struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema*);
  int (*get_next)(ArrowArrayStream*, ArrowArray*);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};
}
// NOLINTEND(readability-identifier-naming)

namespace tidegate::python {
namespace {

// One of the structures, which is released with this.
template <typename T>
struct Held : T {
  Held() : T() {}
  Held(Held&& other) noexcept : T(other) { other.release = nullptr; }
  Held& operator=(Held&&) = delete;
  ~Held() {
    if (this->release != nullptr) this->release(this);
  }
};

template <typename T>
Held<T> TakenFrom(const py::handle& capsule, const char* name) {
  auto* const given = static_cast<T*>(PyCapsule_GetPointer(capsule.ptr(), name));
  if (given == nullptr) throw py::error_already_set();
  Held<T> taken;
  static_cast<T&>(taken) = *given;
  given->release = nullptr;  // the structure is moved, so its first owner must not release it
  return taken;
}

struct Chunks {
  Held<ArrowSchema> schema;
  std::vector<Held<ArrowArray>> arrays;
};

Chunks ChunksOf(const py::object& column) {
  if (!py::hasattr(column, "__arrow_c_stream__")) {
    const auto both = column.attr("__arrow_c_array__")().cast<py::tuple>();
    Chunks chunks{TakenFrom<ArrowSchema>(both[0], "arrow_schema"), {}};
    chunks.arrays.push_back(TakenFrom<ArrowArray>(both[1], "arrow_array"));
    return chunks;
  }
  Held<ArrowArrayStream> stream =
      TakenFrom<ArrowArrayStream>(column.attr("__arrow_c_stream__")(), "arrow_array_stream");
  const auto check = [&stream](int error) {
    if (error == 0) return;
    const char* const text = stream.get_last_error(&stream);
    throw std::runtime_error(text != nullptr ? text : "the stream of Arrow failed");
  };
  Chunks chunks;
  check(stream.get_schema(&stream, &chunks.schema));
  while (true) {
    Held<ArrowArray> array;
    check(stream.get_next(&stream, &array));
    if (array.release == nullptr) return chunks;
    chunks.arrays.push_back(std::move(array));
  }
}

bool IsNull(const ArrowArray& array, int64_t i) {
  if (array.null_count == 0 || array.n_buffers == 0 || array.buffers[0] == nullptr) return false;
  const int64_t bit = array.offset + i;
  return (static_cast<const uint8_t*>(array.buffers[0])[bit / 8] >> (bit % 8) & 1) == 0;
}

template <typename T>
const T* BufferOf(const ArrowArray& array, int64_t number) {
  return static_cast<const T*>(array.buffers[number]);
}

// Calls `visit(i, text)` for the values of an array of texts or bytes; nulls have no data.
template <typename Offset, typename Visit>
void VisitOffsets(const ArrowArray& array, const Visit& visit) {
  const auto* const offsets = BufferOf<Offset>(array, 1) + array.offset;
  const auto* const data = BufferOf<char>(array, 2);
  for (int64_t i = 0; i < array.length; ++i) {
    visit(i, IsNull(array, i) ? std::string_view()
                              : std::string_view(data == nullptr ? "" : data + offsets[i],
                                                 static_cast<size_t>(offsets[i + 1] - offsets[i])));
  }
}

template <typename Visit>
void VisitViews(const ArrowArray& array, const Visit& visit) {
  constexpr int32_t kMostInline = 12;
  constexpr size_t kViewBytes = 16;
  const auto* const views =
      BufferOf<char>(array, 1) + kViewBytes * static_cast<size_t>(array.offset);
  for (int64_t i = 0; i < array.length; ++i) {
    const char* const view = views + kViewBytes * static_cast<size_t>(i);
    std::array<int32_t, 4> words{};  // length, prefix, buffer, offset
    std::memcpy(words.data(), view, kViewBytes);
    const char* const data = words[0] <= kMostInline
                                 ? view + sizeof(int32_t)
                                 : BufferOf<char>(array, 2 + words[2]) + words[3];
    visit(i, IsNull(array, i) ? std::string_view()
                              : std::string_view(data, static_cast<size_t>(words[0])));
  }
}

template <typename Visit>
void VisitFixed(const ArrowArray& array, size_t width, const Visit& visit) {
  const auto* const data = BufferOf<char>(array, 1) + width * static_cast<size_t>(array.offset);
  for (int64_t i = 0; i < array.length; ++i) {
    visit(i, IsNull(array, i) ? std::string_view()
                              : std::string_view(data + width * static_cast<size_t>(i), width));
  }
}

// Returns false if the array has neither texts nor bytes.
template <typename Visit>
bool VisitTexts(const std::string& format, const ArrowArray& array, const Visit& visit) {
  if (array.length == 0) return true;  // an empty array may have any type
  if (format == "u" || format == "z") {
    VisitOffsets<int32_t>(array, visit);
  } else if (format == "U" || format == "Z") {
    VisitOffsets<int64_t>(array, visit);
  } else if (format == "vu" || format == "vz") {
    VisitViews(array, visit);
  } else if (format.rfind("w:", 0) == 0) {
    VisitFixed(array, std::stoul(format.substr(2)), visit);
  } else {
    return false;
  }
  return true;
}

// Calls `visit` for each item; returns true.
template <typename T, typename Visit>
bool VisitItems(const ArrowArray& array, const Visit& visit) {
  const T* const items = BufferOf<T>(array, 1) + array.offset;
  for (int64_t i = 0; i < array.length; ++i) {
    visit(i, IsNull(array, i), static_cast<int64_t>(items[i]));
  }
  return true;
}

// Calls `visit(i, is_null, value)` for ints of any width; those of 64 bits without a sign wrap.
template <typename Visit>
bool VisitInts(char format, const ArrowArray& array, const Visit& visit) {
  if (array.length == 0) return true;
  switch (format) {
    case 'c':
      return VisitItems<int8_t>(array, visit);
    case 'C':
      return VisitItems<uint8_t>(array, visit);
    case 's':
      return VisitItems<int16_t>(array, visit);
    case 'S':
      return VisitItems<uint16_t>(array, visit);
    case 'i':
      return VisitItems<int32_t>(array, visit);
    case 'I':
      return VisitItems<uint32_t>(array, visit);
    case 'l':
      return VisitItems<int64_t>(array, visit);
    case 'L':
      return VisitItems<uint64_t>(array, visit);
    default:
      return false;
  }
}

// Numbers texts, and keeps one copy of each.
class Texts {
 public:
  static constexpr uint32_t kNull = kMostKeys;

  uint32_t Of(std::string_view text) {
    if (text.data() == nullptr) return kNull;
    const auto found = numbers_.find(absl::string_view(text.data(), text.size()));
    if (found != numbers_.end()) return found->second;
    const std::string& kept = kept_.emplace_back(text);
    const auto number = static_cast<uint32_t>(numbers_.size());
    numbers_.emplace(kept, number);
    return number;
  }
  const std::deque<std::string>& kept() const { return kept_; }

 private:
  std::deque<std::string> kept_;
  absl::flat_hash_map<absl::string_view, uint32_t> numbers_;
};

constexpr const char* kAccepted =
    "; expected texts, bytes, ints, timestamps, or a dictionary of them";

// Codes of a column of texts, bytes or a dictionary of these. A null has the code kNull.
bool NumberChunk(const ArrowSchema& schema, const ArrowArray& array, Texts& texts,
                 uint32_t* codes) {
  if (schema.dictionary == nullptr) {
    return VisitTexts(schema.format, array,
                      [&](int64_t i, std::string_view text) { codes[i] = texts.Of(text); });
  }
  std::vector<uint32_t> numbers(static_cast<size_t>(array.dictionary->length));
  if (!VisitTexts(schema.dictionary->format, *array.dictionary, [&](int64_t i, std::string_view t) {
        numbers[static_cast<size_t>(i)] = texts.Of(t);
      })) {
    return false;
  }
  // Values of the dictionary that no request has keep their numbers.
  return VisitInts(schema.format[0], array, [&](int64_t i, bool is_null, int64_t index) {
    const bool is_there = !is_null && index >= 0 && static_cast<size_t>(index) < numbers.size();
    codes[i] = is_there ? numbers[static_cast<size_t>(index)] : Texts::kNull;
  });
}

py::list NamesOf(const Texts& texts, bool as_bytes) {
  py::list names;
  for (const std::string& text : texts.kept()) {
    PyObject* const name =
        as_bytes ? PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()))
                 : PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()),
                                        "surrogatepass");
    if (name == nullptr) throw py::error_already_set();
    names.append(py::reinterpret_steal<py::object>(name));
  }
  return names;
}

bool IsBytes(const std::string& format) {
  return format[0] == 'z' || format[0] == 'Z' || format[0] == 'w' || format == "vz";
}

// ("texts", codes, names, first null or -1), ("ints", ints, whether they are unsigned, likewise) or
// ("times", ints, unit and zone such as "n:UTC", likewise).
py::tuple PyArrowColumn(const py::object& column) {
  const Chunks chunks = ChunksOf(column);
  const ArrowSchema& schema = chunks.schema;
  const std::string format = schema.format;
  int64_t size = 0;
  for (const ArrowArray& array : chunks.arrays) size += array.length;
  const bool is_texts = schema.dictionary != nullptr || format[0] == 'u' || format[0] == 'U' ||
                        format[0] == 'v' || IsBytes(format);
  const bool is_times = format.rfind("ts", 0) == 0 && format.size() >= 4;
  int64_t null_at = -1;
  bool is_known = true;
  if (is_texts) {
    auto codes = NewColumn<uint32_t>(static_cast<size_t>(size));
    uint32_t* const items = codes.mutable_data();
    Texts texts;
    WithoutGil([&] {
      int64_t done = 0;
      for (const ArrowArray& array : chunks.arrays) {
        is_known = is_known && NumberChunk(schema, array, texts, items + done);
        done += array.length;
      }
      const auto* const null = std::find(items, items + size, Texts::kNull);
      if (is_known && null != items + size) null_at = null - items;
    });
    if (is_known) {
      const std::string values = schema.dictionary == nullptr ? format : schema.dictionary->format;
      return py::make_tuple("texts", codes, NamesOf(texts, IsBytes(values)), null_at);
    }
  } else {
    auto ints = NewColumn<int64_t>(static_cast<size_t>(size));
    int64_t* const items = ints.mutable_data();
    WithoutGil([&] {
      int64_t done = 0;
      for (const ArrowArray& array : chunks.arrays) {
        is_known = is_known && VisitInts(is_times ? 'l' : format[0], array,
                                         [&](int64_t i, bool is_null, int64_t value) {
                                           items[done + i] = value;
                                           if (is_null && null_at < 0) null_at = done + i;
                                         });
        done += array.length;
      }
    });
    is_known = is_known && (is_times || format.size() == 1);
    if (is_known && is_times) return py::make_tuple("times", ints, format.substr(2), null_at);
    if (is_known) return py::make_tuple("ints", ints, format == "L", null_at);
  }
  Throw(Error::kArgumentType,
        "the column of Arrow has the format " + format +
            (schema.dictionary == nullptr ? "" : " of " + std::string(schema.dictionary->format)) +
            kAccepted);
}

}  // namespace

void RegisterArrow(py::module_& m) { m.def("arrow_column", &PyArrowColumn, py::arg("column")); }

}  // namespace tidegate::python
