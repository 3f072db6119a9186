#include "tidegate/shm_store.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/platform.h"
#include "base/text.h"
#include "stores/shm_cells.h"
#include "stores/shm_file.h"
#include "table/cell_calls_inl.h"
#include "table/log_cells.h"
#include "tidegate/clock.h"

namespace tidegate {
namespace {

constexpr size_t kLongestName = 100;

bool IsNameByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

}  // namespace

absl::StatusOr<std::string> ShmStore::PathOf(std::string_view name) {
  if (!name.empty() && name.front() == '/' && name.back() != '/' &&
      name.find('\0') == std::string_view::npos) {
    return std::string(name);
  }
  if (name.empty() || name.size() > kLongestName ||
      !std::all_of(name.begin(), name.end(), IsNameByte)) {
    return absl::InvalidArgumentError(absl::StrCat("the name of a shared memory is ", Quote(name),
                                                   "; expected an absolute path, or 1 to ",
                                                   kLongestName, " of A-Z a-z 0-9 . _ -"));
  }
#if defined(TIDEGATE_LINUX)
  return absl::StrCat("/dev/shm/tidegate-", geteuid(), "-", std::string(name));
#else
  return absl::InvalidArgumentError(
      absl::StrCat("the name of a shared memory is ", Quote(name),
                   ", and this system has no /dev/shm; expected an absolute path"));
#endif
}

absl::StatusOr<std::shared_ptr<ShmStore>> ShmStore::Open(std::string_view name,
                                                         const ShmOptions& options) {
  const int64_t capacity = options.capacity.value_or(ShmOptions::kDefaultCapacity);
  if (capacity < 1 || capacity > ShmOptions::kMaxCapacity) {
    return absl::InvalidArgumentError(absl::StrCat("the capacity of a shared memory is ", capacity,
                                                   " keys; expected 1 to ",
                                                   ShmOptions::kMaxCapacity));
  }
  absl::StatusOr<std::string> path = PathOf(name);
  if (!path.ok()) return path.status();
  absl::StatusOr<void*> memory = MapShmFile(*path, options);
  if (!memory.ok()) return memory.status();
  return std::shared_ptr<ShmStore>(new ShmCells(*std::move(path), *memory));
}

absl::Status ShmStore::Remove(std::string_view name) {
  const absl::StatusOr<std::string> path = PathOf(name);
  // A damaged file is known by its name, in /dev/shm; elsewhere it may be anything.
  return path.ok() ? RemoveShmFile(*path, name.front() != '/') : path.status();
}

ShmCells::ShmCells(std::string path, void* memory)
    : path_(std::move(path)),
      header_(static_cast<ShmHeader*>(memory)),
      hasher_(header_->seed),
      capacity_(header_->capacity),
      bytes_(header_->bytes),
      clock_offset_ns_(header_->epoch_offset_ns - MonotonicOffsetNs().value_or(0)),
      follower_(clock_offset_ns_, &header_->clock_correction_ns),
      table_(static_cast<char*>(memory) + ShmHeader::kSlicesAt, header_->slices,
             &header_->newest_ns) {
  // The wall clock may have been set since the file was made.
  follower_.Follow(SystemClock::WallOffsetNs());
  SystemClock::Get().Add(&follower_);
}

ShmCells::~ShmCells() {
  SystemClock::Get().Remove(&follower_);
  munmap(header_, bytes_);
}

ClockShift ShmCells::clock_shift() const {
  return {clock_offset_ns_ - SystemClock::Get().epoch_offset_ns(), &header_->clock_correction_ns};
}

int64_t ShmCells::NowNs() const { return SystemClock::Get().Now() + clock_shift().ns(); }

void* ShmCells::board() const { return reinterpret_cast<char*>(header_) + ShmHeader::kBytes; }

Hasher ShmCells::HasherFor(std::string_view use) const {
  Hasher::Seed seed = header_->seed;
  const Fingerprint print = hasher_.Hash(use);
  for (size_t i = 0; i < sizeof print; ++i) {
    seed[i] ^= static_cast<unsigned char>((i < 8 ? print.lo : print.hi) >> (i % 8 * 8));
  }
  return Hasher(seed);
}

absl::Status ShmCells::Accepts(const Limit& limit) const {
  if (!IsLog(limit.algorithm())) return absl::OkStatus();
  // With more than a part of the table, the units of one key would evict each other.
  const int64_t most = std::min(kMostLogUnits, static_cast<int64_t>(table_.cells()) / 4);
  if (limit.count() <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the limit ", limit.ToString(), " of algorithm ",
                   std::string(AlgorithmName(limit.algorithm())), " remembers ", limit.count(),
                   " admissions a key; expected in this shared memory ", most,
                   ", or an algorithm that counts, such as sliding-window"));
}

BoundLimit ShmCells::Bind(const Limit& limit, std::string_view scope) const {
  return BindWith(hasher_, limit, scope);
}

Decision ShmCells::Hit(const Charge& charge, const Moment& moment) {
  return CellCalls::Hit(*this, charge, moment);
}

Decision ShmCells::HitOther(const Charge& charge, const Fingerprint& key, const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  if (charge.cost > limit.capacity() && charge.cost > limit.most_cost() &&
      limit.algorithm() != Algorithm::kQuota) {
    // Nothing will be charged, so no cell has to be made.
    const Decision decision = Peek(charge, moment);
    if (!decision.behind || !moment.confirmed) return decision;
  }
  if (HasCell(limit.algorithm())) return CellCalls::HitState(*this, charge, key, moment);
  if (!IsLog(limit.algorithm())) return HitQuota(charge, moment);
  const auto entered = [&](const Table::Entry& entry) { Entered(entry, moment.now_ns); };
  return LogCells(table_, limit, key, entered).Hit(moment, charge.cost);
}

Decision ShmCells::Peek(const Charge& charge, const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  if (HasCell(limit.algorithm())) return CellCalls::PeekState(*this, charge, key, moment);
  if (!IsLog(limit.algorithm())) return PeekAtQuota(charge, moment);
  return LogCells(table_, limit, key, [](const Table::Entry&) {}).Peek(moment, charge.cost);
}

Decision ShmCells::ChargeUsed(Op op, const Charge& charge, const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  // A limit of 0 needs no cell.
  if (limit.capacity() == 0) return Store::ChargeUsed(op, charge, moment);
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  if (HasCell(limit.algorithm())) return CellCalls::ChargeState(*this, op, charge, key, moment);
  if (!IsLog(limit.algorithm())) return ChargeQuota(op, charge, moment);
  const auto entered = [&](const Table::Entry& entry) { Entered(entry, moment.now_ns); };
  return LogCells(table_, limit, key, entered).Charge(moment, charge.cost, MostDebt(op, limit));
}

int64_t ShmCells::Refund(const Charge& charge, const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  if (HasCell(limit.algorithm())) return CellCalls::RefundState(*this, charge, key, moment);
  if (!IsLog(limit.algorithm())) return RefundToQuota(charge, moment);
  return LogCells(table_, limit, key, [](const Table::Entry&) {}).Refund(moment, charge.cost);
}

void ShmCells::Reset(const Charge& charge, const Moment& moment) {
  if (charge.limit->limit.quota() != nullptr) {
    ResetQuota(charge, moment);
  } else {
    Forget(charge, moment);
  }
}

void ShmCells::Forget(const Charge& charge, const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  if (HasCell(limit.algorithm())) {
    CellCalls::ResetState(*this, key);
  } else if (!IsLog(limit.algorithm())) {
    ForgetQuota(charge, moment);
  } else {
    LogCells(table_, limit, key, [](const Table::Entry&) {}).Reset();
  }
}

void ShmCells::Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) {
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  LogCells(table_, charge.limit->limit, key, [](const Table::Entry&) {
  }).Release(admitted_ns, moment, charge.cost);
}

int64_t ShmCells::Extend(absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment) {
  for (const Charge& charge : plan) {
    const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
    const bool held = LogCells(table_, charge.limit->limit, key, [](const Table::Entry&) {
                      }).Extend(admitted_ns, moment, charge.cost);
    if (!held) Hit(charge, moment);
  }
  return moment.now_ns;
}

void ShmCells::Entered(const Table::Entry& entry, int64_t) {
  header_->used.value.fetch_add(entry.keys, std::memory_order_relaxed);
  header_->evictions.value.fetch_add(entry.idle, std::memory_order_relaxed);
  header_->evicted_live.value.fetch_add(entry.live, std::memory_order_relaxed);
}

StoreStats ShmCells::stats() const {
  StoreStats stats;
  stats.keys = header_->used.value.load(std::memory_order_relaxed);
  stats.evictions = header_->evictions.value.load(std::memory_order_relaxed);
  stats.evicted_live = header_->evicted_live.value.load(std::memory_order_relaxed);
  return stats;
}

ShmStore::Census ShmCells::Count(int64_t now_ns, size_t busiest) const {
  Census census;
  const auto later = [](const Busy& a, const Busy& b) { return a.new_in_ns > b.new_in_ns; };
  const Cell* const cells = table_.slice(0);
  for (size_t i = 0; i < table_.cells(); ++i) {
    const uint64_t w0 = cells[i].w0.load(std::memory_order_acquire);
    const Fingerprint key{cells[i].lo.load(std::memory_order_acquire),
                          cells[i].hi.load(std::memory_order_acquire)};
    if (key == Fingerprint{} && w0 == 0) continue;
    if ((w0 & Table::kClaimBit) != 0) {
      ++census.claimed;
    } else if (static_cast<int64_t>(w0) <= now_ns) {
      ++census.idle;
    } else {
      ++census.live;
      if (busiest == 0) continue;
      // A heap of the busiest keys so far, the least busy on top.
      // Without the bits that may change while the key stays.
      census.busiest.push_back(
          {{key.lo, key.hi & ~Table::kOwnBits}, static_cast<int64_t>(w0) - now_ns});
      std::push_heap(census.busiest.begin(), census.busiest.end(), later);
      if (census.busiest.size() > busiest) {
        std::pop_heap(census.busiest.begin(), census.busiest.end(), later);
        census.busiest.pop_back();
      }
    }
  }
  std::sort_heap(census.busiest.begin(), census.busiest.end(), later);
  return census;
}

}  // namespace tidegate
