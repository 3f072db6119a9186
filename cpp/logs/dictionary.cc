#include "logs/dictionary.h"

#include <cstring>
#include <limits>
#include <stdexcept>

namespace tidegate::logs {

uint32_t Dictionary::Add(std::string_view name) {
  if (names_.size() >= std::numeric_limits<uint32_t>::max()) {
    throw std::length_error("a column has more than 2^32 - 1 distinct keys");
  }
  const std::string_view kept = Kept(name);
  const auto code = static_cast<uint32_t>(names_.size());
  names_.push_back(kept);
  codes_.emplace(kept, code);
  last_name_ = kept;
  last_code_ = code;
  return code;
}

std::string_view Dictionary::Kept(std::string_view name) {
  constexpr size_t kBlock = size_t{1} << 16;
  if (name.size() > free_bytes_) {
    const size_t bytes = name.size() > kBlock / 4 ? name.size() : kBlock;
    blocks_.push_back(std::make_unique<char[]>(bytes));
    if (bytes != kBlock) {  // a long text has a block of its own
      std::memcpy(blocks_.back().get(), name.data(), name.size());
      return {blocks_.back().get(), name.size()};
    }
    free_ = blocks_.back().get();
    free_bytes_ = kBlock;
  }
  char* const at = free_;
  if (!name.empty()) std::memcpy(at, name.data(), name.size());
  free_ += name.size();
  free_bytes_ -= name.size();
  return {at, name.size()};
}

}  // namespace tidegate::logs
