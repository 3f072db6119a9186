#include "table/quota_cells.h"

#include <sched.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "base/time_units.h"
#include "quotas/step.h"
#include "table/neighbours.h"
#include "table/table_inl.h"

namespace tidegate {
namespace {

constexpr size_t kWord = 8;
constexpr int kYieldAfter = 16;  // attempts

// The system provides the number, since a child of fork() would repeat the numbers of a generator.
uint64_t NewRecord() { return std::max(1U, std::random_device()()); }

// The mark as for a log: the number of charges that explains the usage. Top-ups have the highest.
Mark MarkAfter(Mark mark, const QuotaState& before, const QuotaState& after) {
  if (!after.top_ups.empty()) return MarkOfRank(255 - kRankMark);
  const bool same = before.period == after.period;
  const int64_t cost = std::max<int64_t>(1, after.used - (same ? before.used : 0));
  const int rank =
      HalfLog(static_cast<uint64_t>(after.used)) - HalfLog(static_cast<uint64_t>(cost));
  return std::max(same ? mark : Mark{0}, MarkOfRank(std::max(0, rank)));
}

uint64_t InstantOf(int64_t seconds) {
  return static_cast<uint64_t>(std::min(seconds, kMaxInstantNs / kSecondNs) * kSecondNs);
}

}  // namespace

Fingerprint QuotaCells::NameOf(uint64_t record, size_t part) const {
  const uint64_t block = Mix(record + part / kNeighbours);
  Fingerprint name{Mix(key_.lo ^ block), Mix(key_.hi + block)};
  // Only bits that do not choose the group differ.
  name.lo ^= static_cast<uint64_t>(part % kNeighbours) << 40;
  if (name.hi < Hasher::kLeastHigh) name.hi = Hasher::kLeastHigh;
  return name;
}

// The first byte is the length of the rest, in words.
std::string QuotaCells::BytesOf(uint64_t record) const {
  std::string bytes;
  size_t words = 1;
  for (size_t part = 0; part < words; ++part) {
    Table::Slot slot;
    if (!table_.Find(NameOf(record, part), &slot) || slot.state.w0 == 0) return "";
    for (size_t i = 0; i < kWord; ++i) bytes += static_cast<char>(slot.state.w1 >> (8 * i) & 0xff);
    if (part == 0) words = static_cast<unsigned char>(bytes[0]);
  }
  return bytes;
}

QuotaCells::View QuotaCells::Look() const {
  for (int tries = 0;; ++tries) {
    if (tries > kYieldAfter) sched_yield();
    Table::Slot head;
    if (!table_.Find(key_, &head) || head.state.w0 == 0) return {};
    View view{head.state, Table::MarkIn(head.cell->hi.load(std::memory_order_relaxed)), {}, {}};
    const std::string bytes = BytesOf(view.record());
    if (bytes.size() > 2) {
      // The second byte is the number of padding bytes in the last word.
      const size_t size = bytes.size() - 2 - static_cast<unsigned char>(bytes[1]) % kWord;
      if (auto state = UnpackQuota(std::string_view(bytes).substr(2, size)); state.has_value()) {
        view.written = view.state = *std::move(state);
        SpendQuota(terms_, &view.state, view.units());
        return view;
      }
    }
    // Another caller has replaced the record, or a part of it was evicted.
    Table::Slot again;
    if (table_.Find(key_, &again) && again.state == head.state) return view;
  }
}

void QuotaCells::WriteRecord(uint64_t record, std::string_view bytes, uint64_t until_ns) {
  for (size_t part = 0; part * kWord < bytes.size(); ++part) {
    uint64_t word = 0;
    for (size_t i = 0; i < kWord; ++i) {
      word |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[part * kWord + i])) << (8 * i);
    }
    Table::Entry entry;
    table_.Update(
        NameOf(record, part), now_ns_, {.is_one = true}, entry, [this] { return mark_; },
        [until_ns, word](uint64_t, uint64_t, uint64_t& next_w0, uint64_t& next_w1) {
          next_w0 = until_ns;
          next_w1 = word;
          return true;
        });
    if (entry.changed()) entered_(entry);
  }
}

void QuotaCells::FreeRecord(uint64_t record) {
  size_t words = 1;
  for (size_t part = 0; record != 0 && part < words; ++part) {
    const Fingerprint name = NameOf(record, part);
    Table::Slot slot;
    if (!table_.Find(name, &slot) || slot.state.w0 == 0) continue;
    if (part == 0) words = slot.state.w1 & 0xff;
    Table::Replace(slot, {0, name.lo});
  }
}

bool QuotaCells::ReplaceHead(const View& view, const CellState& next) {
  bool replaced = false;
  Table::Entry entry;
  table_.Update(
      key_, now_ns_, {.is_one = false}, entry, [this] { return mark_; },
      [&](uint64_t w0, uint64_t w1, uint64_t& next_w0, uint64_t& next_w1) {
        replaced = (w0 == 0 ? CellState() : CellState{w0, w1}) == view.head;
        next_w0 = next.w0;
        next_w1 = next.w1;
        return replaced;
      });
  if (entry.changed()) entered_(entry);
  return replaced;
}

std::optional<bool> QuotaCells::CountUnits(const View& view, const QuotaState& state) {
  const int64_t units = view.units() + state.used - view.state.used;
  if (view.head.w0 == 0 || units < 0 || units >> kUnitBits != 0) return std::nullopt;
  QuotaState counted = view.written;
  SpendQuota(terms_, &counted, units);
  if (counted != state) return std::nullopt;
  return ReplaceHead(view,
                     {view.head.w0, view.record() << kUnitBits | static_cast<uint64_t>(units)});
}

QuotaState QuotaCells::Read() const { return Look().state; }

void QuotaCells::Update(absl::FunctionRef<bool(QuotaState&)> work) {
  for (int tries = 0;; ++tries) {
    if (tries > kYieldAfter) sched_yield();
    const View view = Look();
    QuotaState state = view.state;
    if (!work(state)) return;
    mark_ = MarkAfter(view.mark, view.state, state);
    if (const std::optional<bool> counted = CountUnits(view, state); counted.has_value()) {
      if (*counted) return;
      continue;
    }
    const std::string packed = PackQuota(state);
    const size_t words = (2 + packed.size() + kWord - 1) / kWord;
    std::string bytes{static_cast<char>(words),
                      static_cast<char>(words * kWord - 2 - packed.size())};
    bytes += packed;
    bytes.resize(words * kWord);
    const uint64_t record = NewRecord();
    const uint64_t until_ns = InstantOf(ForgottenAt(terms_, state));
    WriteRecord(record, bytes, until_ns);
    if (ReplaceHead(view, {until_ns, record << kUnitBits})) {
      FreeRecord(view.record());
      return;
    }
    FreeRecord(record);
  }
}

void QuotaCells::Forget() {
  Table::Slot head;
  while (table_.Find(key_, &head) && head.state.w0 != 0) {
    if (!Table::Replace(head, {0, key_.lo})) continue;
    FreeRecord(head.state.w1 >> kUnitBits);
    return;
  }
}

}  // namespace tidegate
