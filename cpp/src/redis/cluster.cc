#include "redis/cluster.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "redis/scripts.h"
#include "tidegate/clock.h"

namespace tidegate::redis {
namespace {

constexpr int kMostSteps = 6;
constexpr int64_t kLearnEveryNs = 100'000'000;

// CRC-16/XMODEM, as the cluster specification of Redis wants it.
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

struct Cluster::Node {
  Node(const RedisOptions& options, std::string at_host, int at_port)
      : host(std::move(at_host)), port(at_port), own(options) {
    own.host = host;
    own.port = port;
    connection = std::make_unique<Connection>(own);
  }

  const std::string host;
  const int port;
  RedisOptions own;
  std::unique_ptr<Connection> connection;
  Node* next = nullptr;
};

struct Cluster::Step {
  Node* node = nullptr;  // null: that was it
  bool asking = false;
};

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

// Asks a node for the map. Nobody waits for it, so the cluster may be gone.
class Cluster::Learner final : public Caller {
 public:
  Learner(std::weak_ptr<Cluster> cluster, const Node* node)
      : cluster_(std::move(cluster)), node_(node) {}
  std::string Request() override { return Format({"CLUSTER", "SLOTS"}); }
  void Done(absl::StatusOr<Reply> reply) override {
    const std::shared_ptr<Cluster> cluster = cluster_.lock();
    if (cluster != nullptr && reply.ok() && (*reply)->type == REDIS_REPLY_ARRAY) {
      cluster->Adopt(*node_, **reply);
    }
  }

 private:
  const std::weak_ptr<Cluster> cluster_;
  const Node* const node_;  // the cluster's
};

// A request on its way through the cluster.
class Cluster::Routed final : public Caller {
 public:
  Routed(std::weak_ptr<Cluster> cluster, uint16_t slot, absl::Time deadline,
         std::unique_ptr<Caller> caller)
      : cluster_(std::move(cluster)),
        slot_(slot),
        deadline_(deadline),
        caller_(std::move(caller)) {}

  static void SendTo(Step step, std::unique_ptr<Routed> routed) {
    routed->node_ = step.node;
    routed->asking_ = step.asking;
    const absl::Time deadline = routed->deadline_;
    step.node->connection->Send(0, deadline, std::move(routed));
  }

  void Join(std::unique_ptr<Caller>* other) override {
    auto* const routed = dynamic_cast<Routed*>(other->get());
    if (routed == nullptr || routed->slot_ != slot_ || asking_ || routed->asking_) return;
    caller_->Join(&routed->caller_);
    if (routed->caller_ == nullptr) other->reset();
  }
  std::string Request() override {
    return asking_ ? Asking() + caller_->Request() : caller_->Request();
  }
  int replies() const override { return asking_ ? 2 : 1; }

  void Done(absl::StatusOr<Reply> reply) override {
    const std::shared_ptr<Cluster> cluster = cluster_.lock();
    const Step step =
        cluster != nullptr && ++steps_ < kMostSteps ? cluster->After(slot_, node_, reply) : Step();
    if (step.node == nullptr) {
      caller_->Done(std::move(reply));
      return;
    }
    auto again = std::make_unique<Routed>(cluster_, slot_, deadline_, std::move(caller_));
    again->steps_ = steps_;
    SendTo(step, std::move(again));
    step.node->connection->Kick();
  }

 private:
  const std::weak_ptr<Cluster> cluster_;
  const uint16_t slot_;
  const absl::Time deadline_;
  std::unique_ptr<Caller> caller_;
  Node* node_ = nullptr;
  bool asking_ = false;
  int steps_ = 0;
};

std::shared_ptr<Cluster> Cluster::Create(const RedisOptions& options) {
  std::shared_ptr<Cluster> cluster(new Cluster(options));
  for (const RedisAddress& seed : options.nodes) {
    cluster->Learn(cluster->NodeAt(seed.host, seed.port));
  }
  return cluster;
}

Cluster::~Cluster() {
  for (Node* node = nodes_.load(); node != nullptr;) delete std::exchange(node, node->next);
}

Cluster::Node* Cluster::NodeAt(const std::string& host, int port) {
  for (Node* node = nodes_.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    if (node->port == port && node->host == host) return node;
  }
  // Two threads may add the same one; both are of use.
  auto* const made = new Node(options_, host, port);
  made->next = nodes_.load(std::memory_order_relaxed);
  while (!nodes_.compare_exchange_weak(made->next, made, std::memory_order_acq_rel)) {
  }
  return made;
}

Cluster::Node* Cluster::OwnerOf(uint16_t slot) const {
  Node* const owner = owners_[slot].load(std::memory_order_acquire);
  return owner != nullptr ? owner : nodes_.load(std::memory_order_acquire);
}

Cluster::Node* Cluster::AnyBut(const Node* node) {
  std::vector<Node*> others;
  for (Node* n = nodes_.load(std::memory_order_acquire); n != nullptr; n = n->next) {
    if (n != node) others.push_back(n);
  }
  if (others.empty()) return nullptr;
  return others[turn_.fetch_add(1, std::memory_order_relaxed) % others.size()];
}

Cluster::Step Cluster::After(uint16_t slot, Node* node, const absl::StatusOr<Reply>& reply) {
  if (absl::IsUnavailable(reply.status())) {
    // It was not sent. Another node may know who has the slot by now.
    Node* const other = AnyBut(node);
    if (other != nullptr) Learn(other);
    return {other, false};
  }
  if (!reply.ok()) {
    if (Node* const other = AnyBut(node); other != nullptr) Learn(other);
    return {};
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
  Node* const owner = NodeAt(host.empty() ? node->host : std::string(host), port);
  if (moved) {
    owners_[slot].store(owner, std::memory_order_release);
    Learn(owner);
  }
  return {owner, !moved};
}

void Cluster::Learn(Node* node) {
  const int64_t now = SystemClock::Get().Now();
  int64_t before = learnt_ns_.load(std::memory_order_relaxed);
  const bool known = owners_[0].load(std::memory_order_relaxed) != nullptr;
  if (known && (now - before < kLearnEveryNs || !learnt_ns_.compare_exchange_strong(before, now))) {
    return;
  }
  node->connection->Send(0, absl::Now() + options_.connect_timeout + options_.timeout,
                         std::make_unique<Learner>(weak_from_this(), node));
  node->connection->Kick();
}

// [[first, last, [host, port, ...], replicas...], ...]
void Cluster::Adopt(const Node& from, const redisReply& slots) {
  const auto is = [](const redisReply* reply, int type) { return reply->type == type; };
  for (size_t i = 0; i < slots.elements; ++i) {
    const redisReply& range = *slots.element[i];
    if (!is(&range, REDIS_REPLY_ARRAY) || range.elements < 3 ||
        !is(range.element[0], REDIS_REPLY_INTEGER) || !is(range.element[1], REDIS_REPLY_INTEGER)) {
      continue;
    }
    const redisReply& master = *range.element[2];
    if (!is(&master, REDIS_REPLY_ARRAY) || master.elements < 2 ||
        !is(master.element[1], REDIS_REPLY_INTEGER)) {
      continue;
    }
    const bool named = is(master.element[0], REDIS_REPLY_STRING) && master.element[0]->len > 0;
    const auto port = master.element[1]->integer;
    if (port < 1 || port > 65535) continue;
    Node* const node =
        NodeAt(named ? std::string(master.element[0]->str, master.element[0]->len) : from.host,
               static_cast<int>(port));
    for (auto slot = std::max<long long>(range.element[0]->integer, 0);
         slot <= range.element[1]->integer && slot < static_cast<long long>(kSlots); ++slot) {
      owners_[static_cast<size_t>(slot)].store(node, std::memory_order_release);
    }
  }
}

absl::StatusOr<Reply> Cluster::Call(uint16_t slot, const std::string& request,
                                    absl::Time deadline) {
  Step step{OwnerOf(slot), false};
  for (int steps = 1;; ++steps) {
    absl::StatusOr<Reply> reply =
        step.asking ? step.node->connection->Exchange(Asking() + request, 2, deadline)
                    : step.node->connection->Exchange(request, 1, deadline);
    step = steps < kMostSteps ? After(slot, step.node, reply) : Step();
    if (step.node == nullptr) return reply;
  }
}

void Cluster::Send(uint16_t slot, absl::Time deadline, std::unique_ptr<Caller> caller) {
  Routed::SendTo({OwnerOf(slot), false},
                 std::make_unique<Routed>(weak_from_this(), slot, deadline, std::move(caller)));
}

void Cluster::Kick() {
  for (Node* node = nodes_.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    node->connection->Kick();
  }
}

void Cluster::Renew(const std::string& why) {
  for (Node* node = nodes_.load(std::memory_order_acquire); node != nullptr; node = node->next) {
    node->connection->Renew(why);
  }
}

}  // namespace tidegate::redis
