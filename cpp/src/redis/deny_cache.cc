#include "redis/deny_cache.h"

#include <algorithm>

namespace tidegate::redis {
namespace {
constexpr auto kRelaxed = std::memory_order_relaxed;
}  // namespace

std::optional<DenyCache::Refusal> DenyCache::Find(const Fingerprint& key, int64_t now_ns) const {
  const Place& place = PlaceOf(key);
  const uint32_t version = place.version.load(std::memory_order_acquire);
  const int64_t ahead_ns = place.ahead_ns.load(kRelaxed);
  const Refusal refusal{{place.w0.load(kRelaxed), place.w1.load(kRelaxed)}, now_ns + ahead_ns};
  const bool holds = place.lo.load(kRelaxed) == key.lo && place.hi.load(kRelaxed) == key.hi &&
                     now_ns >= place.from_ns.load(kRelaxed) &&
                     now_ns < place.until_ns.load(kRelaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (!holds || (version & 1) != 0 || place.version.load(kRelaxed) != version) {
    return std::nullopt;
  }
  return refusal;
}

uint32_t DenyCache::Version(const Fingerprint& key) const {
  return PlaceOf(key).version.load(std::memory_order_acquire);
}

void DenyCache::Put(const Fingerprint& key, uint32_t version, const CellState& state,
                    int64_t retry_after_ns, const Times& times) {
  if ((version & 1) != 0) return;
  Place& place = PlaceOf(key);
  if (!place.version.compare_exchange_strong(version, version + 1, std::memory_order_acquire)) {
    return;
  }
  std::atomic_thread_fence(std::memory_order_release);
  place.lo.store(key.lo, kRelaxed);
  place.hi.store(key.hi, kRelaxed);
  place.w0.store(state.w0, kRelaxed);
  place.w1.store(state.w1, kRelaxed);
  place.from_ns.store(times.asked_ns, kRelaxed);
  place.until_ns.store(times.asked_ns + std::min(retry_after_ns, longest_ns_), kRelaxed);
  // The least that it can be, so that nobody is told to come too early.
  place.ahead_ns.store(times.decided_ns - times.heard_ns, kRelaxed);
  place.version.store(version + 2, std::memory_order_release);
}

void DenyCache::Outdate(const Fingerprint& key) {
  const Place& place = PlaceOf(key);
  if (place.lo.load(kRelaxed) == key.lo && place.until_ns.load(kRelaxed) != 0) Forget(key);
}

void DenyCache::Forget(const Fingerprint& key) {
  if (!on()) return;
  Place& place = PlaceOf(key);
  // Who writes here at this instant takes no longer than this.
  constexpr int kMostTries = 10'000;
  for (int tries = 0; tries < kMostTries; ++tries) {
    uint32_t version = place.version.load(kRelaxed);
    if ((version & 1) != 0) continue;
    if (!place.version.compare_exchange_weak(version, version + 1, std::memory_order_acquire)) {
      continue;
    }
    std::atomic_thread_fence(std::memory_order_release);
    place.until_ns.store(0, kRelaxed);
    place.version.store(version + 2, std::memory_order_release);
    return;
  }
}

}  // namespace tidegate::redis
