// Calls on the cells of a table, written once for every store with a table. A store S befriends
// CellCalls and has
//
//   hasher_
//   Enter()                 returns an object to hold while its table is in use
//   EnterQuickly(number)    the same, but false if it would have to wait
//   TableOf(key)            the table that holds `key` meanwhile
//   IsDue(entry, now_ns)    whether Entered(entry, now_ns) must be called afterwards
//   IsTendingDue(now_ns)    the same for a call that entered nothing
//   HitOther(charge, key, moment)   decides calls other than plain calls on a bucket
#ifndef TIDEGATE_SRC_TABLE_CELL_CALLS_INL_H_
#define TIDEGATE_SRC_TABLE_CELL_CALLS_INL_H_

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <string>

#include "absl/types/span.h"
#include "base/fingerprint_inl.h"
#include "table/cell_store.h"
#include "table/table_inl.h"
#include "tidegate/store.h"

namespace tidegate {

struct CellCalls {
 private:
  // As if a thousand charges had touched the cell (mark.h).
  static constexpr int kRecordRank = 20;

 public:
  // The fast path, which nearly all calls take: one straight line without a call, so that all
  // values stay in registers. In any unusual case it gives up without a charge, and Hit() decides.
  // For plain charges, and threads that have a number to themselves. `clock` is read while the
  // key's cells are fetched into the cache, so it must be as short as a pass.
  template <typename S, typename ClockFunction>
  TIDEGATE_INLINE static bool HitQuickly(S& store, const Fingerprint& key, const Limit& limit,
                                         int64_t cost, ClockFunction clock, int own_number,
                                         BucketOutcome& out) {
    const auto pass = store.EnterQuickly(own_number);
    if (!pass) [[unlikely]]
      return false;
    const Table& table = store.TableOf(key);
    table.PrefetchIfFar(key);
    const int64_t now_ns = clock();
    for (;;) {
      uint64_t w0 = 0;
      uint64_t w1 = 0;
      Cell* const cell = table.FindNear(key, w0, w1);
      if (cell == nullptr) [[unlikely]]
        return false;
      if (!StepBucket(limit, w0, w1, now_ns, cost, out) || store.IsTendingDue(now_ns)) [[unlikely]]
        return false;
      if (!out.allowed || Table::ReplaceWords(cell, w0, w1, out.next_w0, out.next_w1,
                                              limit.denominator() == 1)) [[likely]] {
        if (cost != 1 && out.allowed) Table::RemarkIfLarger(cell, key, MarkOf(limit, cost));
        return true;
      }
    }
  }

  // The same for what a reservation without a record has charged, which is made `actual` units.
  template <typename S>
  TIDEGATE_INLINE static bool SettleQuickly(S& store, const Fingerprint& key, const Limit& limit,
                                            const Reservation::Part& part, int64_t actual,
                                            int64_t now_ns, int own_number, BucketOutcome& out) {
    const auto pass = store.EnterQuickly(own_number);
    if (!pass) [[unlikely]]
      return false;
    const Table& table = store.TableOf(key);
    // What adds nothing leaves the table to others.
    const int64_t more = actual - part.units;
    if (more > 0 && store.IsTendingDue(now_ns)) [[unlikely]]
      return false;
    for (;;) {
      uint64_t w0 = 0;
      uint64_t w1 = 0;
      Cell* const cell = table.FindNear(key, w0, w1);
      if (cell == nullptr) [[unlikely]]
        return false;
      // A step that cannot pass reports what stands.
      if (!StepBucket(limit, w0, w1, now_ns, more > 0 ? more : limit.beyond(), out)) [[unlikely]]
        return false;
      if (more == 0) return true;
      if (more > 0 ? !out.allowed
                   : !GiveBackQuickly(limit, w0, w1, now_ns, -more, part.until_ns, out))
          [[unlikely]] {
        return false;
      }
      if (Table::ReplaceWords(cell, w0, w1, out.next_w0, out.next_w1, limit.denominator() == 1))
          [[likely]] {
        if (more > 0) Table::RemarkIfLarger(cell, key, MarkOf(limit, more));
        return true;
      }
    }
  }

  template <typename S>
  static Decision Hit(S& store, const Charge& charge, const Moment& moment) {
    const Fingerprint key = InlineHash::Of(store.hasher_, charge.key, charge.limit->tag);
    const Limit& limit = charge.limit->limit;
    if (!IsPlain(limit, charge.cost)) return store.HitOther(charge, key, moment);
    BucketOutcome outcome;
    Table::Entry entry;
    {
      [[maybe_unused]] const auto pass = store.Enter();
      UpdateBucket(store.TableOf(key), charge, key, moment, entry, outcome);
    }
    if (store.IsDue(entry, moment.now_ns)) store.Entered(entry, moment.now_ns);
    return MakeDecision(limit, outcome);
  }

  // Changes the cell of `key`, which is entered with the mark that `mark` returns if it has none,
  // to what `step` makes of it if that returns true.
  template <bool is_one, typename S, typename MarkFunction, typename StepFunction>
  TIDEGATE_INLINE static void Update(S& store, const Fingerprint& key, int64_t now_ns,
                                     MarkFunction mark, StepFunction step) {
    Table::Entry entry;
    {
      [[maybe_unused]] const auto pass = store.Enter();
      store.TableOf(key).Update(
          key, now_ns, {.one_word = false, .is_one = is_one}, entry, mark,
          [&](uint64_t w0, uint64_t w1, uint64_t& next_w0, uint64_t& next_w1) {
            CellState next;
            const bool changes = step(CellState{w0, w1}, next);
            next_w0 = next.w0;
            next_w1 = next.w1;
            return changes;
          });
    }
    if (store.IsDue(entry, now_ns)) store.Entered(entry, now_ns);
  }

  // Buckets and windows, of any cost.
  template <typename S>
  static Decision HitState(S& store, const Charge& charge, const Fingerprint& key,
                           const Moment& moment) {
    return charge.cost == 1 ? HitStateOf</*is_one=*/true>(store, charge, key, moment)
                            : HitStateOfSeveral(store, charge, key, moment);
  }

  template <typename S>
  __attribute__((noinline)) static Decision HitStateOfSeveral(S& store, const Charge& charge,
                                                              const Fingerprint& key,
                                                              const Moment& moment) {
    return HitStateOf</*is_one=*/false>(store, charge, key, moment);
  }

  template <bool is_one, typename S>
  static Decision HitStateOf(S& store, const Charge& charge, const Fingerprint& key,
                             const Moment& moment) {
    const Limit& limit = charge.limit->limit;
    Decision decision;
    Update<is_one>(
        store, key, moment.now_ns, [&] { return MarkOf(limit, charge.cost); },
        [&](const CellState& state, CellState& next) {
          // Constructed in place: copying a struct that was just written stalls.
          new (&decision) Decision(Step(limit, state, moment.now_ns, charge.cost, &next));
          return decision.behind ? moment.confirmed : decision.allowed;
        });
    return decision;
  }

  template <typename S>
  static Decision ChargeState(S& store, Op op, const Charge& charge, const Fingerprint& key,
                              const Moment& moment) {
    const Limit& limit = charge.limit->limit;
    Decision decision;
    Update</*is_one=*/false>(
        store, key, moment.now_ns,
        [&] { return MarkOf(limit, std::max<int64_t>(decision.charged, 1)); },
        [&](const CellState& state, CellState& next) {
          decision =
              StepCharge(limit, state, moment.now_ns, charge.cost, MostDebt(op, limit), &next);
          if (!decision.behind || moment.confirmed) return decision.behind || decision.charged > 0;
          decision.charged = 0;
          return false;
        });
    return decision;
  }

  template <typename S>
  static Decision PeekState(S& store, const Charge& charge, const Fingerprint& key,
                            const Moment& moment) {
    Table::Slot slot;
    {
      [[maybe_unused]] const auto pass = store.Enter();
      store.TableOf(key).Find(key, &slot);
    }
    return Peek(charge.limit->limit, slot.state, moment.now_ns, charge.cost);
  }

  template <typename S>
  static int64_t RefundState(S& store, const Charge& charge, const Fingerprint& key,
                             const Moment& moment) {
    const Limit& limit = charge.limit->limit;
    [[maybe_unused]] const auto pass = store.Enter();
    const Table& table = store.TableOf(key);
    Table::Slot slot;
    while (table.Find(key, &slot)) {
      const bool behind = Peek(limit, slot.state, moment.now_ns, 1).behind;
      if (behind && !moment.confirmed) return 0;
      const CellState next = Refund(limit, slot.state, moment.now_ns, charge.cost);
      if (next == slot.state) return 0;
      if (Table::Replace(slot, next)) {
        return std::min(charge.cost, Refundable(limit, slot.state, moment.now_ns));
      }
    }
    return 0;
  }

  template <typename S>
  static void RefundStateUntil(S& store, const Charge& charge, int64_t until_ns,
                               const Moment& moment) {
    const Limit& limit = charge.limit->limit;
    const Fingerprint key = store.hasher_.Hash(charge.key, charge.limit->tag);
    [[maybe_unused]] const auto pass = store.Enter();
    const Table& table = store.TableOf(key);
    Table::Slot slot;
    while (table.Find(key, &slot)) {
      const CellState next = RefundUntil(limit, slot.state, moment.now_ns, charge.cost, until_ns);
      if (next == slot.state || Table::Replace(slot, next)) return;
    }
  }

  // The record of a reservation is a cell of its own: w0 is the end of its life, w1 its units.
  static constexpr uint64_t kSettledBit = uint64_t{1} << 63;

  template <typename S>
  static Fingerprint RecordKey(const S& store, const Charge& charge,
                               const Reservation& reservation) {
    std::string name(sizeof reservation.id, '\0');
    std::memcpy(name.data(), reservation.id.data(), sizeof reservation.id);
    name += charge.key;
    return store.hasher_.Hash(name, charge.limit->tag);
  }

  template <typename S>
  static void OpenRecord(S& store, const Charge& charge, const Reservation& reservation,
                         const Moment& moment) {
    const Fingerprint key = RecordKey(store, charge, reservation);
    // Keys that many charges have touched are given up before it.
    Update</*is_one=*/true>(
        store, key, moment.now_ns, [] { return MarkOfRank(kRecordRank); },
        [&](const CellState& state, CellState& next) {
          if (reservation.makes_records && state.w0 > static_cast<uint64_t>(moment.now_ns))
            return false;
          next = {static_cast<uint64_t>(moment.now_ns + reservation.ttl_ns),
                  static_cast<uint64_t>(charge.cost)};
          return true;
        });
  }

  template <typename S, typename Record, typename Change>
  static std::optional<Record> ChangeRecord(S& store, const Charge& charge,
                                            const Reservation& reservation, const Moment& moment,
                                            Change change) {
    const Fingerprint key = RecordKey(store, charge, reservation);
    [[maybe_unused]] const auto pass = store.Enter();
    const Table& table = store.TableOf(key);
    Table::Slot slot;
    while (table.Find(key, &slot)) {
      const auto ends_ns = static_cast<int64_t>(slot.state.w0);
      if (slot.state.w0 == 0 || ends_ns <= moment.now_ns) return std::nullopt;
      const Record before{(slot.state.w1 & kSettledBit) != 0,
                          static_cast<int64_t>(slot.state.w1 & ~kSettledBit)};
      Record after = before;
      if (!change(&after)) return before;
      CellState next{slot.state.w0, static_cast<uint64_t>(after.units)};
      if (after.is_settled) {
        if (!reservation.makes_records) {
          next.w0 =
              static_cast<uint64_t>(std::min(ends_ns, moment.now_ns + Reservation::kSettledNs));
        }
        next.w1 |= kSettledBit;
      }
      if (Table::Replace(slot, next)) return before;
    }
    return std::nullopt;
  }

  template <typename S>
  static void ResetState(S& store, const Fingerprint& key) {
    [[maybe_unused]] const auto pass = store.Enter();
    const Table& table = store.TableOf(key);
    Table::Slot slot;
    // w1 of a fresh state identifies its key, so that a call which read this state cannot take
    // another key's fresh state for it.
    while (table.Find(key, &slot) && !Table::Replace(slot, {0, key.lo})) {
    }
  }

  template <typename S>
  static void HitMany(S& store, absl::Span<const Charge> charges, const Moment& moment,
                      Verdict* verdicts) {
    constexpr size_t kMost = 256;
    Fingerprint keys[kMost];
    for (size_t start = 0; start < charges.size(); start += kMost) {
      const absl::Span<const Charge> part = charges.subspan(start, kMost);
      const BoundLimit& limit = *part[0].limit;
      const absl::Span<const Fingerprint> hashed = absl::MakeConstSpan(keys, part.size());
      switch (Hash(store, part, keys)) {
        case Batch::kUnits:
          HitBuckets(
              store, limit, hashed, [](size_t) { return int64_t{1}; }, moment, verdicts + start);
          break;
        case Batch::kPlain:
          HitBuckets(
              store, limit, hashed, [&](size_t i) { return part[i].cost; }, moment,
              verdicts + start);
          break;
        case Batch::kMixed:
          store.Store::HitMany(part, moment, verdicts + start);
      }
    }
  }

  template <typename S>
  TIDEGATE_INLINE static Fingerprint FingerprintOf(const S& store, std::string_view key,
                                                   const BoundLimit& limit) {
    return InlineHash::Of(store.hasher_, key, limit.tag);
  }

  // Keys of one bucket limit, none with a cost beyond its burst. If the table is larger than the
  // caches, the cells of the next keys are prefetched while one key is decided.
  template <typename S, typename CostOf>
  static void HitBuckets(S& store, const BoundLimit& limit, absl::Span<const Fingerprint> keys,
                         CostOf cost_of, const Moment& moment, Verdict* verdicts) {
    constexpr size_t kBatch = 64;  // in one pass
    constexpr size_t kFetch = 24;  // how many keys ahead cells are prefetched
    constexpr size_t kLocate = 8;
    const bool one_word = limit.limit.denominator() == 1;
    Cell* located[kBatch];
    for (size_t start = 0; start < keys.size(); start += kBatch) {
      const absl::Span<const Fingerprint> part = keys.subspan(start, kBatch);
      Table::Entry entry;
      // `update(step)` does for key `i` of this part what Table::Update() does.
      const auto decide = [&](size_t i, auto update) {
        BucketOutcome outcome;
        const int64_t cost = cost_of(start + i);
        const Table::Manner manner{one_word, cost == 1};
        const auto mark = [&] { return MarkOf(limit.limit, cost); };
        bool is_ahead = false;
        update(manner, mark, [&](uint64_t w0, uint64_t w1, uint64_t& next_w0, uint64_t& next_w1) {
          is_ahead = !StepBucket(limit.limit, w0, w1, moment.now_ns, cost, outcome);
          next_w0 = outcome.next_w0;
          next_w1 = outcome.next_w1;
          return !is_ahead && outcome.allowed;
        });
        verdicts[start + i] =
            is_ahead ? HitAhead(store.TableOf(part[i]), {{}, &limit, cost}, part[i], moment, entry)
            : outcome.allowed ? Verdict::kAllowed
                              : Verdict::kRefused;
      };
      {
        [[maybe_unused]] const auto pass = store.Enter();
        if (!store.TableOf(part[0]).IsFar()) {
          for (size_t i = 0; i < part.size(); ++i) {
            decide(i, [&](Table::Manner manner, auto mark, auto step) {
              store.TableOf(part[i]).Update(part[i], moment.now_ns, manner, entry, mark, step);
            });
          }
        } else {
          if (start == 0) {
            for (const Fingerprint& key : keys.subspan(0, kFetch)) store.TableOf(key).Prefetch(key);
          }
          for (size_t next = 0; next < part.size() + kLocate; ++next) {
            if (next < part.size()) {
              if (start + next + kFetch < keys.size()) {
                const Fingerprint& ahead = keys[start + next + kFetch];
                store.TableOf(ahead).Prefetch(ahead);
              }
              located[next] = store.TableOf(part[next]).Locate(part[next]);
            }
            if (next < kLocate) continue;
            const size_t i = next - kLocate;
            decide(i, [&](Table::Manner manner, auto mark, auto step) {
              store.TableOf(part[i]).UpdateAt(located[i], part[i], moment.now_ns, manner, entry,
                                              mark, step);
            });
          }
        }
      }
      if (entry.changed()) store.Entered(entry, moment.now_ns);
    }
  }

  // What charges have in common: plain ones of one limit, and one unit each.
  enum class Batch { kMixed, kPlain, kUnits };
  // Writes the fingerprints of `charges`. Separate, so that the loop has the registers to itself.
  template <typename S>
  __attribute__((noinline)) static Batch Hash(const S& store, absl::Span<const Charge> charges,
                                              Fingerprint* keys) {
    bool plain = true;
    bool units = true;
    for (size_t i = 0; i < charges.size(); ++i) {
      const Charge& charge = charges[i];
      keys[i] = FingerprintOf(store, charge.key, *charge.limit);
      plain =
          plain && charge.limit == charges[0].limit && IsPlain(charge.limit->limit, charge.cost);
      units = units && charge.cost == 1;
    }
    return !plain ? Batch::kMixed : units ? Batch::kUnits : Batch::kPlain;
  }

  // Whether UpdateBucket() can make the call.
  static bool IsPlain(const Limit& limit, int64_t cost) {
    return IsBucket(limit.algorithm()) && cost <= limit.most_plain_cost();
  }
  // The same for a limit with a plain cost, if it is a bucket.
  static bool IsShort(const Limit& limit, int64_t cost) {
    return IsBucket(limit.algorithm()) && IsWithinBurst(limit, cost);
  }

 private:
  // RefundUntil() on what stands.
  TIDEGATE_INLINE static bool GiveBackQuickly(const Limit& limit, uint64_t w0, uint64_t w1,
                                              int64_t now_ns, int64_t units, int64_t until_ns,
                                              BucketOutcome& out) {
    const int64_t left_ns = until_ns - now_ns;
    if (units > limit.burst()) [[unlikely]]
      return false;
    out.next_w0 = w0;
    out.next_w1 = w1;
    if (left_ns <= 0 || (out.used_ns == 0 && out.used_fraction == 0)) return true;
    Interval back = CostInterval(limit, units);
    const bool counts = back.ns + (back.fraction != 0) <= left_ns;
    // What is left of units that have run out in part, while others have charged the key.
    if (!counts && static_cast<int64_t>(w0) > until_ns) back = {left_ns, 0};
    out.used_ns -= back.ns;
    out.used_fraction -= back.fraction;
    if (out.used_fraction < 0) {
      out.used_fraction += limit.denominator();
      --out.used_ns;
    }
    if (out.used_ns < 0) out.used_ns = out.used_fraction = 0;
    out.next_w0 = static_cast<uint64_t>(now_ns + out.used_ns);
    out.next_w1 = static_cast<uint64_t>(out.used_fraction);
    return out.next_w0 != 0;
  }

  TIDEGATE_INLINE static void UpdateBucket(Table& table, const Charge& charge,
                                           const Fingerprint& key, const Moment& moment,
                                           Table::Entry& entry, BucketOutcome& out) {
    const Limit& limit = charge.limit->limit;
    table.Update(
        key, moment.now_ns, {.one_word = limit.denominator() == 1, .is_one = charge.cost == 1},
        entry, [&] { return MarkOf(limit, charge.cost); },
        [&](uint64_t w0, uint64_t w1, uint64_t & next_w0, uint64_t & next_w1)
            __attribute__((always_inline)) {
              if (!StepBucket(limit, w0, w1, moment.now_ns, charge.cost, out)) [[unlikely]]
                out = StepAhead(limit, w0, w1, moment.now_ns, charge.cost);
              next_w0 = out.next_w0;
              next_w1 = out.next_w1;
              return out.behind ? moment.confirmed : out.allowed;
            });
  }

  // For a key of HitBuckets() whose state needs StepAhead(): a call within that loop would cost
  // each key more registers than there are.
  __attribute__((noinline, cold)) static Verdict HitAhead(Table& table, const Charge& charge,
                                                          const Fingerprint& key,
                                                          const Moment& moment,
                                                          Table::Entry& entry) {
    BucketOutcome outcome;
    UpdateBucket(table, charge, key, moment, entry, outcome);
    if (outcome.behind && !moment.confirmed) return Verdict::kUnconfirmed;
    return outcome.allowed ? Verdict::kAllowed : Verdict::kRefused;
  }
};

template <typename Cells, typename Base>
void CellStore<Cells, Base>::HitMany(absl::Span<const Charge> charges, const Moment& moment,
                                     Verdict* verdicts) {
  CellCalls::HitMany(cells(), charges, moment, verdicts);
}

template <typename Cells, typename Base>
void CellStore<Cells, Base>::OpenRecord(const Charge& charge, const Reservation& reservation,
                                        const Moment& moment) {
  CellCalls::OpenRecord(cells(), charge, reservation, moment);
}

template <typename Cells, typename Base>
std::optional<Store::Record> CellStore<Cells, Base>::ChangeRecord(
    const Charge& charge, const Reservation& reservation, const Moment& moment,
    absl::FunctionRef<bool(Record*)> change) {
  return CellCalls::ChangeRecord<Cells, Record>(cells(), charge, reservation, moment, change);
}

template <typename Cells, typename Base>
void CellStore<Cells, Base>::GiveBackUntil(const Charge& charge, int64_t admitted_ns,
                                           int64_t until_ns, const Moment& moment) {
  if (HasCell(charge.limit->limit.algorithm())) {
    CellCalls::RefundStateUntil(cells(), charge, until_ns, moment);
  } else {
    Base::GiveBackUntil(charge, admitted_ns, until_ns, moment);
  }
}

}  // namespace tidegate

#endif  // TIDEGATE_SRC_TABLE_CELL_CALLS_INL_H_
