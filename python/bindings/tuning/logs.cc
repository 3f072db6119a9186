// tidegate.tuning._logs: reads the logs of servers into NumPy columns. It shares nothing with
// _core.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "limiter/gil.h"
#include "limiter/instances.h"
#include "logs/reader.h"

namespace tidegate::python {
namespace {

namespace py = pybind11;
using logs::Reader;
using logs::TimeUnit;

// The text before the field or the field's name; its kind; the name of its column.
using Field = std::tuple<std::string, std::string, std::string>;

TimeUnit UnitNamed(const std::string& name) {
  if (name.empty()) return TimeUnit::kUnknown;
  if (name == "s") return TimeUnit::kSeconds;
  if (name == "ms") return TimeUnit::kMilliseconds;
  if (name == "us") return TimeUnit::kMicroseconds;
  if (name == "ns") return TimeUnit::kNanoseconds;
  throw std::invalid_argument("the unit of times is " + name + "; expected s, ms, us or ns");
}

const char* NameOf(TimeUnit unit) {
  switch (unit) {
    case TimeUnit::kSeconds:
      return "s";
    case TimeUnit::kMilliseconds:
      return "ms";
    case TimeUnit::kMicroseconds:
      return "us";
    case TimeUnit::kNanoseconds:
      return "ns";
    case TimeUnit::kUnknown:
      break;
  }
  return "";
}

std::unique_ptr<Reader> MakeReader(const std::string& format, const std::vector<Field>& fields,
                                   const std::string& start, bool open_end, char delimiter,
                                   const std::string& header, bool keep_query,
                                   const std::string& time_unit) {
  logs::Schema schema;
  schema.keep_query = keep_query;
  std::vector<std::pair<std::string, logs::Target>> targets;
  for (const auto& [text, kind_name, name] : fields) {
    const auto kind = logs::KindNamed(kind_name);
    if (!kind) throw std::invalid_argument("there is no kind of field " + kind_name);
    targets.emplace_back(text, logs::AddField(*kind, name, &schema));
  }
  std::unique_ptr<logs::Parser> parser;
  if (format == "text") {
    std::vector<logs::TextField> pattern;
    pattern.reserve(targets.size());
    for (auto& [until, target] : targets) pattern.push_back({target, until});
    parser = logs::MakeTextParser(start, std::move(pattern), open_end);
  } else if (format == "json") {
    parser = logs::MakeJsonParser(targets);
  } else if (format == "csv") {
    std::vector<logs::Target> columns;
    columns.reserve(targets.size());
    for (const auto& field : targets) columns.push_back(field.second);
    parser = logs::MakeCsvParser(delimiter, header, std::move(columns));
  } else if (format == "w3c") {
    parser = logs::MakeW3cParser(std::move(targets));
  } else {
    throw std::invalid_argument("the format is " + format + "; expected text, json, csv or w3c");
  }
  return std::make_unique<Reader>(std::move(parser), schema, UnitNamed(time_unit),
                                  format == "csv" ? delimiter : '\0');
}

void Feed(Reader& reader, const py::bytes& chunk) {
  const std::string_view text(chunk);
  WithoutGil([&] { reader.Feed(text); });
}

void EndSource(Reader& reader, bool cut_off) {
  WithoutGil([&] { reader.EndSource(cut_off); });
}

// The values as an array, without a copy.
template <typename T>
py::array ArrayOf(std::vector<T>&& values) {
  auto* const kept = new std::vector<T>(std::move(values));
  const py::capsule owner(kept, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  return py::array_t<T>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

// Shows bytes that are not UTF-8 as \xff.
py::str TextOf(std::string_view text) {
  PyObject* const decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

py::dict TakeColumns(Reader& reader) {
  logs::Columns& columns = reader.columns();
  const logs::Schema& schema = reader.schema();
  py::dict taken;
  taken["time"] = ArrayOf(std::move(columns.times_ns));
  if (schema.has_status) taken["status"] = ArrayOf(std::move(columns.status));
  if (schema.has_bytes) taken["bytes"] = ArrayOf(std::move(columns.bytes));
  if (schema.has_duration) taken["duration_ns"] = ArrayOf(std::move(columns.durations_ns));
  for (size_t i = 0; i < columns.keys.size(); ++i) {
    logs::KeyColumn& column = columns.keys[i];
    const auto& names = column.dictionary.names();
    py::list decoded(names.size());
    for (size_t code = 0; code < names.size(); ++code) decoded[code] = TextOf(names[code]);
    taken[py::str(schema.keys[i])] = py::make_tuple(ArrayOf(std::move(column.codes)), decoded);
  }
  return taken;
}

py::list BadLines(const Reader& reader) {
  py::list lines;
  for (const logs::BadLine& bad : reader.bad_lines()) {
    lines.append(py::make_tuple(bad.source, bad.number, TextOf(bad.text), TextOf(bad.reason)));
  }
  return lines;
}

// Nanoseconds since the epoch, the least number for a text that is no time; and whether the times
// have no zones.
py::tuple ReadTimes(const std::vector<std::string>& texts) {
  logs::TimeReader reader;
  std::vector<int64_t> times(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (reader.Read(texts[i], &times[i]) != nullptr) {
      times[i] = std::numeric_limits<int64_t>::min();
    }
  }
  return py::make_tuple(ArrayOf(std::move(times)), reader.has_no_zones());
}

}  // namespace

// NOLINTNEXTLINE(bugprone-reserved-identifier): the name is Python's.
PYBIND11_MODULE(_logs, m) {
  RegisterGil();
  m.doc() = "Reads the logs of servers into columns; tidegate.tuning.read_log() calls it.";
  m.def("read_times", &ReadTimes, py::arg("texts"));
  py::class_<Reader>(m, "Reader")
      .def(py::init(&MakeReader), py::arg("format"), py::arg("fields"), py::kw_only(),
           py::arg("start") = "", py::arg("open_end") = false, py::arg("delimiter") = ',',
           py::arg("header") = "", py::arg("keep_query") = false, py::arg("time_unit") = "")
      .def("feed", &Feed, py::arg("chunk"))
      .def("end_source", &EndSource, py::arg("cut_off") = false)
      .def("take_columns", &TakeColumns)
      .def_property_readonly("rows", &Reader::rows)
      .def_property_readonly("bad", &Reader::bad)
      .def_property_readonly("bad_lines", &BadLines)
      .def_property_readonly("guessed_units", &Reader::guessed_units)
      .def_property_readonly("time_unit",
                             [](const Reader& reader) { return NameOf(reader.times().unit()); })
      .def_property_readonly("has_no_zones",
                             [](const Reader& reader) { return reader.times().has_no_zones(); })
      .def_property_readonly("has_mixed_zones",
                             [](const Reader& reader) { return reader.times().has_mixed_zones(); })
      .def_property_readonly("has_fractions",
                             [](const Reader& reader) { return reader.times().has_fractions(); });
  GuardInstances(m);
}

}  // namespace tidegate::python
