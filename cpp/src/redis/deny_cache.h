// Remembers the states that refused until they may admit again, so that a flood of
// refused calls stays in the process. Stepped at the instant of a later call, such a
// state gives the very numbers that Redis would.
//
// One place for each fingerprint, by a sequence lock that nobody waits for: what cannot
// be written at once is not remembered, and what a fork() caught half written is lost to
// the child. A refusal is remembered only where nothing was forgotten in its place since
// its request was made: a reset wins over what was under way.
#ifndef TIDEGATE_SRC_REDIS_DENY_CACHE_H_
#define TIDEGATE_SRC_REDIS_DENY_CACHE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tidegate/fingerprint.h"
#include "tidegate/step.h"

namespace tidegate::redis {

class DenyCache {
 public:
  // When a request was made and heard of, by this host's clock, and when Redis decided,
  // by its own.
  struct Times {
    int64_t asked_ns;
    int64_t heard_ns;
    int64_t decided_ns;
  };
  struct Refusal {
    CellState state;
    int64_t now_ns;  // by the clock of Redis, or a little before
  };

  // Nothing is remembered for longer than `longest_ns`; at 0 nothing at all.
  explicit DenyCache(int64_t longest_ns)
      : longest_ns_(longest_ns), places_(longest_ns > 0 ? kPlaces : 0) {}

  bool on() const { return longest_ns_ > 0; }

  std::optional<Refusal> Find(const Fingerprint& key, int64_t now_ns) const;

  // To be taken before a request is made, and given to Put().
  uint32_t Version(const Fingerprint& key) const;
  // Counted from when the request was made, so that nobody is refused for too long.
  void Put(const Fingerprint& key, uint32_t version, const CellState& state, int64_t retry_after_ns,
           const Times& times);
  // The key was given something back: what is remembered and what is under way is void.
  void Forget(const Fingerprint& key);
  // The key was charged: what is remembered is out of date.
  void Outdate(const Fingerprint& key);

 private:
  static constexpr size_t kPlaces = 4096;

  struct Place {
    std::atomic<uint32_t> version{0};  // odd while it is written
    std::atomic<uint64_t> lo{0};
    std::atomic<uint64_t> hi{0};
    std::atomic<uint64_t> w0{0};
    std::atomic<uint64_t> w1{0};
    std::atomic<int64_t> from_ns{0};
    std::atomic<int64_t> until_ns{0};
    std::atomic<int64_t> ahead_ns{0};  // the clock of Redis over this host's
  };

  Place& PlaceOf(const Fingerprint& key) const { return places_[key.lo & (kPlaces - 1)]; }

  const int64_t longest_ns_;
  mutable std::vector<Place> places_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_DENY_CACHE_H_
