// The rate-limit header fields of a response as Python objects. They are made for each response,
// from templates for the limits of one plan.
#ifndef TIDEGATE_PYTHON_BINDINGS_WEB_RESPONSE_HEADERS_H_
#define TIDEGATE_PYTHON_BINDINGS_WEB_RESPONSE_HEADERS_H_

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tidegate/decision.h"
#include "tidegate/limit.h"
#include "tidegate/rate_fields.h"

namespace tidegate::python {

namespace py = pybind11;

// The most bytes of a limit's name in the fields, with escapes; Limit has names of at most 200.
constexpr size_t kMaxItem = 512;

inline char Lower(char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Header fields in ASGI: bytes, with names in lower case.
struct Raw {
  static PyObject* Make(std::string_view text) {
    return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  }
  static std::string_view View(PyObject* object) {
    if (!PyBytes_Check(object)) return {};
    return {PyBytes_AS_STRING(object), static_cast<size_t>(PyBytes_GET_SIZE(object))};
  }
  static std::string Named(RateField field) { return LowerNameOf(field); }
};

// Header fields in WSGI: text, with names in their usual case.
struct Text {
  static PyObject* Make(std::string_view text) {
    return PyUnicode_DecodeASCII(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
  }
  static std::string_view View(PyObject* object) {
    if (!PyUnicode_Check(object) || !PyUnicode_IS_ASCII(object)) return {};
    return {static_cast<const char*>(PyUnicode_DATA(object)),
            static_cast<size_t>(PyUnicode_GET_LENGTH(object))};
  }
  static std::string Named(RateField field) { return std::string(NameOf(field)); }
};

inline py::object Stolen(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

// The fields of one kind of header list.
template <typename Kind>
class Template {
 public:
  Template(const std::vector<Limit>& limits, bool x_ratelimit, bool ietf)
      : x_ratelimit_(x_ratelimit) {
    for (size_t i = 0; i < kRateFields; ++i) {
      names_[i] = Stolen(Kind::Make(Kind::Named(static_cast<RateField>(i))));
    }
    for (const Limit& limit : limits) {
      if (!policy_text_.empty()) policy_text_ += ", ";
      policy_text_ += PolicyMember(limit);
      std::string start = StateStart(limit);
      if (start.size() > kMaxItem) throw py::value_error("the name of a limit is too long");
      rules_.push_back({limit.name(),
                        py::make_tuple(names_[Number(RateField::kLimit)],
                                       Stolen(Kind::Make(std::to_string(limit.capacity())))),
                        std::move(start)});
    }
    if (ietf) {
      policy_ =
          py::make_tuple(names_[Number(RateField::kPolicy)], Stolen(Kind::Make(policy_text_)));
    }
  }

  // Adds to `list`, a list of pairs, the fields of `decision` that are not set there. A field that
  // is a List is joined with an existing one.
  void Extend(const py::object& list, const Decision& decision,
              const RateFieldValues& values) const {
    Append(list, decision, values, Present(list.ptr()));
  }

  // Appends the fields after removing existing ones.
  void Put(const py::object& list, const Decision& decision, const RateFieldValues& values) const {
    const unsigned wanted = (x_ratelimit_ ? kXRateLimit : 0) | (policy_ ? kIetf : 0) |
                            (values.wait_s.has_value() ? Bit(RateField::kRetryAfter) : 0);
    if ((Present(list.ptr()) & wanted) != 0) {
      for (Py_ssize_t i = PyList_GET_SIZE(list.ptr()); i-- > 0;) {
        if (i >= PyList_GET_SIZE(list.ptr()) || (NameAt(list.ptr(), i) & wanted) == 0) continue;
        if (PySequence_DelItem(list.ptr(), i) != 0) throw py::error_already_set();
      }
    }
    Append(list, decision, values, /*present=*/0);
  }

 private:
  struct Rule {
    std::string name;
    py::object limit;   // the field X-RateLimit-Limit with its value
    std::string start;  // of its member of RateLimit
  };

  static constexpr size_t Number(RateField field) { return static_cast<size_t>(field); }

  // Sets of names, with a bit for each.
  static constexpr unsigned Bit(RateField field) { return 1U << static_cast<unsigned>(field); }
  static constexpr unsigned kXRateLimit =
      Bit(RateField::kLimit) | Bit(RateField::kRemaining) | Bit(RateField::kReset);
  static constexpr unsigned kIetf = Bit(RateField::kPolicy) | Bit(RateField::kRateLimit);
  static constexpr unsigned kOnce = kXRateLimit | Bit(RateField::kRetryAfter);

  // The set of names in `headers`.
  static unsigned Present(PyObject* headers) {
    unsigned present = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(headers); ++i) present |= NameAt(headers, i);
    return present;
  }

  static unsigned NameAt(PyObject* headers, Py_ssize_t i) {
    PyObject* const pair = PyList_GET_ITEM(headers, i);
    if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) > 0) [[likely]] {
      return NameIn(Kind::View(PyTuple_GET_ITEM(pair, 0)));
    }
    // Its code may change the list.
    const auto kept = py::reinterpret_borrow<py::object>(pair);
    const py::object items = Stolen(PySequence_Tuple(pair));
    if (PyTuple_GET_SIZE(items.ptr()) == 0) throw py::value_error("a header is an empty pair");
    return NameIn(Kind::View(PyTuple_GET_ITEM(items.ptr(), 0)));
  }

  static unsigned NameIn(std::string_view header) {
    for (size_t i = 0; i < kRateFields; ++i) {
      const std::string_view title = kRateFieldNames[i];
      if (header.size() == title.size() &&
          std::equal(header.begin(), header.end(), title.begin(),
                     [](char a, char b) { return Lower(a) == Lower(b); })) {
        return 1U << i;
      }
    }
    return 0;
  }

  // `present` are the names in the list.
  void Append(const py::object& list, const Decision& decision, const RateFieldValues& values,
              unsigned present) const {
    const Rule& rule = RuleOf(decision);
    const auto wants = [present](RateField name) { return (present & kOnce & Bit(name)) == 0; };
    if (x_ratelimit_) {
      if (wants(RateField::kLimit)) Append(list, rule.limit);
      if (wants(RateField::kRemaining)) Append(list, RateField::kRemaining, values.remaining);
      if (wants(RateField::kReset)) Append(list, RateField::kReset, values.reset_s);
    }
    if (policy_) AppendIetf(list, rule, values, present);
    if (values.wait_s.has_value() && wants(RateField::kRetryAfter)) {
      Append(list, RateField::kRetryAfter, *values.wait_s);
    }
  }

  void AppendIetf(const py::object& list, const Rule& rule, const RateFieldValues& values,
                  unsigned present) const {
    const auto find = [&](RateField name) {
      return (present & Bit(name)) == 0 ? -1 : Find(list.ptr(), name);
    };
    const Py_ssize_t policy_at = find(RateField::kPolicy);
    const Py_ssize_t state_at = find(RateField::kRateLimit);
    if (policy_at < 0) {
      Append(list, policy_);
    } else {
      Rewrite(list, policy_at,
              [&](std::string_view value) { return WithPolicies(value, policy_text_); });
    }
    if (state_at < 0) {
      std::array<char, kMaxItem + kMaxStateRest> room;
      char* const end =
          WriteStateRest(values, std::copy(rule.start.begin(), rule.start.end(), room.data()));
      Append(list, RateField::kRateLimit,
             std::string_view(room.data(), static_cast<size_t>(end - room.data())));
    } else {
      Rewrite(list, state_at,
              [&](std::string_view value) { return WithState(value, rule.start, values); });
    }
  }

  // The position of the first header of this name, or -1.
  static Py_ssize_t Find(PyObject* headers, RateField name) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(headers); ++i) {
      if ((NameAt(headers, i) & Bit(name)) != 0) return i;
    }
    return -1;
  }

  // Replaces the value of header `i` by the result of `join`.
  template <typename Join>
  static void Rewrite(const py::object& list, Py_ssize_t i, Join join) {
    const py::object pair = Stolen(PySequence_Tuple(PyList_GET_ITEM(list.ptr(), i)));
    if (PyTuple_GET_SIZE(pair.ptr()) != 2) throw py::value_error("a header is not a pair");
    PyObject* const value = PyTuple_GET_ITEM(pair.ptr(), 1);
    const py::object made = Stolen(Kind::Make(join(Kind::View(value))));
    PyObject* const joined = PyTuple_Pack(2, PyTuple_GET_ITEM(pair.ptr(), 0), made.ptr());
    if (joined == nullptr || PyList_SetItem(list.ptr(), i, joined) != 0) {
      throw py::error_already_set();
    }
  }

  static void Append(const py::object& list, const py::object& field) {
    if (PyList_Append(list.ptr(), field.ptr()) != 0) throw py::error_already_set();
  }

  void Append(const py::object& list, RateField name, int64_t number) const {
    std::array<char, 24> room;
    char* const end = std::to_chars(room.data(), room.data() + room.size(), number).ptr;
    Append(list, name, std::string_view(room.data(), static_cast<size_t>(end - room.data())));
  }

  void Append(const py::object& list, RateField name, std::string_view value) const {
    const py::object made = Stolen(Kind::Make(value));
    Append(list, Stolen(PyTuple_Pack(2, names_[Number(name)].ptr(), made.ptr())));
  }

  const Rule& RuleOf(const Decision& decision) const {
    for (const Rule& rule : rules_) {
      if (rules_.size() == 1 || rule.name == decision.limit->name()) return rule;
    }
    throw py::key_error(decision.limit->name());
  }

  const bool x_ratelimit_;
  std::array<py::object, kRateFields> names_;
  py::object policy_;  // null if it is not sent
  std::string policy_text_;
  std::vector<Rule> rules_;
};

struct HeaderFields {
  HeaderFields(std::function<int64_t()> clock, const std::vector<Limit>& limits, bool x_ratelimit,
               bool ietf)
      : now(std::move(clock)), raw(limits, x_ratelimit, ietf), text(limits, x_ratelimit, ietf) {}

  template <typename Kind>
  const Template<Kind>& of() const {
    if constexpr (std::is_same_v<Kind, Raw>) {
      return raw;
    } else {
      return text;
    }
  }

  const std::function<int64_t()> now;  // the instant, by the clock of the limiter
  const Template<Raw> raw;
  const Template<Text> text;
};

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_WEB_RESPONSE_HEADERS_H_
