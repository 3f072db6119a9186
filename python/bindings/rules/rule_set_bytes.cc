#include "rules/rule_set_bytes.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace tidegate::python {
namespace {

// Calls `visit` with each field of a structure, always in the same order.
template <typename T, typename Visit>
void EachField(T& fields, Visit visit) {
  using Fields = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Fields, LimitSpec>) {
    visit(fields.count, fields.period_ns, fields.burst, fields.algorithm, fields.calendar,
          fields.calendar_units, fields.name, fields.rule, fields.shadow, fields.id,
          fields.carry_over);
  } else if constexpr (std::is_same_v<Fields, RuleCondition>) {
    visit(fields.endpoints, fields.methods, fields.tiers, fields.networks, fields.when);
  } else if constexpr (std::is_same_v<Fields, TierLimits>) {
    visit(fields.tier, fields.limits);
  } else if constexpr (std::is_same_v<Fields, Rule>) {
    visit(fields.id, fields.by, fields.condition, fields.limits, fields.replaces, fields.also,
          fields.shadow, fields.counts_requests, fields.counter, fields.carry_over, fields.resets,
          fields.reserve);
  } else if constexpr (std::is_same_v<Fields, RuleOverride>) {
    visit(fields.rule, fields.key, fields.limits, fields.from_ns, fields.until_ns, fields.reason);
  } else if constexpr (std::is_same_v<Fields, OperationCost>) {
    visit(fields.condition, fields.cost, fields.priority, fields.is_estimate, fields.usage);
  } else if constexpr (std::is_same_v<Fields, ListEntry>) {
    visit(fields.name, fields.allows, fields.condition, fields.from_ns, fields.until_ns);
  } else if constexpr (std::is_same_v<Fields, RuleSetSpec>) {
    visit(fields.tiers, fields.default_tier, fields.rules, fields.otherwise, fields.overrides,
          fields.costs, fields.lists);
  } else {
    visit(fields.first, fields.second);  // a pair
  }
}

class Writer {
 public:
  template <typename T>
  void Write(const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else if constexpr (std::is_same_v<T, Limit>) {
      Write(value.spec());
      // The terms of a quota are written as its text.
      Write(value.quota() == nullptr ? std::string() : value.ToString());
    } else {
      EachField(value, [this](const auto&... fields) { (this->Write(fields), ...); });
    }
  }
  void Write(const std::string& text) {
    Write(uint64_t{text.size()});
    bytes_ += text;
  }
  template <typename T>
  void Write(const std::vector<T>& items) {
    Write(uint64_t{items.size()});
    for (const T& item : items) Write(item);
  }
  template <typename T, size_t kSize>
  void Write(const std::array<T, kSize>& items) {
    for (const T& item : items) Write(item);
  }
  template <typename T>
  void Write(const std::optional<T>& value) {
    Write(value.has_value());
    if (value.has_value()) Write(*value);
  }

  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads the values in the order in which Writer wrote them. After one that cannot be read it reads
// nothing more.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
  void Read(T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      const std::string_view bytes = Next(sizeof value);
      if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof value);
    } else {
      EachField(value, [this](auto&... fields) { (this->Read(fields), ...); });
    }
  }
  void Read(std::string& text) {
    uint64_t size = 0;
    Read(size);
    text = Next(size);
  }
  template <typename T>
  void Read(std::vector<T>& items) {
    uint64_t count = 0;
    Read(count);
    for (uint64_t i = 0; i < count && is_good_; ++i) {
      if constexpr (std::is_same_v<T, Limit>) {
        ReadLimit(items);
      } else {
        Read(items.emplace_back());
      }
    }
  }
  template <typename T, size_t kSize>
  void Read(std::array<T, kSize>& items) {
    for (T& item : items) Read(item);
  }
  template <typename T>
  void Read(std::optional<T>& value) {
    bool has_value = false;
    Read(has_value);
    if (has_value) Read(value.emplace());
  }

  bool has_read_all() const { return is_good_ && rest_.empty(); }

 private:
  void ReadLimit(std::vector<Limit>& limits) {
    LimitSpec spec;
    Read(spec);
    std::string quota;
    Read(quota);
    if (!quota.empty()) {
      const auto parsed = Limit::Parse(quota);
      if (parsed.ok()) spec.quota = parsed->spec().quota;
    }
    auto limit = Limit::Create(std::move(spec));
    is_good_ = is_good_ && limit.ok();
    if (is_good_) limits.push_back(*std::move(limit));
  }

  // The next `size` bytes; empty if there are fewer.
  std::string_view Next(uint64_t size) {
    is_good_ = is_good_ && size <= rest_.size();
    if (!is_good_) return {};
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

  std::string_view rest_;
  bool is_good_ = true;
};

}  // namespace

std::string BytesOf(const RuleSetSpec& spec) {
  Writer writer;
  writer.Write(spec);
  return writer.Take();
}

std::optional<RuleSetSpec> SpecOf(std::string_view bytes) {
  Reader reader(bytes);
  RuleSetSpec spec;
  reader.Read(spec);
  if (!reader.has_read_all()) return std::nullopt;
  return spec;
}

}  // namespace tidegate::python
