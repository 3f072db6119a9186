// Remembers the states that refused until they may admit again, so that a flood of
// refused calls stays in the process. Stepped at the instant of a later call, such a
// state gives the very numbers that Redis would.
//
// One place for each fingerprint. Nobody waits and nothing is locked: whoever writes
// takes the place's next version, and a checksum over it tells readers whether all they
// read belongs together. What is half written, because its writer was killed or another
// came in between, is not found. A refusal is remembered only where nothing was
// forgotten in its place since its request was made: a reset wins over what was under
// way.
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

  // A view of `board`, which must outlive it. Nothing is remembered for longer than
  // `longest_ns`; at 0 nothing at all.
  DenyCache(Board& board, int64_t longest_ns) : board_(board), longest_ns_(longest_ns) {}

  bool on() const { return longest_ns_ > 0; }

  std::optional<Refusal> Find(const Fingerprint& key, int64_t now_ns) const;

  // To be taken before a request is made, and given to Put().
  uint64_t Version(const Fingerprint& key) const;
  // Counted from when the request was made, so that nobody is refused for too long.
  void Put(const Fingerprint& key, uint64_t version, const CellState& state, int64_t retry_after_ns,
           const Times& times);
  // The key was given something back: what is remembered and what is under way is void.
  void Forget(const Fingerprint& key);
  // As Forget(), of all keys.
  void ForgetAll();
  // The key was charged: what is remembered is out of date.
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
