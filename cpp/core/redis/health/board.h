// What stores know of a Redis: whether it answers, and which keys it refused. The board of a single
// store lies on the heap. If the fallback is a shared memory, the board lies in that file, so that
// all processes of the host know at once what one of them found out.
//
// All-zero memory is an empty board. Everything on it changes by one atomic instruction, or is
// recognised as half written and ignored: a process that is killed at any instruction leaves a
// board that the others go on with, and so does damage. Instants are those of the shared memory's
// clock.
#ifndef TIDEGATE_SRC_REDIS_HEALTH_BOARD_H_
#define TIDEGATE_SRC_REDIS_HEALTH_BOARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tidegate/fingerprint.h"
#include "tidegate/redis_store.h"
#include "tidegate/shm_store.h"

namespace tidegate::redis {

// The state of a Breaker (breaker.h).
struct alignas(64) BreakerState {
  std::atomic<uint64_t> server;  // whose breaker it is; 0: unused
  std::atomic<uint64_t> gate;    // until when it is open, and how often it changed
  std::atomic<uint64_t> row;     // since when calls fail, and how many did
  std::atomic<uint64_t> window;  // recent calls, and how many failed
};

// An entry of a DenyCache (deny_cache.h).
struct alignas(64) DenyPlace {
  std::atomic<uint64_t> version;
  std::atomic<uint64_t> check;  // checksum of the words below, the version and the whole key
  std::atomic<uint64_t> lo;     // the low word of the key's fingerprint
  std::atomic<uint64_t> w0;
  std::atomic<uint64_t> w1;
  std::atomic<int64_t> from_ns;
  std::atomic<int64_t> until_ns;
  std::atomic<int64_t> ahead_ns;  // how far the clock of Redis is ahead of the board's
};
static_assert(sizeof(DenyPlace) == 64);

struct Board {
  static constexpr size_t kServers = 64;
  static constexpr size_t kPlaces = 4096;
  static constexpr size_t kBreakerBytes = 64;

  BreakerState breakers[kServers];
  DenyPlace denied[kPlaces];
};
static_assert(sizeof(Board) == ShmStore::kBoardBytes);

// The board of one store.
struct BoardView {
  // Uses the board in the file of `options.fallback` if that is a shared memory; stores with the
  // same Redis, credentials and deadlines share it. Otherwise, or if that board is full, makes a
  // board for this store alone.
  explicit BoardView(const RedisOptions& options);

  Hasher hasher;  // of keys in `denied`
  std::unique_ptr<Board> own;
  Board* board;
  BreakerState* breaker;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_HEALTH_BOARD_H_
