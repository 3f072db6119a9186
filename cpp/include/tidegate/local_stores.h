// The stores that need no server, by the schemes of their URIs.
//
// A new one takes its class and a row of the table in core/stores/local_stores.cc.
#ifndef TIDEGATE_LOCAL_STORES_H_
#define TIDEGATE_LOCAL_STORES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "tidegate/store.h"

namespace tidegate {

struct LocalStore {
  std::string_view scheme;  // of its URIs, such as "shm"
  std::string_view uris;    // what its URIs look like, for messages
  // Whether a URI has a host or a path, which names the store; and that rule for messages.
  bool has_place;
  std::string_view place;
  // Opens or makes the store at a place, or at "". Without a capacity it takes its default.
  // InvalidArgument for an invalid place or capacity.
  absl::StatusOr<std::shared_ptr<Store>> (*open)(std::string_view place,
                                                 std::optional<int64_t> capacity);
};

std::span<const LocalStore> LocalStores();

}  // namespace tidegate

#endif  // TIDEGATE_LOCAL_STORES_H_
