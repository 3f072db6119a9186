// Calls on the cells of a table, written once for every store that has one. A
// store S befriends CellCalls and has
//
//   hasher_
//   Enter()                 what is held while its table is in use
//   TableOf(key)            the table that holds `key` meanwhile
//   IsDue(entry, now_ns)    whether Entered(entry, now_ns) is to be called after it
//   HitOther(charge, key, moment)   what is no plain call on a bucket
#ifndef TIDEGATE_SRC_CELL_CALLS_INL_H_
#define TIDEGATE_SRC_CELL_CALLS_INL_H_

#include <algorithm>
#include <new>

#include "absl/types/span.h"
#include "fingerprint_inl.h"
#include "table_inl.h"
#include "tidegate/store.h"

namespace tidegate {

struct CellCalls {
  template <typename S>
  TIDEGATE_INLINE static Decision Hit(S& store, const Charge& charge, const Moment& moment) {
    const Fingerprint key = store.hasher_.HashInline(charge.key, charge.limit->tag);
    const Limit& limit = charge.limit->limit;
    if (!IsPlain(charge)) [[unlikely]]
      return HitCopied(store, charge, key, moment);
    BucketOutcome outcome;
    HitBucket(store, charge, key, moment, outcome);
    return MakeDecision(limit, outcome);
  }

  template <typename S>
  TIDEGATE_INLINE static Verdict Ask(S& store, const Charge& charge, const Moment& moment) {
    const Fingerprint key = store.hasher_.HashInline(charge.key, charge.limit->tag);
    if (!IsPlain(charge)) [[unlikely]] {
      const Decision decision = HitCopied(store, charge, key, moment);
      return VerdictOf(decision.allowed, decision.behind, moment);
    }
    BucketOutcome outcome;
    HitBucket(store, charge, key, moment, outcome);
    return VerdictOf(outcome.allowed, outcome.behind, moment);
  }

  // Buckets and windows, of any cost.
  template <typename S>
  static Decision HitState(S& store, const Charge& charge, const Fingerprint& key,
                           const Moment& moment) {
    const Limit& limit = charge.limit->limit;
    Decision decision;
    Table::Entry entry;
    {
      [[maybe_unused]] const auto pass = store.Enter();
      store.TableOf(key).Update(
          key, moment.now_ns, /*one_word=*/false, entry,
          [&](uint64_t w0, uint64_t w1, uint64_t& next_w0, uint64_t& next_w1) {
            CellState next;
            // Made in its place: to copy a struct that was just written stalls.
            new (&decision) Decision(Step(limit, {w0, w1}, moment.now_ns, charge.cost, &next));
            next_w0 = next.w0;
            next_w1 = next.w1;
            return decision.behind ? moment.confirmed : decision.allowed;
          });
    }
    if (store.IsDue(entry, moment.now_ns)) store.Entered(entry, moment.now_ns);
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
  static void RefundState(S& store, const Charge& charge, const Fingerprint& key,
                          const Moment& moment) {
    [[maybe_unused]] const auto pass = store.Enter();
    const Table& table = store.TableOf(key);
    Table::Slot slot;
    while (table.Find(key, &slot)) {
      const bool behind = Peek(charge.limit->limit, slot.state, moment.now_ns, 1).behind;
      if (behind && !moment.confirmed) return;
      const CellState next = Refund(charge.limit->limit, slot.state, moment.now_ns, charge.cost);
      if (next == slot.state || Table::Replace(slot, next)) return;
    }
  }

  template <typename S>
  static void ResetState(S& store, const Fingerprint& key) {
    [[maybe_unused]] const auto pass = store.Enter();
    const Table& table = store.TableOf(key);
    Table::Slot slot;
    // w1 of a fresh state is the key's own, so that a call which read this state
    // cannot take another key's fresh state for it.
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
      bool plain = true;
      for (size_t i = 0; i < part.size(); ++i) {
        keys[i] = FingerprintOf(store, part[i].key, *part[i].limit);
        plain = plain && part[i].limit == part[0].limit && IsPlain(part[i]);
      }
      if (!plain) {
        store.Store::HitMany(part, moment, verdicts + start);
        continue;
      }
      HitBuckets(
          store, *part[0].limit, absl::MakeConstSpan(keys, part.size()),
          [&](size_t i) { return part[i].cost; }, moment, verdicts + start);
    }
  }

  template <typename S>
  TIDEGATE_INLINE static Fingerprint FingerprintOf(const S& store, std::string_view key,
                                                   const BoundLimit& limit) {
    return store.hasher_.HashInline(key, limit.tag);
  }

  // Keys of one bucket limit, none at a cost beyond its burst. In batches: while one is
  // decided on, the cells of the next travel to the cache together.
  template <typename S, typename CostOf>
  static void HitBuckets(S& store, const BoundLimit& limit, absl::Span<const Fingerprint> keys,
                         CostOf cost_of, const Moment& moment, Verdict* verdicts) {
    constexpr size_t kBatch = 8;
    for (size_t start = 0; start < keys.size(); start += kBatch) {
      const size_t end = std::min(start + kBatch, keys.size());
      Table::Entry entry;
      {
        [[maybe_unused]] const auto pass = store.Enter();
        if (start == 0) Prefetch(store, keys.subspan(0, kBatch));
        Prefetch(store, keys.subspan(end, kBatch));
        for (size_t i = start; i < end; ++i) {
          BucketOutcome outcome;
          UpdateBucket(store.TableOf(keys[i]), {{}, &limit, cost_of(i)}, keys[i], moment, entry,
                       outcome);
          verdicts[i] = VerdictOf(outcome.allowed, outcome.behind, moment);
        }
      }
      if (entry.changed()) store.Entered(entry, moment.now_ns);
    }
  }

 private:
  // Copies: what the hot path told the address of could not stay in registers.
  template <typename S>
  TIDEGATE_INLINE static Decision HitCopied(S& store, Charge charge, Fingerprint key,
                                            Moment moment) {
    return store.HitOther(charge, key, moment);
  }

  // Within a pass.
  template <typename S>
  TIDEGATE_INLINE static void Prefetch(S& store, absl::Span<const Fingerprint> keys) {
    for (const Fingerprint& key : keys) {
      const Cell* const home = store.TableOf(key).Home(key);
      __builtin_prefetch(home, 1);
      __builtin_prefetch(home + 2, 1);  // the next line; a prefetch never faults
    }
  }

  TIDEGATE_INLINE static bool IsPlain(const Charge& charge) {
    const Limit& limit = charge.limit->limit;
    return IsBucket(limit.algorithm()) && charge.cost <= limit.burst();
  }

  TIDEGATE_INLINE static Verdict VerdictOf(bool allowed, bool behind, const Moment& moment) {
    if (behind && !moment.confirmed) return Verdict::kUnconfirmed;
    return allowed ? Verdict::kAllowed : Verdict::kRefused;
  }

  TIDEGATE_INLINE static void UpdateBucket(Table& table, const Charge& charge,
                                           const Fingerprint& key, const Moment& moment,
                                           Table::Entry& entry, BucketOutcome& out) {
    const Limit& limit = charge.limit->limit;
    table.Update(
        key, moment.now_ns, limit.denominator() == 1, entry,
        [&](uint64_t w0, uint64_t w1, uint64_t & next_w0, uint64_t & next_w1)
            __attribute__((always_inline)) {
              StepBucket(limit, w0, w1, moment.now_ns, charge.cost, out);
              next_w0 = out.next_w0;
              next_w1 = out.next_w1;
              return out.behind ? moment.confirmed : out.allowed;
            });
  }

  template <typename S>
  TIDEGATE_INLINE static void HitBucket(S& store, const Charge& charge, const Fingerprint& key,
                                        const Moment& moment, BucketOutcome& outcome) {
    Table::Entry entry;
    {
      [[maybe_unused]] const auto pass = store.Enter();
      UpdateBucket(store.TableOf(key), charge, key, moment, entry, outcome);
    }
    if (store.IsDue(entry, moment.now_ns)) [[unlikely]]
      store.Entered(entry, moment.now_ns);
  }
};

}  // namespace tidegate

#endif  // TIDEGATE_SRC_CELL_CALLS_INL_H_
