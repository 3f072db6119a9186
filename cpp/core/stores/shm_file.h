// The file behind a shared-memory store: its first page, and how it is made, opened, refused and
// removed.
#ifndef TIDEGATE_SRC_STORES_SHM_FILE_H_
#define TIDEGATE_SRC_STORES_SHM_FILE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tidegate/shm_store.h"

namespace tidegate {

// The layout in shm_store.h. A change of anything that two processes must agree on, such as where
// the table looks for a key or what a state means, needs a new version.
struct ShmHeader {
  static constexpr uint64_t kMagic = 0x6574'6167'6564'6974;  // "tidegate"
  static constexpr uint32_t kVersion = 4;
  static constexpr uint16_t kByteOrder = 0x0102;
  static constexpr size_t kBytes = 4096;
  // Where the slices begin.
  static constexpr size_t kSlicesAt = kBytes + ShmStore::kBoardBytes;

  uint64_t magic;
  uint32_t version;
  uint16_t byte_order;
  uint16_t cell_bytes;
  uint64_t slice_cells;
  uint64_t bytes;
  uint64_t slices;
  int64_t capacity;
  int64_t epoch_offset_ns;
  std::array<unsigned char, 16> boot;
  Hasher::Seed seed;
  uint64_t checksum;

  struct alignas(64) Counter {
    std::atomic<int64_t> value;
  };
  alignas(512) Counter used;
  Counter evictions;
  Counter evicted_live;
  alignas(64) std::atomic<int64_t> clock_correction_ns;
  alignas(64) std::atomic<int64_t> newest_ns;  // of the table
  alignas(512) unsigned char unused[kBytes - 1024];
};
static_assert(sizeof(ShmHeader) == ShmHeader::kBytes);
static_assert(offsetof(ShmHeader, checksum) == 104);
static_assert(offsetof(ShmHeader, used) == 512);
static_assert(offsetof(ShmHeader, clock_correction_ns) == 704);
static_assert(offsetof(ShmHeader, newest_ns) == 768);

// This process's monotonic clock minus the host's: 0 but in a time namespace. No value if the
// system does not tell.
std::optional<int64_t> MonotonicOffsetNs();

// Maps the file at `path`. Makes it if there is none, or only one of an earlier boot.
absl::StatusOr<void*> MapShmFile(const std::string& path, const ShmOptions& options);
// Removes the file at `path`, which is of this user. If `any` is false, it begins as those of
// tidegate do.
absl::Status RemoveShmFile(const std::string& path, bool any);

}  // namespace tidegate

#endif  // TIDEGATE_SRC_STORES_SHM_FILE_H_
