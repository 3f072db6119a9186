// A cluster: one connection to each of its masters, and which of them has which slot. One
// I/O thread serves all of them.
//
// No caller waits for the map of slots. A request of a slot that is not known goes to any
// node, which answers where the slot is (MOVED); that is noted, and the whole map is fetched
// beside it. A request whose slot is on its way to another node (ASK) is sent there, once.
// Where a node cannot be reached, another one is asked for the map. Connections to nodes that
// have left the map are closed once their requests are answered.
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
  // The slot of a key: of what stands in its first braces, where something does.
  static uint16_t SlotOf(std::string_view key);

  // Begins to fetch the map. `options` must outlive this.
  explicit Cluster(const RedisOptions& options);
  ~Cluster() override;

  absl::StatusOr<Reply> Call(uint16_t slot, const std::string& request, Instant deadline) override;
  void Send(uint16_t slot, std::unique_ptr<Caller> caller) override;
  void Kick() override;
  void Renew(const std::string& why) override;

 private:
  class Nodes;  // of one process
  ProcessLocal<Nodes> nodes_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_TRANSPORT_CLUSTER_H_
