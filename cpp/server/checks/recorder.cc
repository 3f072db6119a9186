#include "server/checks/recorder.h"

#include <iterator>
#include <limits>
#include <utility>

#include "absl/hash/hash.h"
#include "base/text.h"

namespace tidegate::server {

namespace {

std::string_view Cut(std::string_view text) { return text.substr(0, Recorder::kMostText); }

}  // namespace

size_t Recorder::Hash::operator()(const KeyView& k) const {
  return absl::HashOf(k.user.empty() ? k.ip : k.user, k.endpoint, k.rule);
}

void Sums::Add(const Sums& other) {
  allowed += other.allowed;
  refused += other.refused;
  refused_in_shadow += other.refused_in_shadow;
  degraded += other.degraded;
  // The sum saturates, since a single cost may be 2^53.
  if (__builtin_add_overflow(cost, other.cost, &cost)) cost = std::numeric_limits<int64_t>::max();
}

size_t Recorder::ShardOfThread() {
  static std::atomic<size_t> threads{0};
  thread_local const size_t number = threads.fetch_add(1, std::memory_order_relaxed) % kShards;
  return number;
}

void Recorder::Record(const Recorded& decision) {
  const std::string_view ip = decision.user.empty() ? decision.caller_ip : std::string_view();
  const KeyView key{Cut(decision.user), Cut(ip), Cut(decision.endpoint), Cut(decision.rule)};
  Shard& shard = shards_[ShardOfThread()];
  const std::lock_guard lock(shard.mutex);
  if (const auto known = shard.table.find(key); known != shard.table.end()) {
    known->second.sums.Add(decision.sums);
    return;
  }
  const int64_t rows = rows_.fetch_add(1, std::memory_order_relaxed);
  if (rows >= capacity_ && (rows >= capacity_ + capacity_ / 4 || !IsKnown(key.user))) {
    rows_.fetch_sub(1, std::memory_order_relaxed);
    dropped_.fetch_add(1, std::memory_order_relaxed);
    shard.has_rest = true;
    shard.rest.Add(decision.sums);
    return;
  }
  Value& made = shard.table[Key{std::string(key.user), std::string(key.ip),
                                std::string(key.endpoint), std::string(key.rule)}];
  made.tier = Cut(decision.tier);
  made.caller_ip = Cut(decision.caller_ip);
  made.sums.Add(decision.sums);
}

void Recorder::SetKnown(std::vector<std::string> users) {
  auto known = std::make_shared<const Users>(std::make_move_iterator(users.begin()),
                                             std::make_move_iterator(users.end()));
  const std::lock_guard lock(known_mutex_);
  known_.swap(known);
}

bool Recorder::IsKnown(std::string_view user) const {
  std::shared_ptr<const Users> known;
  {
    const std::lock_guard lock(known_mutex_);
    known = known_;
  }
  return known->contains(Absl(user));
}

std::vector<Recorder::Row> Recorder::Drain() {
  std::vector<Row> rows;
  Row rest;
  rest.is_rest = true;
  bool has_rest = false;
  for (Shard& shard : shards_) {
    size_t rows_before = 0;
    {
      const std::lock_guard lock(shard.mutex);
      rows_before = shard.rows_before;
    }
    Table table;
    table.reserve(rows_before);
    {
      const std::lock_guard lock(shard.mutex);
      table.swap(shard.table);
      shard.rows_before = table.size();
      has_rest = has_rest || shard.has_rest;
      rest.sums.Add(shard.rest);
      shard.rest = Sums();
      shard.has_rest = false;
    }
    rows_.fetch_sub(static_cast<int64_t>(table.size()), std::memory_order_relaxed);
    for (auto& [key, value] : table) {
      rows.push_back({key.user, key.endpoint, key.rule, std::move(value.tier),
                      std::move(value.caller_ip), value.sums});
    }
  }
  if (has_rest) rows.push_back(std::move(rest));
  return rows;
}

}  // namespace tidegate::server
