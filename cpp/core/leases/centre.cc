#include "leases/centre.h"

#include <algorithm>

namespace tidegate::leases {

Terms Terms::Of(const Limit& limit) {
  return {.token = limit.numerator(), .burst = limit.burst(), .denominator = limit.denominator()};
}

namespace {

// Units that are out since the limit was larger owe nothing.
void Raise(const Terms& terms, Parts ahead, Level* level) {
  level->ahead = std::max(level->ahead, std::min(ahead, terms.depth()));
}

}  // namespace

void Roll(const Terms& terms, int64_t now_ns, Level* level) {
  const Parts most = terms.depth() + level->debt;
  if (level->ahead > most + terms.time(terms.tolerance_ns)) level->ahead = most;
  Slots& slots = level->slots;
  if (slots.length_ns == 0) return;
  if (slots.end_ns > now_ns + slots.length_ns + terms.tolerance_ns) {
    slots = {now_ns + slots.length_ns, slots.length_ns, slots.out(), 0};
  }
  if (now_ns >= slots.end_ns) {
    Raise(terms, terms.time(slots.end_ns - now_ns) + slots.out() * terms.token, level);
    slots = {slots.end_ns + slots.length_ns, slots.length_ns, 0, slots.current};
  }
  if (now_ns >= slots.end_ns) {
    Raise(terms, terms.time(slots.end_ns - now_ns) + slots.previous * terms.token, level);
    slots = {};
  }
}

void Cap(const Terms& terms, Level* level) {
  Raise(terms, level->slots.out() * terms.token, level);
}

void Settle(const Terms& terms, int64_t now_ns, Level* level) {
  Roll(terms, now_ns, level);
  Cap(terms, level);
}

void Hear(const Terms& terms, const Report& report, Level* level) {
  Slots& slots = level->slots;
  if (slots.length_ns == 0) return;
  const bool is_current = report.slot_ns == slots.end_ns;
  if (!is_current && report.slot_ns != slots.end_ns - slots.length_ns) return;
  int64_t& out = is_current ? slots.current : slots.previous;
  out -= std::min(out, report.spent);
  const int64_t given = std::min(out, report.given);
  out -= given;
  level->ahead -= given * terms.token;
}

int64_t Room(const Terms& terms, const Level& level) {
  const Parts room = terms.depth() - level.ahead;
  const Parts units = room < 0 ? (room - terms.token + 1) / terms.token : room / terms.token;
  return static_cast<int64_t>(std::max<Parts>(units, -terms.burst));
}

void ChargeUnits(const Terms& terms, int64_t units, Level* level) {
  level->ahead += units * terms.token;
}

int64_t Grant(const Terms& terms, int64_t now_ns, int64_t want, int64_t length_ns, Level* level) {
  const int64_t units = std::min(want, std::max<int64_t>(Room(terms, *level), 0) / 2);
  if (units <= 0) return 0;
  Slots& slots = level->slots;
  if (slots.out() == 0) {
    slots = {now_ns + length_ns, length_ns, 0, 0};
  } else if (length_ns > slots.length_ns) {
    slots = {now_ns + length_ns, length_ns, slots.out(), 0};
  }
  ChargeUnits(terms, units, level);
  slots.current += units;
  return units;
}

Parts Life(const Terms& terms, int64_t now_ns, const Level& level) {
  const Slots& slots = level.slots;
  if (slots.out() == 0) return level.ahead;
  const Parts left = terms.time(slots.end_ns - now_ns);
  const Parts next = left + terms.time(slots.length_ns);
  return std::max(
      {level.ahead, left + slots.out() * terms.token, next + slots.current * terms.token});
}

Parts Wait(const Terms& terms, int64_t now_ns, const Level& level, int64_t cost) {
  const Slots& slots = level.slots;
  const Parts room = terms.depth() - cost * terms.token;
  const Parts left = terms.time(slots.end_ns - now_ns);
  const Parts all = std::min(slots.out() * terms.token, terms.depth());
  const Parts later = std::min(slots.current * terms.token, terms.depth());
  Parts wait = level.ahead - room;
  if (all > room) wait = std::max(wait, left + all - room);
  if (later > room) wait = std::max(wait, left + terms.time(slots.length_ns) + later - room);
  return std::max<Parts>(wait, 0);
}

}  // namespace tidegate::leases
