// Remembers the states that led to refusals until they may admit again, so that a flood of refused
// calls does not reach Redis. Stepped at the instant of a later call, such a state gives exactly
// the numbers of Redis.
//
// Each fingerprint has one place. Nothing waits or is locked: a writer takes the place's next
// version, and by a checksum over it readers recognise a consistent entry. An entry that is half
// written, because its writer was killed or another came in between, is not found. A refusal is
// remembered only if its place was not cleared since the request was made: a reset wins over calls
// under way.
#ifndef TIDEGATE_SRC_REDIS_HEALTH_DENY_CACHE_H_
#define TIDEGATE_SRC_REDIS_HEALTH_DENY_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "redis/health/board.h"
#include "tidegate/fingerprint.h"
#include "tidegate/step.h"

namespace tidegate::redis {

class DenyCache {
 public:
  // When a request was made and answered, by this host's clock, and when Redis decided, by its own.
  struct Times {
    int64_t asked_ns;
    int64_t heard_ns;
    int64_t decided_ns;
  };
  struct Refusal {
    CellState state;
    int64_t now_ns;  // by the clock of Redis, or a little before
  };

  // A view of `board`, which must outlive it. Refusals are remembered for at most `longest_ns`; 0
  // turns the cache off.
  DenyCache(Board& board, int64_t longest_ns) : board_(board), longest_ns_(longest_ns) {}

  bool on() const { return longest_ns_ > 0; }

  std::optional<Refusal> Find(const Fingerprint& key, int64_t now_ns) const;

  // Take it before a request is made, and pass it to Put().
  uint64_t Version(const Fingerprint& key) const;
  // The entry's time counts from when the request was made, so that nobody is refused for too long.
  void Put(const Fingerprint& key, uint64_t version, const CellState& state, int64_t retry_after_ns,
           const Times& times);
  // Call it when units were given back to the key: invalidates its entry, and those of calls under
  // way.
  void Forget(const Fingerprint& key);
  // Like Forget(), for all keys.
  void ForgetAll();
  // Call it when the key was charged: removes its entry, which is out of date.
  void Outdate(const Fingerprint& key);

 private:
  DenyPlace& PlaceOf(const Fingerprint& key) const {
    return board_.denied[key.lo & (Board::kPlaces - 1)];
  }

  Board& board_;
  const int64_t longest_ns_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_HEALTH_DENY_CACHE_H_
