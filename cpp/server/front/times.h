// How long calls take, counted in buckets of fixed bounds.
#ifndef TIDEGATE_SERVER_FRONT_TIMES_H_
#define TIDEGATE_SERVER_FRONT_TIMES_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/monotonic.h"

namespace tidegate::server {

class Counter {
 public:
  void Add(uint64_t n = 1) {
    count_.store(count_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  void Subtract(uint64_t n = 1) { Add(~n + 1); }
  uint64_t read() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> count_{0};
};

// One thread writes them; any thread may read them.
class Times {
 public:
  // The upper bounds of the buckets; one more bucket has all longer times.
  static constexpr std::array<std::chrono::microseconds, 16> kBounds = {
      std::chrono::microseconds(10),      std::chrono::microseconds(25),
      std::chrono::microseconds(50),      std::chrono::microseconds(100),
      std::chrono::microseconds(250),     std::chrono::microseconds(500),
      std::chrono::microseconds(1'000),   std::chrono::microseconds(2'500),
      std::chrono::microseconds(5'000),   std::chrono::microseconds(10'000),
      std::chrono::microseconds(25'000),  std::chrono::microseconds(50'000),
      std::chrono::microseconds(100'000), std::chrono::microseconds(250'000),
      std::chrono::microseconds(500'000), std::chrono::microseconds(1'000'000),
  };

  void Add(Instant::duration time, uint64_t calls = 1) {
    size_t bucket = 0;
    while (bucket < kBounds.size() && time > kBounds[bucket]) ++bucket;
    counts_[bucket].Add(calls);
    nanoseconds_.Add(
        calls *
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()));
  }

  uint64_t count(size_t bucket) const { return counts_[bucket].read(); }
  uint64_t nanoseconds() const { return nanoseconds_.read(); }  // of all calls

 private:
  std::array<Counter, kBounds.size() + 1> counts_;
  Counter nanoseconds_;
};

}  // namespace tidegate::server

#endif  // TIDEGATE_SERVER_FRONT_TIMES_H_
