// The store of one process: Tables that grow in small steps, and rings for the algorithms that
// remember each admission.
//
//   auto store = MemoryStore::Create({.capacity = 1'000'000});
//
// Memory. A key takes one cell of 32 bytes under most algorithms. Tables have loads of 0.68 to
// 0.85, which makes 38 to 48 bytes a key. `capacity` keys fit without loss; each further key
// displaces an idle key, or else the least often charged of its neighbours
// (StoreStats::evicted_live). Nothing is preallocated.
//
// Growth. A table that is fuller than 0.79 is replaced by one a quarter larger
// (or smaller, if most of its keys are idle), one slice of 4,096 cells at a time, by the calling
// threads, so that no call does more than a few hundred microseconds of it. If a table is so large
// that the system needs milliseconds to provide its pages, a slice is moved only after another
// thread has fetched them.
//
// Thread-safe. Calls on cells are lock-free except for those moments; calls on rings lock one of
// many mutexes. fork() waits for calls that are under way, so a child finds everything consistent.
#ifndef TIDEGATE_MEMORY_STORE_H_
#define TIDEGATE_MEMORY_STORE_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "tidegate/store.h"

namespace tidegate {

struct MemoryOptions {
  static constexpr int64_t kDefaultCapacity = int64_t{1} << 24;
  static constexpr int64_t kMaxCapacity = int64_t{1} << 32;
  int64_t capacity = kDefaultCapacity;  // keys, 1 to kMaxCapacity
};

class MemoryStore : public Store {
 public:
  static absl::StatusOr<std::shared_ptr<MemoryStore>> Create(const MemoryOptions& options = {});

  std::string_view kind() const override { return "memory"; }
};

}  // namespace tidegate

#endif  // TIDEGATE_MEMORY_STORE_H_
