#include "redis/transport/cluster.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "redis/protocol/scripts.h"
#include "redis/transport/connection.h"
#include "redis/transport/io_thread.h"

namespace tidegate::redis {
namespace {

constexpr int kMostSteps = 6;  // how often a request may go from node to node
constexpr std::chrono::milliseconds kFetchInterval{100};
// How often the map is asked for while no calls are sent that would show that it has changed.
constexpr std::chrono::seconds kIdleFetchInterval{1};

// CRC-16/XMODEM, as in the Redis cluster specification.
constexpr std::array<uint16_t, 256> kCrc16 = [] {
  std::array<uint16_t, 256> table{};
  for (unsigned i = 0; i < 256; ++i) {
    auto crc = static_cast<uint16_t>(i << 8);
    for (int bit = 0; bit < 8; ++bit) {
      crc = static_cast<uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
    table[i] = crc;
  }
  return table;
}();

const std::string& Asking() {
  static const auto* const asking = new std::string(Format({"ASKING"}));
  return *asking;
}

}  // namespace

uint16_t Cluster::SlotOf(std::string_view key) {
  const size_t open = key.find('{');
  if (open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  uint16_t crc = 0;
  for (const char c : key) {
    crc = static_cast<uint16_t>((crc << 8) ^
                                kCrc16[((crc >> 8) ^ static_cast<unsigned char>(c)) & 0xff]);
  }
  return crc % kSlots;
}

// The nodes as this process knows them. Thread-safe.
class Cluster::Nodes final : public std::enable_shared_from_this<Nodes> {
 public:
  explicit Nodes(const RedisOptions& options) : options_(options) { map_->owners.fill(kUnknown); }

  void Start() {
    for (const RedisAddress& seed : options_.nodes) FetchMap(NodeAt(seed.host, seed.port));
  }
  void Stop();

  absl::StatusOr<Reply> Call(uint16_t slot, const std::string& request, Instant deadline);
  void Send(uint16_t slot, std::unique_ptr<Caller> caller);
  void Flush() { io_->Flush(); }
  void Renew(const std::string& why);
  bool ShowsLife();

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  class MapFetch;
  class Routed;

  // The next step of a request.
  struct Step {
    NodePtr node;  // where the request goes; null if it is answered
    bool asking = false;
  };

  // Immutable once it is published; replaced as a whole.
  struct SlotMap {
    std::vector<NodePtr> nodes;
    std::array<uint16_t, kSlots> owners;  // by their place in `nodes`, or kUnknown
  };
  static constexpr uint16_t kUnknown = std::numeric_limits<uint16_t>::max();

  // Replaces the map by a changed copy; does nothing once this has stopped.
  template <typename Change>
  void Edit(Change change);
  static uint16_t IndexIn(SlotMap& map, const NodePtr& node);
  NodePtr FindOrMake(std::initializer_list<const std::vector<NodePtr>*> known,
                     std::string_view host, int port);
  // The node at that address, with a new connection if it is new. Null once this has stopped.
  NodePtr NodeAt(std::string_view host, int port);
  NodePtr OwnerOf(uint16_t slot);
  // All nodes of the map; none once this has stopped.
  std::vector<NodePtr> Known();
  // A node other than `node`, if there is one: a different one at each call.
  NodePtr AnyBut(const Node& node);
  // What to do after `reply` of `node`.
  Step After(uint16_t slot, const NodePtr& node, const absl::StatusOr<Reply>& reply);
  // Asks `node` for the whole map, unless that was done a moment ago.
  void FetchMap(const NodePtr& node, std::chrono::milliseconds interval = kFetchInterval);
  void ApplyMap(const Node& from, const redisReply& slots);

  const RedisOptions options_;
  const std::shared_ptr<IoThread> io_ = std::make_shared<IoThread>();
  std::mutex mu_;                                               // guards all below
  std::shared_ptr<SlotMap> map_ = std::make_shared<SlotMap>();  // null once this has stopped
  bool known_ = false;                                          // a whole map was fetched
  bool has_moved_ = false;  // a slot has another owner since the last call of ShowsLife()
  Instant fetched_;
  size_t turn_ = 0;
};

struct Cluster::Nodes::Node {
  Node(const RedisOptions& options, const std::shared_ptr<IoThread>& io)
      : host(options.host),
        port(options.port),
        connection(std::make_shared<Connection>(options, io)) {}
  ~Node() { connection->Stop(); }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string host;
  const int port;
  const std::shared_ptr<Connection> connection;
};

// Asks a node for the map. Nobody waits for it.
class Cluster::Nodes::MapFetch final : public Caller {
 public:
  MapFetch(Instant deadline, std::weak_ptr<Nodes> nodes, NodePtr node)
      : Caller(deadline), nodes_(std::move(nodes)), node_(std::move(node)) {}
  std::string Request() override { return Format({"CLUSTER", "SLOTS"}); }
  void Done(absl::StatusOr<Reply> reply) override {
    const std::shared_ptr<Nodes> nodes = nodes_.lock();
    if (nodes != nullptr && reply.ok() && (*reply)->type == REDIS_REPLY_ARRAY) {
      nodes->ApplyMap(*node_, **reply);
    }
  }

 private:
  const std::weak_ptr<Nodes> nodes_;
  const NodePtr node_;
};

// A request on its way through the cluster.
class Cluster::Nodes::Routed final : public Caller {
 public:
  Routed(std::weak_ptr<Nodes> nodes, uint16_t slot, Step step, int steps,
         std::unique_ptr<Caller> caller)
      : Caller(caller->deadline()),
        nodes_(std::move(nodes)),
        slot_(slot),
        step_(std::move(step)),
        steps_(steps),
        caller_(std::move(caller)) {}

  static void Send(std::unique_ptr<Routed> routed) {
    const NodePtr node = routed->step_.node;
    node->connection->Send(std::move(routed));
  }

  void Join(std::unique_ptr<Caller>* other) override {
    auto* const routed = dynamic_cast<Routed*>(other->get());
    if (routed == nullptr || routed->slot_ != slot_ || step_.asking || routed->step_.asking) return;
    caller_->Join(&routed->caller_);
    if (routed->caller_ == nullptr) other->reset();
  }
  std::string Request() override {
    return step_.asking ? Asking() + caller_->Request() : caller_->Request();
  }
  int replies() const override { return step_.asking ? 2 : 1; }

  void Done(absl::StatusOr<Reply> reply) override {
    const std::shared_ptr<Nodes> nodes = nodes_.lock();
    Step next;
    if (nodes != nullptr && steps_ < kMostSteps) next = nodes->After(slot_, step_.node, reply);
    caller_->set_deadline(deadline());
    if (next.node == nullptr) {
      caller_->Done(std::move(reply));
      return;
    }
    Send(std::make_unique<Routed>(nodes_, slot_, std::move(next), steps_ + 1, std::move(caller_)));
    nodes->Flush();
  }

 private:
  const std::weak_ptr<Nodes> nodes_;
  const uint16_t slot_;
  const Step step_;
  const int steps_;
  std::unique_ptr<Caller> caller_;
};

template <typename Change>
void Cluster::Nodes::Edit(Change change) {
  // Destroyed after the lock is released, with the nodes that only the old map had.
  std::shared_ptr<SlotMap> map;
  const std::lock_guard<std::mutex> lock(mu_);
  if (map_ == nullptr) return;
  map = std::make_shared<SlotMap>(*map_);
  change(*map);
  map_.swap(map);
}

void Cluster::Nodes::Stop() {
  std::shared_ptr<SlotMap> map;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    map_.swap(map);
  }
  map.reset();
  io_->Stop();
}

uint16_t Cluster::Nodes::IndexIn(SlotMap& map, const NodePtr& node) {
  const auto found = std::find(map.nodes.begin(), map.nodes.end(), node);
  const auto index = static_cast<uint16_t>(found - map.nodes.begin());
  if (found == map.nodes.end()) map.nodes.push_back(node);
  return index;
}

Cluster::Nodes::NodePtr Cluster::Nodes::FindOrMake(
    std::initializer_list<const std::vector<NodePtr>*> known, std::string_view host, int port) {
  for (const std::vector<NodePtr>* nodes : known) {
    for (const NodePtr& node : *nodes) {
      if (node->port == port && node->host == host) return node;
    }
  }
  RedisOptions own = options_;
  own.host = std::string(host);
  own.port = port;
  auto node = std::make_shared<Node>(own, io_);
  node->connection->Start();
  return node;
}

Cluster::Nodes::NodePtr Cluster::Nodes::NodeAt(std::string_view host, int port) {
  NodePtr node;
  Edit([&](SlotMap& map) {
    node = FindOrMake({&map.nodes}, host, port);
    (void)IndexIn(map, node);
  });
  return node;
}

Cluster::Nodes::NodePtr Cluster::Nodes::OwnerOf(uint16_t slot) {
  const std::lock_guard<std::mutex> lock(mu_);
  if (map_ == nullptr || map_->nodes.empty()) return nullptr;
  const uint16_t owner = map_->owners[slot];
  return owner == kUnknown ? map_->nodes.front() : map_->nodes[owner];
}

Cluster::Nodes::NodePtr Cluster::Nodes::AnyBut(const Node& node) {
  const auto is_other = [&node](const auto& at) {
    return at.port != node.port || at.host != node.host;
  };
  std::vector<RedisAddress> others;
  size_t turn = 0;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (map_ == nullptr) return nullptr;
    for (const NodePtr& other : map_->nodes) {
      if (is_other(*other)) others.push_back({other->host, other->port});
    }
    turn = turn_++;
  }
  // All nodes of the map may be gone, and the configured nodes be back.
  std::copy_if(options_.nodes.begin(), options_.nodes.end(), std::back_inserter(others), is_other);
  if (others.empty()) return nullptr;
  const RedisAddress& other = others[turn % others.size()];
  return NodeAt(other.host, other.port);
}

Cluster::Nodes::Step Cluster::Nodes::After(uint16_t slot, const NodePtr& node,
                                           const absl::StatusOr<Reply>& reply) {
  if (!reply.ok()) {
    const NodePtr other = AnyBut(*node);
    if (other == nullptr) return {};
    FetchMap(other);
    // A request that was not sent may go to another node, which may know the slot's owner by now.
    return {absl::IsUnavailable(reply.status()) ? other : nullptr, false};
  }
  if ((*reply)->type != REDIS_REPLY_ERROR) return {};
  const std::string_view message((*reply)->str, (*reply)->len);
  // MOVED 3999 127.0.0.1:6381
  const bool moved = message.substr(0, 6) == "MOVED ";
  if (!moved && message.substr(0, 4) != "ASK ") return {};
  const std::string_view address = message.substr(message.rfind(' ') + 1);
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return {};
  const std::string_view host = address.substr(0, colon);
  int port = 0;
  std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  if (port < 1 || port > 65535) return {};
  const NodePtr owner = NodeAt(host.empty() ? std::string_view(node->host) : host, port);
  if (moved && owner != nullptr) {
    Edit([&](SlotMap& map) { map.owners[slot] = IndexIn(map, owner); });
    FetchMap(owner);
  }
  return {owner, !moved};
}

void Cluster::Nodes::FetchMap(const NodePtr& node, std::chrono::milliseconds interval) {
  if (node == nullptr) return;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    const Instant now = MonotonicNow();
    if (known_ && now - fetched_ < interval) return;
    fetched_ = now;
  }
  const Instant deadline = MonotonicIn(options_.connect_timeout + options_.timeout);
  node->connection->Send(std::make_unique<MapFetch>(deadline, weak_from_this(), node));
  io_->Flush();
}

// [[first, last, [host, port, ...], replicas...], ...]
void Cluster::Nodes::ApplyMap(const Node& from, const redisReply& slots) {
  Edit([&](SlotMap& map) {
    SlotMap fresh;
    fresh.owners.fill(kUnknown);
    for (size_t i = 0; i < slots.elements; ++i) {
      const redisReply& range = *slots.element[i];
      if (range.type != REDIS_REPLY_ARRAY || range.elements < 3 ||
          range.element[0]->type != REDIS_REPLY_INTEGER ||
          range.element[1]->type != REDIS_REPLY_INTEGER) {
        continue;
      }
      const redisReply& master = *range.element[2];
      if (master.type != REDIS_REPLY_ARRAY || master.elements < 2 ||
          master.element[1]->type != REDIS_REPLY_INTEGER) {
        continue;
      }
      const redisReply& name = *master.element[0];
      const auto port = master.element[1]->integer;
      if (port < 1 || port > 65535) continue;
      const std::string_view host = name.type == REDIS_REPLY_STRING && name.len > 0
                                        ? std::string_view(name.str, name.len)
                                        : std::string_view(from.host);
      const NodePtr node = FindOrMake({&fresh.nodes, &map.nodes}, host, static_cast<int>(port));
      const uint16_t index = IndexIn(fresh, node);
      for (auto slot = std::max<long long>(range.element[0]->integer, 0);
           slot <= range.element[1]->integer && slot < static_cast<long long>(kSlots); ++slot) {
        fresh.owners[static_cast<size_t>(slot)] = index;
      }
    }
    if (fresh.nodes.empty()) return;
    for (size_t slot = 0; slot < kSlots && known_ && !has_moved_; ++slot) {
      const auto owner = [slot](const SlotMap& in) {
        return in.owners[slot] == kUnknown ? nullptr : in.nodes[in.owners[slot]];
      };
      has_moved_ = owner(fresh) != owner(map);
    }
    known_ = true;
    map = std::move(fresh);
  });
}

absl::StatusOr<Reply> Cluster::Nodes::Call(uint16_t slot, const std::string& request,
                                           Instant deadline) {
  Step step{OwnerOf(slot), false};
  if (step.node == nullptr) return absl::CancelledError("the client was closed");
  for (int steps = 1;; ++steps) {
    absl::StatusOr<Reply> reply = step.asking
                                      ? step.node->connection->Call(Asking() + request, 2, deadline)
                                      : step.node->connection->Call(request, 1, deadline);
    if (steps < kMostSteps) {
      step = After(slot, step.node, reply);
    } else {
      step = {};
    }
    if (step.node == nullptr) return reply;
  }
}

void Cluster::Nodes::Send(uint16_t slot, std::unique_ptr<Caller> caller) {
  Step step{OwnerOf(slot), false};
  if (step.node == nullptr) {
    caller->Done(absl::CancelledError("the client was closed"));
    return;
  }
  Routed::Send(
      std::make_unique<Routed>(weak_from_this(), slot, std::move(step), 1, std::move(caller)));
}

std::vector<Cluster::Nodes::NodePtr> Cluster::Nodes::Known() {
  const std::lock_guard<std::mutex> lock(mu_);
  return map_ == nullptr ? std::vector<NodePtr>() : map_->nodes;
}

void Cluster::Nodes::Renew(const std::string& why) {
  for (const NodePtr& node : Known()) node->connection->Renew(why);
}

// A replica that has taken over shows it only in the map of the others, for which no call asks
// while the breaker is open.
bool Cluster::Nodes::ShowsLife() {
  const std::vector<NodePtr> nodes = Known();
  bool shows = false;
  for (const NodePtr& node : nodes) shows |= node->connection->ShowsLife();
  NodePtr next;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    shows |= std::exchange(has_moved_, false);
    if (!nodes.empty()) next = nodes[turn_++ % nodes.size()];
  }
  FetchMap(next, kIdleFetchInterval);
  return shows;
}

Cluster::Cluster(const RedisOptions& options)
    : nodes_([&options] { return std::make_shared<Nodes>(options); }) {}

Cluster::~Cluster() = default;

absl::StatusOr<Reply> Cluster::Call(uint16_t slot, const std::string& request, Instant deadline) {
  return nodes_.Get().Call(slot, request, deadline);
}

void Cluster::Send(uint16_t slot, std::unique_ptr<Caller> caller) {
  nodes_.Get().Send(slot, std::move(caller));
}

void Cluster::Kick() { nodes_.Get().Flush(); }

void Cluster::Renew(const std::string& why) { nodes_.Get().Renew(why); }

bool Cluster::ShowsLife() { return nodes_.Get().ShowsLife(); }

}  // namespace tidegate::redis
