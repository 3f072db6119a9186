// The state of the two algorithms that remember each admission, and their pure step.
//
// Both keep, oldest first, the instants at which admitted units stop counting:
// admission + period for sliding-log, admission + lease for concurrency. A unit
// is alive while its end > now. So one ring serves both; they differ in that a
// concurrency unit may be released before its end.
//
// A unit that is owed counts as admitted at the instant at which it would have passed: it takes the
// place of the oldest unit, with an end a period after that unit's. So a ring holds no more than
// the limit's count, and the newest end is never more than a period after the oldest.
#ifndef TIDEGATE_SRC_ALGORITHMS_LOG_H_
#define TIDEGATE_SRC_ALGORITHMS_LOG_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "algorithms/debt.h"
#include "tidegate/decision.h"
#include "tidegate/limit.h"
#include "tidegate/step.h"

namespace tidegate {

// A growing ring of instants in ascending order. Thread-compatible.
class InstantRing {
 public:
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t bytes() const { return capacity_ * sizeof(int64_t); }
  int64_t operator[](size_t i) const { return data_[(head_ + i) & (capacity_ - 1)]; }
  int64_t newest() const { return (*this)[size_ - 1]; }
  // Fetches the instants that a step reads into the cache.
  void Prefetch() const {
    if (data_ == nullptr) return;
    __builtin_prefetch(&data_[head_]);
    __builtin_prefetch(&data_[(head_ + size_) & (capacity_ - 1)], 1);
  }

  // The first index whose instant is > `instant`; size() if there is none. Most often it is 0.
  size_t FirstAfter(int64_t instant) const {
    return empty() || (*this)[0] > instant ? 0 : FirstAfterFront(instant);
  }

  void PopFront(size_t n);
  void PopBack(size_t n) { size_ -= n; }
  // Requires instant >= newest().
  void PushBack(int64_t instant, size_t times);
  // Removes `n` elements from `index` on.
  void Remove(size_t index, size_t n);
  // Lowers every element above `instant` to it.
  void ClampTo(int64_t instant);
  // Makes all elements later by `ns`.
  void Move(int64_t ns);
  // Makes the ends `periods` times `period` later, and the first `part` of them once more; or, if
  // `periods` and `part` are 0 or less, earlier, and the last -`part` of them once more. The ring
  // stays in order if its newest end is at most a period after the oldest.
  void Shift(int64_t periods, int64_t part, int64_t period);

  // How many nanoseconds more than a period a debt has put the newest end ahead, as a code of
  // debt.h.
  uint64_t debt_code() const { return debt_code_; }
  void SetDebtCode(uint64_t code) { debt_code_ = static_cast<uint32_t>(code); }

 private:
  // Requires that the front is not after `instant`.
  size_t FirstAfterFront(int64_t instant) const;
  int64_t& at(size_t i) { return data_[(head_ + i) & (capacity_ - 1)]; }
  void Grow(size_t least);

  std::unique_ptr<int64_t[]> data_;
  size_t capacity_ = 0;  // a power of two, or 0
  size_t head_ = 0;
  // A log has at most a million units.
  uint32_t size_ = 0;
  uint32_t debt_code_ = 0;
};

// The latest end that the clock allows at `now_ns`, but for the tolerance.
inline int64_t LatestEnd(const Limit& limit, const InstantRing& ring, int64_t now_ns) {
  const int64_t end = now_ns + limit.period_ns();
  return ring.debt_code() == 0 ? end : end + DebtOfCode(ring.debt_code());
}
// Whether the ring lies further ahead than the clock allows.
__attribute__((always_inline)) inline bool IsBehind(const Limit& limit, const InstantRing& ring,
                                                    int64_t now_ns) {
  return !ring.empty() && ring.newest() - now_ns - limit.period_ns() > kClockToleranceNs &&
         ring.newest() - LatestEnd(limit, ring, now_ns) > kClockToleranceNs;
}
// Moves the ends of such a ring back: those of a key that owes all alike, so that it owes as much.
void MoveBack(const Limit& limit, InstantRing* ring, int64_t now_ns);
// The units that are owed beyond those of the ring, of which those from `first` on count.
int64_t OwedIn(const Limit& limit, const InstantRing& ring, int64_t now_ns, size_t first);
// Decides and, if allowed, records. A refusal leaves the ring as it was, except for instants that
// lie further ahead than the clock allows (see step.h).
Decision StepLog(const Limit& limit, InstantRing* ring, int64_t now_ns, int64_t cost);
// Like StepCharge() in step.h.
Decision StepLogCharge(const Limit& limit, InstantRing* ring, int64_t now_ns, int64_t cost,
                       int64_t most_debt);
// Like Peek() in step.h.
Decision PeekLog(const Limit& limit, const InstantRing& ring, int64_t now_ns, int64_t cost);
// The largest number of equal ends from index `from` on: those of one charge are equal.
size_t MostAtOnce(const InstantRing& ring, size_t from);
// Forgets the newest `cost` units; returns how many there were.
int64_t RefundLog(const Limit& limit, InstantRing* ring, int64_t now_ns, int64_t cost);
// Units of a ring: `size` of them from `first` on.
struct UnitsAt {
  size_t first;
  size_t size;
};
// Which units were admitted at `admitted_ns`, at most `cost`; none if they have ended. A place of a
// concurrency limit is known by its end, or, if it is `late` (see Decision), give or take
// kClockToleranceNs: whoever gives back a place that is gone, after a reset, takes none from
// others. The end of an owed unit of a sliding log is not that of its charge, so there the newest
// units stand for those that are gone.
UnitsAt UnitsOf(const Limit& limit, const InstantRing& ring, int64_t admitted_ns, int64_t now_ns,
                int64_t cost, bool late);
// Ends the lease of `cost` units admitted at `admitted_ns`, which UnitsOf() finds. While units are
// owed, forgets the newest units instead.
void ReleaseLog(const Limit& limit, InstantRing* ring, int64_t admitted_ns, int64_t now_ns,
                int64_t cost, bool late = false);
// Has the lease of `cost` units admitted at `admitted_ns` end a period after `now_ns`. Returns
// false and does nothing if it has ended already.
bool ExtendLog(const Limit& limit, InstantRing* ring, int64_t admitted_ns, int64_t now_ns,
               int64_t cost, bool late = false);

}  // namespace tidegate

#endif  // TIDEGATE_SRC_ALGORITHMS_LOG_H_
