#include "tidegate/memory_store.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "stores/memory_cells.h"
#include "table/cell_calls_inl.h"
#include "table/log_table.h"
#include "table/quota_table.h"

namespace tidegate {
namespace {

constexpr double kFullest = 0.85;
// The load at which a table begins to be replaced. Its slices move evenly until it is full, which
// spreads the work out. The next table is sized for the keys at the beginning, and has a load of
// 0.68 in the end.
constexpr double kMovedFrom = 0.79;
constexpr double kFresh = 0.635;
// Up to this load a move waits for pages. It then ends at 0.886; from 0.89 on some keys find no
// place.
constexpr double kFullestWaiting = 0.87;
constexpr int64_t kTendEveryNs = 10'000'000;
constexpr int64_t kMaintainEvery = 64;  // new cells

// The slices of the first table, and of the smallest: with so many, a few hot keys seldom share a
// cache line, for which threads would wait. Only pages that hold keys are touched.
constexpr size_t kFewestSlices = 4;

size_t SlicesFor(double keys, double load) {
  return std::max<size_t>(
      1, static_cast<size_t>(std::ceil(keys / load / static_cast<double>(Table::kSliceCells))));
}

int64_t GrowAt(const Table& table) {
  return static_cast<int64_t>(kMovedFrom * static_cast<double>(table.cells()));
}

// The number of slices of `to` that hold the keys of the first `slices` of `from`.
size_t SlicesUpTo(size_t slices, const Table& from, const Table& to) {
  return (slices * to.slices() + from.slices() - 1) / from.slices();
}

// Whether a cell is worth a place in the next table.
bool IsKept(const Cell& cell, int64_t now_ns) {
  const uint64_t w0 = cell.w0.load(std::memory_order_relaxed);
  return w0 != 0 && (w0 & Table::kClaimBit) == 0 &&
         static_cast<int64_t>(w0) + Table::kKeepIdleNs > now_ns;
}

}  // namespace

absl::StatusOr<std::shared_ptr<MemoryStore>> MemoryStore::Create(const MemoryOptions& options) {
  if (options.capacity < 1 || options.capacity > MemoryOptions::kMaxCapacity) {
    return absl::InvalidArgumentError(absl::StrCat("the capacity of a memory store is ",
                                                   options.capacity, " keys; expected 1 to ",
                                                   MemoryOptions::kMaxCapacity));
  }
  const auto most = SlicesFor(static_cast<double>(options.capacity), kFullest);
  Pages first(std::min(most, kFewestSlices));
  if (!first.ok()) {
    return absl::ResourceExhaustedError("no memory for the first slices of a memory store");
  }
  return std::shared_ptr<MemoryStore>(new MemoryCells(options, std::move(first)));
}

MemoryCells::MemoryCells(const MemoryOptions& options, Pages first)
    : hasher_(Hasher::RandomSeed()),
      most_slices_(SlicesFor(static_cast<double>(options.capacity), kFullest)),
      current_(std::move(first)),
      grow_at_(GrowAt(current_.table())),
      logs_(std::make_unique<LogTable>(most_slices_ * Table::kSliceBytes)),
      quotas_(std::make_unique<QuotaTable>(most_slices_ * Table::kSliceBytes)) {}

MemoryCells::~MemoryCells() = default;

BoundLimit MemoryCells::Bind(const Limit& limit, std::string_view scope) const {
  return BindWith(hasher_, limit, scope);
}

TIDEGATE_INLINE Decision MemoryCells::HitLog(const Charge& charge, const Fingerprint& key,
                                             const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  const Gate::Pass pass(gate_);
  return logs_->With(key, moment.now_ns, [&](InstantRing& ring) {
    return moment.confirmed || !IsBehind(limit, ring, moment.now_ns)
               ? StepLog(limit, &ring, moment.now_ns, charge.cost)
               : PeekLog(limit, ring, moment.now_ns, charge.cost);
  });
}

TIDEGATE_INLINE Decision MemoryCells::HitOther(const Charge& charge, const Fingerprint& key,
                                               const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  // Nothing will be charged, so no cell has to be made.
  if (charge.cost > limit.capacity() && charge.cost > limit.most_cost() &&
      limit.algorithm() != Algorithm::kQuota && !(moment.confirmed && Peek(charge, moment).behind))
      [[unlikely]] {
    return Peek(charge, moment);
  }
  if (HasCell(limit.algorithm())) return CellCalls::HitState(*this, charge, key, moment);
  return IsLog(limit.algorithm()) ? HitLog(charge, key, moment) : HitQuota(charge, key, moment);
}

Decision MemoryCells::Hit(const Charge& charge, const Moment& moment) {
  return CellCalls::Hit(*this, charge, moment);
}

Decision MemoryCells::Peek(const Charge& charge, const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  if (HasCell(limit.algorithm())) return CellCalls::PeekState(*this, charge, key, moment);
  if (!IsLog(limit.algorithm())) return PeekAtQuota(charge, key, moment);
  Decision decision;
  const Gate::Pass pass(gate_);
  logs_->WithExisting(key, [&](InstantRing* ring) {
    const InstantRing none;
    decision = PeekLog(limit, ring != nullptr ? *ring : none, moment.now_ns, charge.cost);
  });
  return decision;
}

Decision MemoryCells::ChargeUsed(Op op, const Charge& charge, const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  // Nothing will be charged, so no cell has to be made.
  if (limit.capacity() == 0) return Store::ChargeUsed(op, charge, moment);
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  if (HasCell(limit.algorithm())) return CellCalls::ChargeState(*this, op, charge, key, moment);
  if (!IsLog(limit.algorithm())) return ChargeQuota(op, charge, key, moment);
  const Gate::Pass pass(gate_);
  return logs_->With(key, moment.now_ns, [&](InstantRing& ring) {
    if (moment.confirmed || !IsBehind(limit, ring, moment.now_ns)) {
      return StepLogCharge(limit, &ring, moment.now_ns, charge.cost, MostDebt(op, limit));
    }
    Decision decision = PeekLog(limit, ring, moment.now_ns, 1);
    decision.SetCharged(0);
    return decision;
  });
}

int64_t MemoryCells::Refund(const Charge& charge, const Moment& moment) {
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  if (HasCell(charge.limit->limit.algorithm())) {
    return CellCalls::RefundState(*this, charge, key, moment);
  }
  if (!IsLog(charge.limit->limit.algorithm())) return RefundToQuota(charge, key, moment);
  int64_t units = 0;
  const Gate::Pass pass(gate_);
  logs_->WithExisting(key, [&](InstantRing* ring) {
    if (ring != nullptr) {
      units = RefundLog(charge.limit->limit, ring, moment.now_ns, charge.cost);
    }
  });
  return units;
}

void MemoryCells::Reset(const Charge& charge, const Moment& moment) {
  if (charge.limit->limit.quota() != nullptr) {
    ResetQuota(charge, moment);
  } else {
    Forget(charge, moment);
  }
}

void MemoryCells::Forget(const Charge& charge, const Moment&) {
  const Fingerprint key = hasher_.Hash(charge.key, charge.limit->tag);
  if (IsLog(charge.limit->limit.algorithm())) {
    const Gate::Pass pass(gate_);
    logs_->Erase(key);
  } else if (charge.limit->limit.quota() != nullptr) {
    const Gate::Pass pass(gate_);
    quotas_->Erase(key);
  } else {
    CellCalls::ResetState(*this, key);
  }
}

void MemoryCells::Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  const Gate::Pass pass(gate_);
  logs_->WithExisting(hasher_.Hash(charge.key, charge.limit->tag), [&](InstantRing* ring) {
    if (ring != nullptr) {
      ReleaseLog(limit, ring, admitted_ns, moment.now_ns, charge.cost, moment.late);
    }
  });
}

int64_t MemoryCells::Extend(absl::Span<const Charge> plan, int64_t admitted_ns,
                            const Moment& moment) {
  for (const Charge& charge : plan) {
    bool held = false;
    {
      const Gate::Pass pass(gate_);
      logs_->WithExisting(hasher_.Hash(charge.key, charge.limit->tag), [&](InstantRing* ring) {
        held = ring != nullptr && ExtendLog(charge.limit->limit, ring, admitted_ns, moment.now_ns,
                                            charge.cost, moment.late);
      });
    }
    if (!held) Hit(charge, moment);
  }
  return moment.now_ns;
}

StoreStats MemoryCells::stats() const {
  StoreStats stats;
  stats.keys = used_.load(std::memory_order_relaxed);
  stats.evictions = evictions_.load(std::memory_order_relaxed);
  stats.evicted_live = evicted_live_.load(std::memory_order_relaxed);
  const Gate::Pass pass(gate_);
  logs_->Count(&stats);
  quotas_->Count(&stats);
  return stats;
}

void MemoryCells::Clear() {
  Pages empty(std::min(most_slices_, kFewestSlices));
  if (!empty.ok()) throw std::bad_alloc();
  gate_.Alone([&] {
    next_ = std::move(empty);
    larger_ = Pages();
    FinishMove();
    used_.store(0, std::memory_order_relaxed);
  });
  logs_->Clear();
  quotas_->Clear();
}

void MemoryCells::Entered(const Table::Entry& entry, int64_t now_ns) {
  bool due = now_ns >= tend_at_ns_.load(std::memory_order_relaxed);
  if (entry.keys != 0) {
    const int64_t before = used_.fetch_add(entry.keys, std::memory_order_relaxed);
    const int64_t used = before + entry.keys;
    due = due || (used / kMaintainEvery > before / kMaintainEvery &&
                  used > grow_at_.load(std::memory_order_relaxed));
  }
  if (entry.idle != 0) evictions_.fetch_add(entry.idle, std::memory_order_relaxed);
  if (entry.live != 0) evicted_live_.fetch_add(entry.live, std::memory_order_relaxed);
  if (due) Maintain(now_ns);
}

double MemoryCells::KeptShare(size_t slice, int64_t now_ns) const {
  const Cell* cells = current_.table().slice(slice);
  int64_t held = 0;
  int64_t kept = 0;
  for (size_t i = 0; i < Table::kSliceCells; ++i) {
    held += cells[i].lo.load(std::memory_order_relaxed) != 0;
    kept += IsKept(cells[i], now_ns);
  }
  return held == 0 ? 1.0 : static_cast<double>(kept) / static_cast<double>(held);
}

// One small step of a move that is under way, of the growth of a full table, or of the round that
// checks whether a table became too large.
void MemoryCells::Maintain(int64_t now_ns) {
  gate_.Alone([&] {
    const bool is_idle = now_ns >= tend_at_ns_.load(std::memory_order_relaxed);
    tend_at_ns_.store(now_ns + kTendEveryNs, std::memory_order_relaxed);
    if (next_.ok()) {
      next_used_ += NewInNext();
      if (is_idle || IsMoveDue()) MoveSlice(now_ns);
      return;
    }
    const size_t slices = current_.table().slices();
    const int64_t used = used_.load(std::memory_order_relaxed);
    if (used > grow_at_.load(std::memory_order_relaxed)) {
      BeginMove(now_ns);
      return;
    }
    if (slices <= kFewestSlices) return;
    const size_t slice = tended_.load(std::memory_order_relaxed);
    const double kept =
        KeptShare(slice, now_ns) * static_cast<double>(used) / static_cast<double>(slices);
    kept_seen_.fetch_add(static_cast<int64_t>(kept), std::memory_order_relaxed);
    tended_.store(slice + 1, std::memory_order_relaxed);
    if (slice + 1 < slices) return;
    const auto seen = static_cast<double>(kept_seen_.exchange(0));
    tended_.store(0, std::memory_order_relaxed);
    if (2 * WantedFor(seen) <= slices) BeginMove(now_ns);
  });
}

size_t MemoryCells::WantedFor(double keys) const {
  return std::min(most_slices_, std::max(kFewestSlices, SlicesFor(keys, kFresh)));
}

// Makes a table that the cells worth keeping fill to kFresh, unless it would have the same size: at
// the maximum idle cells are reclaimed one by one.
void MemoryCells::BeginMove(int64_t now_ns) {
  const size_t slices = current_.table().slices();
  const auto used = static_cast<double>(used_.load(std::memory_order_relaxed));
  const double kept = KeptShare(static_cast<size_t>(now_ns) % slices, now_ns);
  const size_t wanted = WantedFor(used * kept);
  Pages pages = wanted == slices && kept > 0.8 ? Pages() : Pages(wanted);
  if (!pages.ok()) {
    // Check again when a sixteenth more keys have come.
    grow_at_.store(static_cast<int64_t>(used * 17 / 16) + 1, std::memory_order_relaxed);
    return;
  }
  next_ = std::move(pages);
  moved_slices_ = 0;
  next_used_ = 0;
  // While a move is under way every kMaintainEvery-th new key may move a slice.
  grow_at_.store(0, std::memory_order_relaxed);
  MoveSlice(now_ns);
}

// An upper estimate of how many of the last kMaintainEvery new keys went to the next table.
int64_t MemoryCells::NewInNext() const {
  const auto all = static_cast<int64_t>(current_.table().slices());
  // Only some keys move into a smaller table; others may come back.
  if (next_.table().slices() < current_.table().slices()) return kMaintainEvery;
  return (kMaintainEvery * static_cast<int64_t>(moved_slices_) + all - 1) / all;
}

// Whether so many keys have come that the next slice must be moved.
bool MemoryCells::IsMoveDue() const {
  const Table& table = current_.table();
  if (larger_.ok() || next_.table().slices() <= table.slices()) return true;
  const double load = static_cast<double>(used_.load(std::memory_order_relaxed)) /
                      static_cast<double>(table.cells());
  const double due = (load - kMovedFrom) / (kFullest - kMovedFrom);
  return static_cast<double>(moved_slices_) < due * static_cast<double>(table.slices());
}

void MemoryCells::MoveSlice(int64_t now_ns) {
  if (larger_.ok()) {
    EnlargeSlice(now_ns);
    return;
  }
  const size_t from = moved_slices_;
  if (IsToWait(next_, SlicesUpTo(from + 1, current_.table(), next_.table()))) return;
  // Keys may wake up while a table that was mostly idle shrinks.
  const double wanted = KeptShare(from, now_ns) * static_cast<double>(Table::kSliceCells) +
                        static_cast<double>(next_used_);
  // Slices move in order, so the moved part fills an equal part of the next table.
  const double part =
      static_cast<double>(from + 1) / static_cast<double>(current_.table().slices());
  if (wanted > kFullest * part * static_cast<double>(next_.table().cells()) && BeginEnlarging()) {
    return;
  }
  MoveCells(current_.table().slice(from), next_.table(), now_ns);
  current_.ReleaseSlice(from);
  if (++moved_slices_ == current_.table().slices()) FinishMove();
}

bool MemoryCells::IsToWait(Pages& to, size_t slices) {
  return to.IsWorthWaiting(slices) &&
         static_cast<double>(used_.load(std::memory_order_relaxed)) <
             kFullestWaiting * static_cast<double>(current_.table().cells());
}

// Begins to move the moved part once more, into a table that is large enough. Returns false if no
// memory is left for one.
bool MemoryCells::BeginEnlarging() {
  const size_t wanted = WantedFor(static_cast<double>(used_.load(std::memory_order_relaxed)));
  if (wanted <= next_.table().slices()) return false;
  larger_ = Pages(wanted);
  if (!larger_.ok()) return false;
  enlarged_slices_ = 0;
  next_used_ = 0;
  return true;
}

void MemoryCells::EnlargeSlice(int64_t now_ns) {
  const size_t from = enlarged_slices_;
  // The next table is empty behind the moved part.
  if (from < SlicesUpTo(moved_slices_, current_.table(), next_.table())) {
    if (IsToWait(larger_, SlicesUpTo(from + 1, next_.table(), larger_.table()))) return;
    MoveCells(next_.table().slice(from), larger_.table(), now_ns);
    next_.ReleaseSlice(from);
    ++enlarged_slices_;
    return;
  }
  next_ = std::move(larger_);
  larger_ = Pages();
}

void MemoryCells::MoveCells(Cell* cells, Table& to, int64_t now_ns) {
  int64_t keys = 0;
  int64_t idle = 0;
  int64_t live = 0;
  for (size_t i = 0; i < Table::kSliceCells; ++i) {
    const Fingerprint key{cells[i].lo.load(std::memory_order_relaxed),
                          cells[i].hi.load(std::memory_order_relaxed)};
    if (key == Fingerprint{} || Table::IsNobody(key)) continue;
    --keys;
    if (!IsKept(cells[i], now_ns)) {
      ++idle;
      continue;
    }
    const Table::Entry entry = to.Put(
        key,
        {cells[i].w0.load(std::memory_order_relaxed), cells[i].w1.load(std::memory_order_relaxed)},
        now_ns);
    keys += entry.keys;
    idle += entry.idle;
    live += entry.live;
    next_used_ += entry.keys;
  }
  used_.fetch_add(keys, std::memory_order_relaxed);
  evictions_.fetch_add(idle, std::memory_order_relaxed);
  evicted_live_.fetch_add(live, std::memory_order_relaxed);
}

void MemoryCells::FinishMove() {
  current_ = std::move(next_);
  next_ = Pages();
  tended_.store(0, std::memory_order_relaxed);
  kept_seen_.store(0, std::memory_order_relaxed);
  grow_at_.store(GrowAt(current_.table()), std::memory_order_relaxed);
}

}  // namespace tidegate
