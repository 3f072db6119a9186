#include "tidegate/load_factor.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/numeric/int128.h"

namespace tidegate {
namespace {

// xorshift64*: fast, and random enough for rounding.
uint64_t RandomBits() {
  thread_local uint64_t state = (uint64_t{std::random_device{}()} << 32 | 1) ^ 0x9e3779b97f4a7c15;
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return state * 0x2545f4914f6cdd1d;
}

}  // namespace

std::optional<Priority> ParsePriority(std::string_view name) {
  for (size_t i = 0; i < kPriorities; ++i) {
    if (PriorityName(static_cast<Priority>(i)) == name) return static_cast<Priority>(i);
  }
  return std::nullopt;
}

void LoadFactor::Set(Priority priority, double factor) {
  const double multiplier = std::round(kOne / std::clamp(factor, kLeast, 1.0));
  multipliers_[static_cast<size_t>(priority)].store(static_cast<uint32_t>(multiplier),
                                                    std::memory_order_relaxed);
}

double LoadFactor::Get(Priority priority) const { return double{kOne} / MultiplierOf(priority); }

LoadFactor::Scale LoadFactor::Draw(Priority priority) const {
  Scale scale;
  scale.multiplier_ = MultiplierOf(priority);
  if (scale.multiplier_ != kOne) {
    scale.rounding_ = static_cast<uint32_t>(RandomBits() >> (64 - kFractionBits));
  }
  return scale;
}

LoadFactor::Scale LoadFactor::Most(Priority priority) const {
  Scale scale;
  scale.multiplier_ = MultiplierOf(priority);
  scale.rounding_ = kOne - 1;
  return scale;
}

int64_t LoadFactor::Scale::Of(int64_t cost) const {
  if (multiplier_ == kOne) return cost;
  const absl::uint128 scaled = absl::uint128(static_cast<uint64_t>(cost)) * multiplier_ + rounding_;
  const absl::uint128 units = scaled >> kFractionBits;
  return static_cast<int64_t>(absl::Uint128Low64(std::min(units, absl::uint128(INT64_MAX))));
}

}  // namespace tidegate
