// A store that all processes of a host share, with no server: one Table of fixed
// capacity over a mapped file.
//
//   auto store = ShmStore::Open("api");                 // /dev/shm/tidegate-UID-api
//   auto other = ShmStore::Open("/var/lib/app/limits", {.capacity = 50'000});
//
// The file. The first process makes the whole file before it gives it its name, so that no other
// process ever sees it half made and a creator that dies leaves nothing. Everything but the cells
// stands on the first page:
//
//   0     magic "tidegate", version, byte order, bytes of a cell,
//         cells of a slice
//   24    bytes of the file, slices, capacity
//   48    Unix time minus the host's monotonic clock when the file was made: what all
//         processes add to that clock, so that they agree
//   56    the boot in which it was made; after another one it is stale, since
//         the monotonic clock began anew, and is replaced
//   72    seed of the hasher
//   104   checksum of all the above: none of it ever changes
//   512   counters, one cache line each: cells in use, idle and live keys evicted
//   704   what all processes add further since the wall clock was set
//   4096  board: what the users of this fallback know of their Redis
//           4096   breakers, 64 of 64 bytes: server, gate, row, window, unused
//           8192   refusals, 4,096 of 64 bytes: version, check, lo, w0, w1,
//                  from, until, ahead      (core/redis/health/board.h)
//   270336  slice 0 | slice 1 | ...      (table.h)
//
// Nothing but cells, counters, the correction and the board is written after the file has its name,
// each word by one atomic instruction, and there is no lock: a process that is killed at any
// instruction leaves a file that the others go on with, and loses at most the units of its call
// under way.
//
// Logs. A key of a sliding-log or concurrency limit of N units has N/2 cells
// instead of one, of two units each (core/table/log_cells.h); kMostLogUnits bounds N.
//
// Capacity. Fixed when the file is made: `capacity` keys at kLoad, 40 bytes each.
// Each further key takes the place of an idle one, or else of the least often charged of its
// neighbours (StoreStats::evicted_live).
//
// Trust. The file belongs to one user: it is made with mode 0600. A file that is a symbolic link,
// belongs to another user, is open to others, damaged, truncated, of another version or not of
// tidegate is refused. Truncating the file while processes use it kills them (SIGBUS).
//
// Thread-safe and process-safe. A child of fork() keeps using its parent's open file.
#ifndef TIDEGATE_SHM_STORE_H_
#define TIDEGATE_SHM_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tidegate/fingerprint.h"
#include "tidegate/store.h"

namespace tidegate {

struct ShmOptions {
  static constexpr int64_t kDefaultCapacity = 1'000'000;
  static constexpr int64_t kMaxCapacity = int64_t{1} << 32;
  // The number of keys, 1 to kMaxCapacity; a file of another capacity is refused. Without a value
  // any capacity of the file is accepted, and a new file gets the default.
  std::optional<int64_t> capacity;
};

class ShmStore : public Store {
 public:
  static constexpr double kLoad = 0.8;
  static constexpr int64_t kMostLogUnits = 16'384;
  static constexpr size_t kBoardBytes = size_t{65} * 4096;

  // `name` is an absolute path, or 1 to 100 of A-Z a-z 0-9 . _ - for a file of this
  // user under /dev/shm. InvalidArgument for an invalid name or capacity, another error if the file
  // cannot be opened or made.
  static absl::StatusOr<std::shared_ptr<ShmStore>> Open(std::string_view name,
                                                        const ShmOptions& options = {});
  // The path of the file with this `name`.
  static absl::StatusOr<std::string> PathOf(std::string_view name);
  // Removes the name of a file of this user: by its name also of a damaged one, by an absolute path
  // only of one of tidegate. Processes that have it open keep counting in it, separately from those
  // that open the name afterwards.
  static absl::Status Remove(std::string_view name);

  std::string_view kind() const override { return "shm"; }
  bool spans_processes() const override { return true; }

  virtual const std::string& path() const = 0;
  virtual int64_t capacity() const = 0;
  virtual size_t bytes() const = 0;
  virtual int64_t NowNs() const = 0;

  // Memory beside the table that all processes with the file open share: zeroed when the file is
  // made, on a page boundary.
  virtual void* board() const = 0;
  // A hasher with a secret derived from the file's: the same in all processes for the same `use`,
  // and different for every other.
  virtual Hasher HasherFor(std::string_view use) const = 0;

  // Reads every cell, while other calls go on.
  struct Busy {
    Fingerprint key;
    int64_t new_in_ns;  // until the key is full again
  };
  struct Census {
    int64_t live = 0;
    int64_t idle = 0;
    int64_t claimed = 0;
    std::vector<Busy> busiest;  // those that need the longest until they are full again, in order
  };
  virtual Census Count(int64_t now_ns, size_t busiest) const = 0;
};

}  // namespace tidegate

#endif  // TIDEGATE_SHM_STORE_H_
