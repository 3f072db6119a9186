#include "table/log_table.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>
#include <vector>

#include "table/mark.h"
#include "tidegate/step.h"

namespace tidegate {

void LogTable::WithExisting(const Fingerprint& key, absl::FunctionRef<void(InstantRing*)> work) {
  Shard& shard = rings_.Of(key);
  const std::lock_guard lock(shard.mutex);
  const auto it = shard.values.find(key);
  work(it == shard.values.end() ? nullptr : &it->second);
}

void LogTable::Erase(const Fingerprint& key) {
  Shard& shard = rings_.Of(key);
  const std::lock_guard lock(shard.mutex);
  const auto it = shard.values.find(key);
  if (it == shard.values.end()) return;
  Drop(shard, it);
}

void LogTable::Clear() {
  for (Shard& shard : rings_) {
    const std::lock_guard lock(shard.mutex);
    bytes_.fetch_sub(shard.bytes, std::memory_order_relaxed);
    shard.bytes = 0;
    shard.values.clear();
  }
}

void LogTable::Drop(Shard& shard, Rings::Values::iterator it) {
  const size_t bytes = kRingBytes + it->second.bytes();
  shard.bytes -= bytes;
  bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  shard.values.erase(it);
}

namespace {

// The order in which live rings are evicted: the least often charged first (mark.h), and of these
// the nearest to idle.
auto OrderOf(const Fingerprint& key, const InstantRing& ring, int64_t now_ns) {
  const size_t first = ring.FirstAfter(now_ns);
  const Mark mark = MarkOfLog(ring.size() - first, MostAtOnce(ring, first));
  const int64_t left_ns = ring.empty() ? 0 : std::max<int64_t>(ring.newest() - now_ns, 0);
  return std::tuple(mark, std::bit_width(static_cast<uint64_t>(left_ns)), key.lo, key.hi);
}

}  // namespace

// Drops idle rings. If all rings together are too large, also drops live ones: the excess, and a
// sixteenth of the shard, so that it is not swept again at once.
void LogTable::Sweep(Shard& shard, const Fingerprint& kept, int64_t now_ns) {
  const auto idle_from = [](const InstantRing& ring) {
    return ring.empty() ? int64_t{0} : ring.newest();
  };
  for (auto it = shard.values.begin(); it != shard.values.end();) {
    const auto here = it++;
    if (idle_from(here->second) + kClockToleranceNs > now_ns) continue;
    Drop(shard, here);
    ++shard.evictions;
  }
  const size_t bytes = bytes_.load(std::memory_order_relaxed);
  if (bytes > most_bytes_) {
    std::vector<decltype(OrderOf(kept, {}, 0))> order;
    order.reserve(shard.values.size());
    for (const auto& [key, ring] : shard.values) {
      if (key != kept) order.push_back(OrderOf(key, ring, now_ns));
    }
    std::make_heap(order.begin(), order.end(), std::greater<>());
    const size_t excess = std::max(bytes - most_bytes_, shard.bytes / 16);
    const size_t enough = shard.bytes - std::min(shard.bytes, excess);
    while (!order.empty() && shard.bytes > enough) {
      std::pop_heap(order.begin(), order.end(), std::greater<>());
      Drop(shard, shard.values.find({std::get<2>(order.back()), std::get<3>(order.back())}));
      order.pop_back();
      ++shard.evicted_live;
    }
  }
  shard.SetNextSweep();
}

}  // namespace tidegate
