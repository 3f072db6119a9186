// The part of their limits that requests get while the service is under load.
#ifndef TIDEGATE_LOAD_FACTOR_H_
#define TIDEGATE_LOAD_FACTOR_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tidegate {

// How much a request matters; those that matter least are refused first.
enum class Priority : uint8_t { kCritical, kNormal, kBackground };
inline constexpr size_t kPriorities = 3;

constexpr std::string_view PriorityName(Priority priority) {
  constexpr std::array<std::string_view, kPriorities> kNames = {"critical", "normal", "background"};
  return kNames[static_cast<size_t>(priority)];
}
std::optional<Priority> ParsePriority(std::string_view name);

// A factor for each priority, by which the cost of a request is divided. Limits stay as they are,
// so counts keep their meaning for processes that share them without being under load. Thread-safe.
class LoadFactor {
 public:
  // Smaller factors are raised to this.
  static constexpr double kLeast = 1.0 / 1024;

  // `factor` is from 0 to 1; 1 leaves costs unchanged.
  void Set(Priority priority, double factor);
  double Get(Priority priority) const;

  // Scales the costs of one request.
  class Scale {
   public:
    // cost / factor, in whole units.
    int64_t Of(int64_t cost) const;

   private:
    friend class LoadFactor;
    uint32_t multiplier_ = kOne;
    uint32_t rounding_ = 0;  // what is added before the fraction is cut off
  };
  // A scale that rounds up or down at random, the same way for all costs of the request, so that
  // the average is exact for each key too.
  Scale Draw(Priority priority) const;
  // A scale that rounds up.
  Scale Most(Priority priority) const;

 private:
  static constexpr int kFractionBits = 20;
  static constexpr uint32_t kOne = uint32_t{1} << kFractionBits;

  // 1 / factor, in fixed point.
  uint32_t MultiplierOf(Priority priority) const {
    return multipliers_[static_cast<size_t>(priority)].load(std::memory_order_relaxed);
  }

  std::array<std::atomic<uint32_t>, kPriorities> multipliers_{kOne, kOne, kOne};
};

}  // namespace tidegate

#endif  // TIDEGATE_LOAD_FACTOR_H_
