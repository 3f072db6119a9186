// The rate-limit header fields of a response as Python objects. They are made for each response,
// from templates for the limits of one plan.
#ifndef TIDEGATE_PYTHON_BINDINGS_WEB_RESPONSE_HEADERS_H_
#define TIDEGATE_PYTHON_BINDINGS_WEB_RESPONSE_HEADERS_H_

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
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
  static std::string_view Named(RateField field) { return LowerNameOf(field); }
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
  static std::string_view Named(RateField field) { return NameOf(field); }
};

inline py::object Stolen(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

// The outcome whose OpenAI fields stand beside those of a decision; null if there is none.
struct Beside {
  const Decision* decision = nullptr;
  RateFieldValues values{};
};

// The fields of one kind of header list.
template <typename Kind>
class Template {
 public:
  // `set` is of the fields that are sent.
  Template(const std::vector<Limit>& limits, RateFieldSet set) : set_(set) {
    for (size_t i = 0; i < kRateFields; ++i) {
      names_[i] = Stolen(Kind::Make(Kind::Named(static_cast<RateField>(i))));
    }
    std::string policies;
    for (const Limit& limit : limits) {
      RateFieldTexts texts(limit);
      if (texts.state_start.size() > RateFieldTexts::kMaxStateStart) {
        throw py::value_error("the name of a limit is too long");
      }
      if (!policies.empty()) policies += ", ";
      policies += texts.policy;
      rules_.push_back({limit.name(), Field(RateField::kLimit, texts.capacity), std::move(texts)});
    }
    for (Rule& rule : rules_) rule.texts.policy = policies;
    policy_ = Field(RateField::kPolicy, policies);
  }

  // Adds to `list`, a list of pairs, the fields of `decision` that are not set there. A field that
  // is a List is joined with an existing one.
  void Extend(const py::object& list, const Decision& decision, const RateFieldValues& values,
              const Beside& beside) const {
    const RateFieldSet present = Present(list.ptr());
    Append(list, decision, values, present);
    AppendBeside(list, beside, present);
  }

  // Appends the fields after removing existing ones.
  void Put(const py::object& list, const Decision& decision, const RateFieldValues& values,
           const Beside& beside) const {
    RateFieldSet wanted = values.wait_s.has_value() ? set_ : set_ & ~SetOf(RateField::kRetryAfter);
    if ((set_ & kOpenAiFields) != 0) {
      const RateFieldSet left_out = beside.decision == nullptr ? kOpenAiFields : 0;
      wanted &= ~(left_out & ~OpenAiFieldsOf(*decision.limit));
    }
    if ((Present(list.ptr()) & wanted) != 0) {
      for (Py_ssize_t i = PyList_GET_SIZE(list.ptr()); i-- > 0;) {
        if (i >= PyList_GET_SIZE(list.ptr()) || (NameAt(list.ptr(), i) & wanted) == 0) continue;
        if (PySequence_DelItem(list.ptr(), i) != 0) throw py::error_already_set();
      }
    }
    Append(list, decision, values, /*present=*/0);
    AppendBeside(list, beside, /*present=*/0);
  }

  // Whether a limit's fields are sent.
  bool Shows(const Decision& decision) const { return FindRule(decision) != nullptr; }

 private:
  struct Rule {
    std::string name;
    py::object limit;  // the field X-RateLimit-Limit with its value
    RateFieldTexts texts;
  };

  // The set of names in `headers`.
  static RateFieldSet Present(PyObject* headers) {
    RateFieldSet present = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(headers); ++i) present |= NameAt(headers, i);
    return present;
  }

  static RateFieldSet NameAt(PyObject* headers, Py_ssize_t i) {
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

  static RateFieldSet NameIn(std::string_view header) {
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

  // `present` are the names in the list. Of them, those of the IETF are joined, the others stay.
  void Append(const py::object& list, const Decision& decision, const RateFieldValues& values,
              RateFieldSet present) const {
    const Rule& rule = RuleOf(decision);
    const auto put = [&](RateField field, std::string_view value) {
      if ((present & SetOf(field)) != 0) {
        if (field == RateField::kPolicy) {
          Rewrite(list, field, [&](std::string_view old) { return WithPolicies(old, value); });
        } else {
          Rewrite(list, field, [&](std::string_view old) {
            return WithState(old, rule.texts.state_start, values);
          });
        }
      } else if (field == RateField::kLimit || field == RateField::kPolicy) {
        Append(list, field == RateField::kLimit ? rule.limit : policy_);
      } else {
        Append(list, Field(field, value));
      }
    };
    WriteRateFields(rule.texts, values, set_ & ~(present & ~kIetfFields), put);
  }

  void AppendBeside(const py::object& list, const Beside& beside, RateFieldSet present) const {
    if (beside.decision == nullptr) return;
    const auto put = [&](RateField field, std::string_view value) {
      Append(list, Field(field, value));
    };
    WriteOpenAiFields(RuleOf(*beside.decision).texts, beside.values, set_ & ~present, put);
  }

  // Replaces the value of the first header of this name by the result of `join`.
  template <typename Join>
  static void Rewrite(const py::object& list, RateField name, Join join) {
    Py_ssize_t i = 0;
    while (i < PyList_GET_SIZE(list.ptr()) && (NameAt(list.ptr(), i) & SetOf(name)) == 0) ++i;
    if (i >= PyList_GET_SIZE(list.ptr())) return;  // code of a header has just removed it
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

  // A header: the pair of its name and its value.
  py::object Field(RateField name, std::string_view value) const {
    const py::object made = Stolen(Kind::Make(value));
    return Stolen(PyTuple_Pack(2, names_[static_cast<size_t>(name)].ptr(), made.ptr()));
  }

  const Rule* FindRule(const Decision& decision) const {
    for (const Rule& rule : rules_) {
      if (rule.name == decision.limit->name()) return &rule;
    }
    return nullptr;
  }

  const Rule& RuleOf(const Decision& decision) const {
    if (rules_.size() == 1) return rules_[0];
    const Rule* const rule = FindRule(decision);
    if (rule == nullptr) throw py::key_error(decision.limit->name());
    return *rule;
  }

  const RateFieldSet set_;  // the fields that are sent
  std::array<py::object, kRateFields> names_;
  py::object policy_;  // the field RateLimit-Policy with its value
  std::vector<Rule> rules_;
};

struct HeaderFields {
  HeaderFields(std::function<int64_t()> clock, const std::vector<Limit>& limits, RateFieldSet sent)
      : now(std::move(clock)), set(sent), raw(limits, sent), text(limits, sent) {}

  Beside BesideOf(PyObject* decision, int64_t decided_ns, int64_t now_ns) const {
    if ((set & kOpenAiFields) == 0) return {};
    const Decision* const found =
        BesideForOpenAi(*GetDecision(decision), OutcomesOf(decision),
                        [this](const Decision& each) { return raw.Shows(each); });
    if (found == nullptr) return {};
    return {found, RateFieldValuesOf(*found, decided_ns, now_ns)};
  }

  template <typename Kind>
  const Template<Kind>& of() const {
    if constexpr (std::is_same_v<Kind, Raw>) {
      return raw;
    } else {
      return text;
    }
  }

  const std::function<int64_t()> now;  // the instant, by the clock of the limiter
  const RateFieldSet set;
  const Template<Raw> raw;
  const Template<Text> text;
};

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_WEB_RESPONSE_HEADERS_H_
