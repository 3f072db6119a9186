// Distinct texts and a dense number for each, from 0 in the order of their first appearance.
#ifndef TIDEGATE_SRC_LOGS_DICTIONARY_H_
#define TIDEGATE_SRC_LOGS_DICTIONARY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace tidegate::logs {

class Dictionary {
 public:
  uint32_t CodeOf(std::string_view name) {
    // Methods, users and clients often repeat from one line to the next.
    if (name == last_name_ && !names_.empty()) return last_code_;
    const auto found = codes_.find(name);
    if (found == codes_.end()) return Add(name);
    last_name_ = found->first;
    last_code_ = found->second;
    return last_code_;
  }
  // The texts, by their numbers.
  const std::vector<std::string_view>& names() const { return names_; }

 private:
  uint32_t Add(std::string_view name);
  std::string_view Kept(std::string_view name);

  absl::flat_hash_map<std::string_view, uint32_t> codes_;
  std::vector<std::string_view> names_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* free_ = nullptr;
  size_t free_bytes_ = 0;
  std::string_view last_name_;
  uint32_t last_code_ = 0;
};

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_DICTIONARY_H_
