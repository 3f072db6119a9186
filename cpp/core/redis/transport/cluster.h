// A cluster: one connection to each of its masters, and the map of their slots. One I/O thread
// serves all of them.
//
// No caller waits for the map of slots. A request for an unknown slot goes to any node, which
// answers with the slot's node (MOVED); that is recorded, and the whole map is fetched in the
// background. A request whose slot is being migrated (ASK) is sent to the new node, once. If a node
// cannot be reached, another one is asked for the map. Connections to nodes that are no longer in
// the map are closed once their requests are answered.
#ifndef TIDEGATE_SRC_REDIS_TRANSPORT_CLUSTER_H_
#define TIDEGATE_SRC_REDIS_TRANSPORT_CLUSTER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "redis/transport/client.h"
#include "redis/transport/process_local.h"

namespace tidegate::redis {

class Cluster final : public Client {
 public:
  static constexpr size_t kSlots = 16'384;
  // The slot of a key: that of the text in its first braces, if there is any.
  static uint16_t SlotOf(std::string_view key);

  // Begins to fetch the map. `options` must outlive this.
  explicit Cluster(const RedisOptions& options);
  ~Cluster() override;

  absl::StatusOr<Reply> Call(uint16_t slot, const std::string& request, Instant deadline) override;
  void Send(uint16_t slot, std::unique_ptr<Caller> caller) override;
  void Kick() override;
  void Renew(const std::string& why) override;
  bool ShowsLife() override;

 private:
  class Nodes;  // of one process
  ProcessLocal<Nodes> nodes_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_CLUSTER_H_
