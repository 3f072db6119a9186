#include "redis/health/deny_cache.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tidegate::redis {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The words of a place as one writer wrote them.
struct PlaceWords {
  uint64_t version;
  Fingerprint key;
  CellState state;
  int64_t from_ns;
  int64_t until_ns;
  int64_t ahead_ns;

  uint64_t Check() const { return XXH3_64bits(this, sizeof *this); }
};
static_assert(sizeof(PlaceWords) == 64);  // no gaps

}  // namespace

std::optional<DenyCache::Refusal> DenyCache::Find(const Fingerprint& key, int64_t now_ns) const {
  const DenyPlace& place = PlaceOf(key);
  if (place.lo.load(kRelaxed) != key.lo) return std::nullopt;
  PlaceWords words;
  words.version = place.version.load(std::memory_order_acquire);
  words.key = key;
  words.state = {place.w0.load(kRelaxed), place.w1.load(kRelaxed)};
  words.from_ns = place.from_ns.load(kRelaxed);
  words.until_ns = place.until_ns.load(kRelaxed);
  words.ahead_ns = place.ahead_ns.load(kRelaxed);
  if (place.check.load(kRelaxed) != words.Check()) return std::nullopt;
  // The writer may have a longer `longest_ns`.
  if (now_ns < words.from_ns || now_ns >= words.until_ns || now_ns - words.from_ns >= longest_ns_) {
    return std::nullopt;
  }
  return Refusal{words.state, now_ns + words.ahead_ns};
}

uint64_t DenyCache::Version(const Fingerprint& key) const {
  return PlaceOf(key).version.load(std::memory_order_acquire);
}

void DenyCache::Put(const Fingerprint& key, uint64_t version, const CellState& state,
                    int64_t retry_after_ns, const Times& times) {
  DenyPlace& place = PlaceOf(key);
  if (!place.version.compare_exchange_strong(version, version + 1, std::memory_order_acq_rel)) {
    return;
  }
  const PlaceWords words{
      .version = version + 1,
      .key = key,
      .state = state,
      .from_ns = times.asked_ns,
      .until_ns = times.asked_ns + std::min(retry_after_ns, longest_ns_),
      // The smallest possible offset, so that no retry_after is too early.
      .ahead_ns = times.decided_ns - times.heard_ns,
  };
  place.lo.store(words.key.lo, kRelaxed);
  place.w0.store(words.state.w0, kRelaxed);
  place.w1.store(words.state.w1, kRelaxed);
  place.from_ns.store(words.from_ns, kRelaxed);
  place.until_ns.store(words.until_ns, kRelaxed);
  place.ahead_ns.store(words.ahead_ns, kRelaxed);
  place.check.store(words.Check(), kRelaxed);
}

void DenyCache::Outdate(const Fingerprint& key) {
  if (PlaceOf(key).lo.load(kRelaxed) == key.lo) Forget(key);
}

void DenyCache::Forget(const Fingerprint& key) {
  DenyPlace& place = PlaceOf(key);
  place.version.fetch_add(1, std::memory_order_acq_rel);
  // The next Outdate() then does nothing. This may invalidate an entry that was just written.
  place.lo.store(0, kRelaxed);
}

void DenyCache::ForgetAll() {
  for (DenyPlace& place : board_.denied) {
    place.version.fetch_add(1, std::memory_order_acq_rel);
    place.lo.store(0, kRelaxed);
  }
}

}  // namespace tidegate::redis
