// The centre's part of leases: what the bucket of a key counts while nodes hold units of it.
//
// A node that is granted units may spend them for one lease, without asking again. The centre
// charges them at once, so no bucket can be charged twice for them; but a bucket refills, and units
// that were charged long ago and are spent now would come on top of the burst. So the bucket stays
// as full as what may still be spent: the cap. To know that, the centre counts the units that are
// out by slots of one lease's length: those of the current slot and those of the slot before. What
// was granted two slots ago has ended.
//
// The invariant: room + out <= burst at every instant. It makes the admissions of all nodes in any
// interval at most burst + rate * interval (docs/leases.md).
//
// lua/bucket.lua and lua/slots.lua do the same with the value of a key; the store steps their
// replies by these functions. Pure; thread-safe as such.
#ifndef TIDEGATE_SRC_LEASES_CENTRE_H_
#define TIDEGATE_SRC_LEASES_CENTRE_H_

#include <cstdint>

#include "absl/numeric/int128.h"
#include "tidegate/instant.h"
#include "tidegate/limit.h"

namespace tidegate::leases {

// A duration in units of 1 / Terms::denominator ns.
using Parts = absl::int128;

// The numbers of a bucket's limit.
struct Terms {
  Parts token = 0;  // in which one unit comes back
  int64_t burst = 0;
  int64_t denominator = 1;
  int64_t tolerance_ns = kClockToleranceNs;

  static Terms Of(const Limit& limit);
  Parts depth() const { return token * burst; }
  Parts time(int64_t ns) const { return Parts(ns) * denominator; }
};

// The units that nodes may still spend.
struct Slots {
  int64_t end_ns = 0;     // of the current slot; it names the slot, too
  int64_t length_ns = 0;  // of a slot, and so the longest lease; 0 if nothing is out
  int64_t current = 0;    // units granted in this slot
  int64_t previous = 0;   // in the one before

  int64_t out() const { return current + previous; }
};

// A key at an instant.
struct Level {
  Parts ahead = 0;  // how far its arrival time lies ahead of the instant; from 0 up
  Parts debt = 0;   // how much further than the depth a debt has put it
  Slots slots;
};

// What a node reports about the units that it was granted in a slot.
struct Report {
  int64_t slot_ns = 0;  // Slots::end_ns of that slot; 0: no report
  int64_t spent = 0;
  int64_t given = 0;  // back; the node has forgotten them
};

// The steps of one call, in this order.
//
// 1. Ends the slots that are over at `now_ns`, each with the cap that held until then. A state that
//    lies too far ahead is that of a clock that went back.
void Roll(const Terms& terms, int64_t now_ns, Level* level);
// 2. The cap. Under what was known until now: a report may not lift it for the time before.
void Cap(const Terms& terms, Level* level);
// 3. Reports of slots that are over are ignored: their units are no longer counted as out.
void Hear(const Terms& terms, const Report& report, Level* level);
// 4. The units that there is room for; negative if more than the burst are used, as after the limit
//    was lowered.
int64_t Room(const Terms& terms, const Level& level);
void ChargeUnits(const Terms& terms, int64_t units, Level* level);
// 5. Grants at most half of the room, for `length_ns`; returns how many units. All nodes that share
//    a key should use one length; units of different lengths count as out for the longest.
int64_t Grant(const Terms& terms, int64_t now_ns, int64_t want, int64_t length_ns, Level* level);
// 6. How long the state of the key matters, longer than its level if units are out.
Parts Life(const Terms& terms, int64_t now_ns, const Level& level);

// Steps 1 and 2: what every reader of a value does.
void Settle(const Terms& terms, int64_t now_ns, Level* level);

// The time until `cost` units, at most the burst, have room for certain, whatever the nodes do with
// the units that are out. After Settle().
Parts Wait(const Terms& terms, int64_t now_ns, const Level& level, int64_t cost);

}  // namespace tidegate::leases

#endif  // TIDEGATE_SRC_LEASES_CENTRE_H_
