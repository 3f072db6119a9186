#include "algorithms/log.h"

#include <algorithm>
#include <bit>

#include "tidegate/step.h"

namespace tidegate {
namespace {

bool Passes(const Limit& limit, int64_t alive, int64_t cost) {
  if (cost > limit.count()) return limit.IsOversize(cost) && alive == 0;
  return alive + cost <= limit.count();
}

// The decision on a ring of which the units from `first` on count at `now_ns`; the ring is
// not touched. Inline, since a decision that is returned is stored first, and read again at once.
__attribute__((always_inline)) inline Decision Judge(const Limit& limit, const InstantRing& ring,
                                                     int64_t now_ns, int64_t cost, size_t first) {
  Decision d;
  d.limit = &limit;
  const auto alive = static_cast<int64_t>(ring.size() - first);
  d.used_units = alive;
  if (ring.debt_code() != 0) [[unlikely]]
    d.used_units += OwedIn(limit, ring, now_ns, first);
  d.reset_after_ns = alive > 0 ? ring.newest() - now_ns : 0;
  d.known_more_ns = alive > 0 ? ring[first] - now_ns : 0;
  d.allowed = Passes(limit, alive, cost);
  if (d.allowed) return d;
  if (cost > limit.count()) {
    d.retry_after_ns = limit.IsOversize(cost) ? d.reset_after_ns : Decision::kNever;
  } else {
    const auto freeing = static_cast<size_t>(alive + cost - limit.count()) - 1;
    d.retry_after_ns = ring[first + freeing] - now_ns;
  }
  return d;
}

}  // namespace

void MoveBack(const Limit& limit, InstantRing* ring, int64_t now_ns) {
  const int64_t latest = LatestEnd(limit, *ring, now_ns);
  if (ring->debt_code() == 0) {
    ring->ClampTo(latest);
  } else {
    ring->Move(latest - ring->newest());
  }
}

int64_t OwedIn(const Limit& limit, const InstantRing& ring, int64_t now_ns, size_t first) {
  const int64_t end = now_ns + limit.period_ns();
  if (ring.debt_code() == 0 || first == ring.size() || ring.newest() <= end) return 0;
  // Each unit that is owed has made an end a period later, the earliest ones first.
  const int64_t beyond = ring[first] - end;
  const int64_t each = beyond <= 0 ? 0 : (beyond + limit.period_ns() - 1) / limit.period_ns();
  const size_t once_more = ring.FirstAfter(end + each * limit.period_ns());
  return each * static_cast<int64_t>(ring.size() - first) +
         static_cast<int64_t>(ring.size() - once_more);
}

size_t InstantRing::FirstAfterFront(int64_t instant) const {
  // Usually few have expired: searches ranges from the front that double in size.
  size_t low = 1;
  size_t high = 1;
  for (size_t step = 1; high < size_ && (*this)[high] <= instant; step *= 2) {
    low = high + 1;
    high = std::min<size_t>(size_, high + step);
  }
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if ((*this)[middle] > instant) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

void InstantRing::PopFront(size_t n) {
  head_ = (head_ + n) & (capacity_ - 1);  // 0 without a capacity
  size_ -= static_cast<uint32_t>(n);
}

void InstantRing::Move(int64_t ns) {
  for (size_t i = 0; i < size_; ++i) at(i) += ns;
}

void InstantRing::Shift(int64_t periods, int64_t part, int64_t period) {
  if (periods != 0) Move(periods * period);
  const size_t mask = capacity_ - 1;
  for (; part > 0; --part) {
    const int64_t later = (*this)[0] + period;
    head_ = (head_ + 1) & mask;
    at(size_ - 1) = later;
  }
  for (; part < 0; ++part) {
    const int64_t earlier = newest() - period;
    head_ = (head_ - 1) & mask;
    at(0) = earlier;
  }
}

void InstantRing::PushBack(int64_t instant, size_t times) {
  if (size_ + times > capacity_) Grow(size_ + times);
  int64_t* const data = data_.get();
  const size_t begin = head_ + size_;
  const size_t mask = capacity_ - 1;
  for (size_t i = begin; i < begin + times; ++i) data[i & mask] = instant;
  size_ += static_cast<uint32_t>(times);
}

void InstantRing::Remove(size_t index, size_t n) {
  for (size_t i = index + n; i < size_; ++i) at(i - n) = at(i);
  size_ -= static_cast<uint32_t>(n);
}

void InstantRing::ClampTo(int64_t instant) {
  for (size_t i = FirstAfter(instant); i < size_; ++i) at(i) = instant;
}

void InstantRing::Grow(size_t least) {
  const size_t capacity = std::bit_ceil(std::max<size_t>(least, 4));
  auto data = std::make_unique<int64_t[]>(capacity);
  for (size_t i = 0; i < size_; ++i) data[i] = (*this)[i];
  data_ = std::move(data);
  capacity_ = capacity;
  head_ = 0;
}

namespace {

// Records units that end at `end`, or with the newest if those end later. Returns their end.
__attribute__((always_inline)) inline int64_t Record(InstantRing* ring, int64_t end,
                                                     int64_t units) {
  const int64_t recorded = ring->empty() ? end : std::max(end, ring->newest());
  ring->PushBack(recorded, static_cast<size_t>(units));
  return recorded;
}

// Records a hit that passes, after which `used` units are used. Those before `first` have ended.
__attribute__((always_inline)) inline Decision Admit(const Limit& limit, InstantRing* ring,
                                                     int64_t now_ns, int64_t cost, size_t first,
                                                     int64_t used) {
  ring->PopFront(first);
  const int64_t end = now_ns + limit.period_ns();
  const int64_t recorded = Record(ring, end, cost);
  return {.allowed = true,
          .late = recorded > end,
          .limit = &limit,
          .reset_after_ns = recorded - now_ns,
          .used_units = used,
          .known_more_ns = (*ring)[0] - now_ns};
}

__attribute__((noinline)) Decision StepLogBehind(const Limit& limit, InstantRing* ring,
                                                 int64_t now_ns, int64_t cost) {
  MoveBack(limit, ring, now_ns);
  Decision d = StepLog(limit, ring, now_ns, cost);
  d.behind = true;
  return d;
}

// A hit that may be refused, or on a ring that has owed.
__attribute__((noinline)) Decision StepLogAtLength(const Limit& limit, InstantRing* ring,
                                                   int64_t now_ns, int64_t cost) {
  const size_t first = ring->FirstAfter(now_ns);
  const auto alive = static_cast<int64_t>(ring->size() - first);
  if (!Passes(limit, alive, cost)) return Judge(limit, *ring, now_ns, cost, first);
  if (cost <= limit.count()) {
    const int64_t used = alive + OwedIn(limit, *ring, now_ns, first) + cost;
    ring->SetDebtCode(0);
    return Admit(limit, ring, now_ns, cost, first, used);
  }
  Decision d = StepLogCharge(limit, ring, now_ns, cost, limit.max_debt());
  d.charged = Decision::kUnset;
  return d;
}

}  // namespace

Decision StepLog(const Limit& limit, InstantRing* ring, int64_t now_ns, int64_t cost) {
  if (IsBehind(limit, *ring, now_ns)) [[unlikely]]
    return StepLogBehind(limit, ring, now_ns, cost);
  const size_t first = ring->FirstAfter(now_ns);
  const int64_t used = static_cast<int64_t>(ring->size() - first) + cost;
  if (used > limit.count() || ring->debt_code() != 0) [[unlikely]]
    return StepLogAtLength(limit, ring, now_ns, cost);
  return Admit(limit, ring, now_ns, cost, first, used);
}

Decision StepLogCharge(const Limit& limit, InstantRing* ring, int64_t now_ns, int64_t cost,
                       int64_t most_debt) {
  const bool behind = IsBehind(limit, *ring, now_ns);
  if (behind) MoveBack(limit, ring, now_ns);
  ring->PopFront(ring->FirstAfter(now_ns));
  const auto alive = static_cast<int64_t>(ring->size());
  const int64_t room = std::max<int64_t>(0, limit.count() - alive);
  const int64_t owed = OwedIn(limit, *ring, now_ns, 0);
  const int64_t units = std::clamp<int64_t>(room + most_debt - owed, 0, cost);
  const int64_t in_room = std::min(units, room);
  if (in_room > 0) Record(ring, now_ns + limit.period_ns(), in_room);
  if (units > in_room) {
    const auto places = static_cast<int64_t>(ring->size());
    ring->Shift((units - in_room) / places, (units - in_room) % places, limit.period_ns());
    ring->SetDebtCode(CodeOfDebt(ring->newest() - now_ns - limit.period_ns()));
  } else if (units > 0) {
    ring->SetDebtCode(0);
  }
  Decision d = Judge(limit, *ring, now_ns, limit.beyond(), 0);
  d.behind = behind;
  d.SetCharged(units);
  return d;
}

Decision PeekLog(const Limit& limit, const InstantRing& ring, int64_t now_ns, int64_t cost) {
  if (!IsBehind(limit, ring, now_ns)) {
    return Judge(limit, ring, now_ns, cost, ring.FirstAfter(now_ns));
  }
  InstantRing moved;
  for (size_t i = 0; i < ring.size(); ++i) moved.PushBack(ring[i], 1);
  moved.SetDebtCode(ring.debt_code());
  MoveBack(limit, &moved, now_ns);
  Decision d = Judge(limit, moved, now_ns, cost, moved.FirstAfter(now_ns));
  d.behind = true;
  return d;
}

size_t MostAtOnce(const InstantRing& ring, size_t from) {
  // The usual case of many units: they are in order.
  if (from < ring.size() && ring[from] == ring.newest()) return ring.size() - from;
  size_t most = 0;
  size_t begin = from;
  for (size_t i = from; i < ring.size(); ++i) {
    if (ring[i] != ring[begin]) begin = i;
    most = std::max(most, i + 1 - begin);
  }
  return most;
}

int64_t RefundLog(const Limit& limit, InstantRing* ring, int64_t now_ns, int64_t cost) {
  const size_t first = ring->FirstAfter(now_ns);
  const auto alive = static_cast<int64_t>(ring->size() - first);
  const int64_t owed = std::min(cost, OwedIn(limit, *ring, now_ns, first));
  if (owed > 0) {
    ring->PopFront(first);
    ring->Shift(-(owed / alive), -(owed % alive), limit.period_ns());
    cost -= owed;
  }
  const size_t units = std::min(static_cast<size_t>(alive), static_cast<size_t>(cost));
  ring->PopBack(units);
  return owed + static_cast<int64_t>(units);
}

UnitsAt UnitsOf(const Limit& limit, const InstantRing& ring, int64_t admitted_ns, int64_t now_ns,
                int64_t cost, bool late) {
  const int64_t end = admitted_ns + limit.period_ns();
  if (end <= now_ns) return {0, 0};
  const size_t wanted = std::min<size_t>(ring.size(), static_cast<size_t>(cost));
  // The end that the units got, or a later one if newer units had been recorded before.
  const size_t first = ring.FirstAfter(end - 1);
  // Of a clock that went back all ends may have been lowered.
  if (limit.algorithm() != Algorithm::kConcurrency || admitted_ns - now_ns > kClockToleranceNs) {
    return {std::min(first, ring.size() - wanted), wanted};
  }
  const int64_t most_ns = late ? kClockToleranceNs : 0;
  const size_t after = ring.FirstAfter(end + most_ns) - first;
  if (after > 0) return {first, std::min(wanted, after)};
  const size_t before = std::min(wanted, first - ring.FirstAfter(end - 1 - most_ns));
  return {first - before, before};
}

namespace {

// Removes the units that UnitsOf() finds, or the newest if units are owed; returns how many.
size_t Remove(const Limit& limit, InstantRing* ring, int64_t admitted_ns, int64_t now_ns,
              int64_t cost, bool late) {
  if (admitted_ns + limit.period_ns() > now_ns &&
      OwedIn(limit, *ring, now_ns, ring->FirstAfter(now_ns)) > 0) {
    return static_cast<size_t>(RefundLog(limit, ring, now_ns, cost));
  }
  const UnitsAt units = UnitsOf(limit, *ring, admitted_ns, now_ns, cost, late);
  ring->Remove(units.first, units.size);
  return units.size;
}

}  // namespace

void ReleaseLog(const Limit& limit, InstantRing* ring, int64_t admitted_ns, int64_t now_ns,
                int64_t cost, bool late) {
  Remove(limit, ring, admitted_ns, now_ns, cost, late);
}

bool ExtendLog(const Limit& limit, InstantRing* ring, int64_t admitted_ns, int64_t now_ns,
               int64_t cost, bool late) {
  const size_t units = Remove(limit, ring, admitted_ns, now_ns, cost, late);
  if (units == 0) return false;
  Record(ring, now_ns + limit.period_ns(), static_cast<int64_t>(units));
  return true;
}

}  // namespace tidegate
