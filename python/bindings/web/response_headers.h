// The rate-limit header fields of a response. They are made for each response, from templates
// from python/tidegate/web/headers.py.
#ifndef TIDEGATE_PYTHON_BINDINGS_WEB_RESPONSE_HEADERS_H_
#define TIDEGATE_PYTHON_BINDINGS_WEB_RESPONSE_HEADERS_H_

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tidegate/decision.h"

namespace tidegate::python {

namespace py = pybind11;

constexpr int64_t kSecondNs = 1'000'000'000;
// The largest Integer of RFC 9651, section 3.3.1. Larger values are sent as this.
constexpr int64_t kMostInteger = 999'999'999'999'999;
// The most bytes of a limit's name in the fields, with escapes; Limit has names of at most 200.
constexpr size_t kMostItem = 512;

enum Name : uint8_t { kLimit, kRemaining, kReset, kPolicy, kRateLimit, kRetryAfter, kNames };
constexpr std::array<std::string_view, kNames> kTitles = {
    "X-RateLimit-Limit", "X-RateLimit-Remaining",
    "X-RateLimit-Reset", "RateLimit-Policy",
    "RateLimit",         "Retry-After"};

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
  static std::string Named(std::string_view title) {
    std::string name(title);
    for (char& c : name) c = Lower(c);
    return name;
  }
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
  static std::string Named(std::string_view title) { return std::string(title); }
};

// The numbers in the header fields of one response.
struct HeaderValues {
  int64_t remaining;
  int64_t reset_s;                // instant
  std::optional<int64_t> more_s;  // time until more may pass; none if that never happens
  std::optional<int64_t> wait_s;  // for refusals that end with time
};

inline int64_t CeilSeconds(int64_t ns) { return ns / kSecondNs + (ns % kSecondNs > 0 ? 1 : 0); }

inline int64_t Later(int64_t ns, int64_t span_ns) {
  int64_t sum = 0;
  return __builtin_add_overflow(ns, span_ns, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

// The wait of a refusal, in whole seconds; none if waiting does not help.
inline std::optional<int64_t> WaitOf(const Decision& d, double extra_s) {
  if (d.allowed || d.retry_after_ns == Decision::kNever) return std::nullopt;
  return CeilSeconds(Later(d.retry_after_ns, static_cast<int64_t>(std::ceil(extra_s * 1e9))));
}

inline HeaderValues HeaderValuesOf(const Decision& d, int64_t decided_ns, int64_t now_ns,
                                   double extra_s) {
  // An instant that has passed is sent as now.
  const auto later = [&](int64_t span_ns) { return std::max(Later(decided_ns, span_ns), now_ns); };
  HeaderValues values{d.remaining(), CeilSeconds(later(d.reset_after_ns)), std::nullopt,
                      WaitOf(d, extra_s)};
  if (values.wait_s.has_value()) {
    // If two different waits were sent, a client could take the smaller one and come back too
    // early.
    values.more_s = values.wait_s;
  } else if (d.limit->capacity() > 0) {
    values.more_s = CeilSeconds(later(d.more_after_ns()) - now_ns);
  }
  return values;
}

inline py::object Stolen(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

// The position of the member of `list`, a List of RFC 9651, that begins with `start`; npos if it
// has none. `start` begins with a quotation mark, which inside a String follows a backslash.
inline size_t MemberAt(std::string_view list, std::string_view start) {
  for (size_t at = list.find(start); at != std::string_view::npos; at = list.find(start, at + 1)) {
    const size_t before = at == 0 ? at : list.find_last_not_of(" \t", at - 1);
    if (at == 0 || before == std::string_view::npos || list[before] == ',') return at;
  }
  return std::string_view::npos;
}

// The members of a RateLimit-Policy, whose names may contain commas.
inline std::vector<std::string_view> Members(std::string_view list) {
  std::vector<std::string_view> members;
  bool quoted = false;
  size_t start = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (quoted && list[i] == '\\') {
      ++i;
    } else if (list[i] == '"') {
      quoted = !quoted;
    } else if (list[i] == ',' && !quoted) {
      members.push_back(list.substr(start, i - start));
      start = list.find_first_not_of(' ', i + 1);
      if (start == std::string_view::npos) return members;
    }
  }
  members.push_back(list.substr(start));
  return members;
}

inline std::string Joined(std::string_view list, std::string_view member) {
  std::string joined(list);
  if (!joined.empty()) joined += ", ";
  return joined += member;
}

// `list`, with the members of `policies` whose names it does not have.
inline std::string WithPolicies(std::string_view list, std::string_view policies) {
  std::string joined(list);
  for (const std::string_view member : Members(policies)) {
    size_t quote = 1;
    while (quote < member.size() && member[quote] != '"') quote += member[quote] == '\\' ? 2 : 1;
    const std::string_view start = member.substr(0, quote + 2);  // its name, and ';'
    if (MemberAt(joined, start) == std::string_view::npos) joined = Joined(joined, member);
  }
  return joined;
}

// `list`, with the member `state`, which begins with `start` and has `remaining`. Of two members
// with one name, the one with less room is kept.
inline std::string WithState(std::string_view list, std::string_view start, int64_t remaining,
                             const std::string& state) {
  const size_t at = MemberAt(list, start);
  if (at == std::string_view::npos) return Joined(list, state);
  const std::string_view rest = list.substr(at + start.size());
  int64_t theirs = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), theirs);
  if (theirs <= remaining) return std::string(list);
  const size_t end = rest.find(',');
  return std::string(list.substr(0, at)) + state +
         std::string(end == std::string_view::npos ? std::string_view() : rest.substr(end));
}

using Rules = std::vector<std::tuple<std::string, int64_t, std::string>>;

// The fields of one kind of header list.
template <typename Kind>
class Template {
 public:
  Template(const Rules& rules, bool x_ratelimit, const std::optional<std::string>& policy)
      : x_ratelimit_(x_ratelimit) {
    for (size_t i = 0; i < kNames; ++i) names_[i] = Stolen(Kind::Make(Kind::Named(kTitles[i])));
    if (policy.has_value()) {
      policy_ = py::make_tuple(names_[kPolicy], Stolen(Kind::Make(*policy)));
      policy_text_ = *policy;
    }
    for (const auto& [name, capacity, item] : rules) {
      if (item.size() > kMostItem - 16) throw py::value_error("the name is too long");
      rules_.push_back(
          {name, py::make_tuple(names_[kLimit], Stolen(Kind::Make(std::to_string(capacity)))),
           item + ";r="});
    }
  }

  // Adds to `list`, a list of pairs, the fields of `decision` that are not set there. A field that
  // is a List is joined with an existing one.
  void Extend(const py::object& list, const Decision& decision, const HeaderValues& values) const {
    Append(list, decision, values, Present(list.ptr()));
  }

  // Appends the fields after removing existing ones.
  void Put(const py::object& list, const Decision& decision, const HeaderValues& values) const {
    const unsigned wanted = (x_ratelimit_ ? kXRateLimit : 0) | (policy_ ? kIetf : 0) |
                            (values.wait_s.has_value() ? 1U << kRetryAfter : 0);
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
    py::object limit;  // the field X-RateLimit-Limit with its value
    std::string item;
  };

  // Sets of names, with a bit for each.
  static constexpr unsigned kXRateLimit = 1U << kLimit | 1U << kRemaining | 1U << kReset;
  static constexpr unsigned kIetf = 1U << kPolicy | 1U << kRateLimit;
  static constexpr unsigned kOnce = kXRateLimit | 1U << kRetryAfter;

  // The set of names in `headers`.
  static unsigned Present(PyObject* headers) {
    unsigned present = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(headers); ++i) present |= NameAt(headers, i);
    return present;
  }

  static unsigned NameAt(PyObject* headers, Py_ssize_t i) {
    PyObject* const pair = PyList_GET_ITEM(headers, i);
    if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) > 0) [[likely]] {
      return NameOf(Kind::View(PyTuple_GET_ITEM(pair, 0)));
    }
    // Its code may change the list.
    const auto kept = py::reinterpret_borrow<py::object>(pair);
    const py::object items = Stolen(PySequence_Tuple(pair));
    if (PyTuple_GET_SIZE(items.ptr()) == 0) throw py::value_error("a header is an empty pair");
    return NameOf(Kind::View(PyTuple_GET_ITEM(items.ptr(), 0)));
  }

  static unsigned NameOf(std::string_view header) {
    for (size_t i = 0; i < kNames; ++i) {
      const std::string_view title = kTitles[i];
      if (header.size() == title.size() &&
          std::equal(header.begin(), header.end(), title.begin(),
                     [](char a, char b) { return Lower(a) == Lower(b); })) {
        return 1U << i;
      }
    }
    return 0;
  }

  // `present` are the names in the list.
  void Append(const py::object& list, const Decision& decision, const HeaderValues& values,
              unsigned present) const {
    const Rule& rule = RuleOf(decision);
    const auto wants = [present](Name name) { return (present & kOnce & 1U << name) == 0; };
    if (x_ratelimit_) {
      if (wants(kLimit)) Append(list, rule.limit);
      if (wants(kRemaining)) Append(list, kRemaining, {}, values.remaining);
      if (wants(kReset)) Append(list, kReset, {}, values.reset_s);
    }
    if (policy_) AppendIetf(list, rule, values, present);
    if (values.wait_s.has_value() && wants(kRetryAfter)) {
      Append(list, kRetryAfter, {}, *values.wait_s);
    }
  }

  void AppendIetf(const py::object& list, const Rule& rule, const HeaderValues& values,
                  unsigned present) const {
    std::optional<int64_t> more_s = values.more_s;
    if (more_s.has_value()) more_s = std::min(*more_s, kMostInteger);
    const int64_t remaining = std::min(values.remaining, kMostInteger);
    const std::string_view middle = more_s.has_value() ? ";t=" : "";
    const auto find = [&](Name name) {
      return (present & 1U << name) == 0 ? -1 : Find(list.ptr(), name);
    };
    const Py_ssize_t policy_at = find(kPolicy);
    const Py_ssize_t state_at = find(kRateLimit);
    if (policy_at < 0) {
      Append(list, policy_);
    } else {
      Rewrite(list, policy_at,
              [&](std::string_view value) { return WithPolicies(value, policy_text_); });
    }
    if (state_at < 0) {
      Append(list, kRateLimit, rule.item, remaining, middle, more_s);
    } else {
      std::string state = rule.item + std::to_string(remaining) + std::string(middle);
      if (more_s.has_value()) state += std::to_string(*more_s);
      Rewrite(list, state_at, [&](std::string_view value) {
        return WithState(value, rule.item, remaining, state);
      });
    }
  }

  // The position of the first header of this name, or -1.
  static Py_ssize_t Find(PyObject* headers, Name name) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(headers); ++i) {
      if ((NameAt(headers, i) & 1U << name) != 0) return i;
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

  // `start` and `middle` are no longer than kMostItem together.
  void Append(const py::object& list, Name name, std::string_view start, int64_t number,
              std::string_view middle = {}, std::optional<int64_t> last = {}) const {
    std::array<char, kMostItem + 64> room;
    char* const end = room.data() + room.size();
    char* at = std::copy(start.begin(), start.end(), room.data());
    at = std::to_chars(at, end, number).ptr;
    at = std::copy(middle.begin(), middle.end(), at);
    if (last.has_value()) at = std::to_chars(at, end, *last).ptr;
    const py::object value =
        Stolen(Kind::Make({room.data(), static_cast<size_t>(at - room.data())}));
    Append(list, Stolen(PyTuple_Pack(2, names_[name].ptr(), value.ptr())));
  }

  const Rule& RuleOf(const Decision& decision) const {
    for (const Rule& rule : rules_) {
      if (rules_.size() == 1 || rule.name == decision.limit->name()) return rule;
    }
    throw py::key_error(decision.limit->name());
  }

  const bool x_ratelimit_;
  std::array<py::object, kNames> names_;
  py::object policy_;  // null if it is not sent
  std::string policy_text_;
  std::vector<Rule> rules_;
};

struct HeaderFields {
  HeaderFields(std::function<int64_t()> clock, const Rules& rules, bool x_ratelimit,
               const std::optional<std::string>& policy)
      : now(std::move(clock)), raw(rules, x_ratelimit, policy), text(rules, x_ratelimit, policy) {}

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
