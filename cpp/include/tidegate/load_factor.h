// How much of their limits requests get while the service is under load.
#ifndef TIDEGATE_LOAD_FACTOR_H_
#define TIDEGATE_LOAD_FACTOR_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tidegate {

// How much a request matters; what matters least is refused first.
enum class Priority : uint8_t { kCritical, kNormal, kBackground };
inline constexpr size_t kPriorities = 3;

constexpr std::string_view PriorityName(Priority priority) {
  constexpr std::array<std::string_view, kPriorities> kNames = {"critical", "normal", "background"};
  return kNames[static_cast<size_t>(priority)];
}
std::optional<Priority> ParsePriority(std::string_view name);

// A factor for each priority: a request costs as many times more as the factor is below 1. So
// counts that are shared, with processes that are not under load too, stay true. Thread-safe.
class LoadFactor {
 public:
  // A factor of less than this is this.
  static constexpr double kLeast = 1.0 / 1024;

  // From 0 to 1. Everything costs what it costs at 1.
  void Set(Priority priority, double factor);
  double Get(Priority priority) const;

  // What the costs of one request become.
  class Scale {
   public:
    // cost / factor, in whole units.
    int64_t Of(int64_t cost) const;

   private:
    friend class LoadFactor;
    uint32_t multiplier_ = kOne;
    uint32_t rounding_ = 0;  // what is added before the fraction is cut off
  };
  // Rounds up or down at random, in one way for all costs of the request, so that it is right on
  // average, for each key too.
  Scale Draw(Priority priority) const;
  // Rounds up.
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
