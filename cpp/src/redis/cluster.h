// A cluster: one connection to each of its nodes, and which of them has which slot.
//
// Nobody waits to learn that. A slot that is not known is asked for at any node, which
// answers where it is (MOVED); that is learnt, and the whole map asked for beside it. A
// request whose slot is on its way to another node (ASK) is sent there, once. A node that
// cannot be reached is asked about at the others.
//
// Lock-free: nodes are only ever added, so that a fork() leaves nothing held.
#ifndef TIDEGATE_SRC_REDIS_CLUSTER_H_
#define TIDEGATE_SRC_REDIS_CLUSTER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "redis/client.h"
#include "redis/connection.h"

namespace tidegate::redis {

class Cluster final : public Client, public std::enable_shared_from_this<Cluster> {
 public:
  static constexpr size_t kSlots = 16'384;
  // The slot of a key: of what stands in its first braces, where something does.
  static uint16_t SlotOf(std::string_view key);

  // Begins to learn the map.
  static std::shared_ptr<Cluster> Create(const RedisOptions& options);
  ~Cluster() override;

  absl::StatusOr<Reply> Call(uint16_t slot, const std::string& request,
                             absl::Time deadline) override;
  void Send(uint16_t slot, absl::Time deadline, std::unique_ptr<Caller> caller) override;
  void Kick() override;
  void Renew(const std::string& why) override;

 private:
  explicit Cluster(const RedisOptions& options) : options_(options) {}

  struct Node;
  struct Step;
  class Routed;
  class Learner;

  // The node of that address, connected to where it is new.
  Node* NodeAt(const std::string& host, int port);
  Node* OwnerOf(uint16_t slot) const;
  // Another one than `node`, where there is one: each call another.
  Node* AnyBut(const Node* node);
  // What to do after `reply` of `node`: nothing, or where to go.
  Step After(uint16_t slot, Node* node, const absl::StatusOr<Reply>& reply);
  // Asks `node` for the whole map, unless that was done a moment ago.
  void Learn(Node* node);
  void Adopt(const Node& from, const redisReply& slots);

  const RedisOptions options_;
  std::atomic<Node*> nodes_{nullptr};  // a list
  std::array<std::atomic<Node*>, kSlots> owners_{};
  std::atomic<int64_t> learnt_ns_{0};
  std::atomic<uint32_t> turn_{0};
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_CLUSTER_H_
