// Numbers keys from 0 up in the order of their first appearance.
#ifndef TIDEGATE_PYTHON_BINDINGS_TUNING_KEY_NUMBERS_H_
#define TIDEGATE_PYTHON_BINDINGS_TUNING_KEY_NUMBERS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace tidegate::python {

// The most keys that a column of codes can number.
inline constexpr uint32_t kMostKeys = 0xffffffff;

// The numbers of byte strings, which are not copied.
class KeyNumbers {
 public:
  // The number of `key`, which must outlive this, and whether it is new.
  std::pair<uint32_t, bool> Of(std::string_view key) {
    const auto [found, is_new] = numbers_.try_emplace(absl::string_view(key.data(), key.size()),
                                                      static_cast<uint32_t>(numbers_.size()));
    return {found->second, is_new};
  }
  size_t size() const { return numbers_.size(); }

 private:
  absl::flat_hash_map<absl::string_view, uint32_t> numbers_;
};

}  // namespace tidegate::python

#endif  // TIDEGATE_PYTHON_BINDINGS_TUNING_KEY_NUMBERS_H_
