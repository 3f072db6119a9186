#include "tidegate/local_stores.h"

#include "tidegate/memory_store.h"
#include "tidegate/shm_store.h"

namespace tidegate {
namespace {

absl::StatusOr<std::shared_ptr<Store>> OpenMemory(std::string_view,
                                                  std::optional<int64_t> capacity) {
  return MemoryStore::Create({.capacity = capacity.value_or(MemoryOptions::kDefaultCapacity)});
}

absl::StatusOr<std::shared_ptr<Store>> OpenShm(std::string_view place,
                                               std::optional<int64_t> capacity) {
  return ShmStore::Open(place, {.capacity = capacity});
}

constexpr LocalStore kLocalStores[] = {
    {"memory", "'memory://'", false, "a memory store has no host, path or fragment", &OpenMemory},
    {"shm", "'shm://NAME' or 'shm:///PATH'", true,
     "a shared memory has either a name or an absolute path, and no fragment", &OpenShm},
};

}  // namespace

std::span<const LocalStore> LocalStores() { return kLocalStores; }

}  // namespace tidegate
