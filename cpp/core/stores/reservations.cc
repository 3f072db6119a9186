// Reservations in stores that do not block. One that does has scripts for them.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "algorithms/outstanding.h"
#include "tidegate/step.h"
#include "tidegate/store.h"

namespace tidegate {

absl::Status Store::KeepsReservations(const Limit& limit) const {
  return absl::InvalidArgumentError(
      absl::StrCat("a reservation of ", limit.ToString(), " was requested of the storage ", name(),
                   ", which keeps none; expected memory:// or shm://"));
}

Decision Store::CallReserved(Op op, absl::Span<const Charge> plan, Reservation* reservation,
                             const Moment& moment, absl::FunctionRef<int64_t()> clock) {
  if (op == Op::kReserve) return Reserve(plan, reservation, moment, clock);
  return op == Op::kSettle ? Settle(plan, reservation, moment)
                           : Raise(plan, reservation, moment, clock);
}

// NOLINTBEGIN(performance-unnecessary-value-param): overrides keep both functions.
std::optional<Decision> Store::SubmitReserved(Op op, absl::Span<const Charge> plan,
                                              std::shared_ptr<Reservation> reservation,
                                              const Moment& moment, Clock clock, Done) {
  // NOLINTEND(performance-unnecessary-value-param)
  return CallReserved(op, plan, reservation.get(), moment,
                      [&] { return clock ? clock() : moment.now_ns; });
}

namespace {

// Whether nothing was charged, since a state lies too far ahead of this reading of the clock.
bool IsToRepeat(const Decision& decision, const Moment& moment) {
  return decision.behind && !moment.confirmed;
}

}  // namespace

Decision Store::Reserve(absl::Span<const Charge> plan, Reservation* reservation,
                        const Moment& moment, absl::FunctionRef<int64_t()> clock) {
  Outcomes outcomes;
  const Decision decision = HitAll(plan, moment, clock, &outcomes);
  reservation->parts.assign(plan.size(), {Reservation::kNone});
  reservation->admitted_ns = moment.now_ns;
  if (!decision.allowed || IsToRepeat(decision, moment)) return decision;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (!outcomes[i].allowed) continue;  // in shadow, without room
    reservation->parts[i] = {plan[i].cost, moment.now_ns + outcomes[i].reset_after_ns, Found::kOpen,
                             plan[i].cost};
    if (!reservation->unrecorded) OpenRecord(plan[i], *reservation, moment);
  }
  return decision;
}

std::optional<Store::Record> Store::Unrecorded(const Reservation& reservation,
                                               const Reservation::Part& part,
                                               const Moment& moment) {
  if (reservation.is_settled) return Record{true, part.units};
  const bool has_end = reservation.ttl_ns > 0;
  if (has_end && moment.now_ns - reservation.admitted_ns >= reservation.ttl_ns) return std::nullopt;
  return Record{false, part.units};
}

void Store::KeepRecords(absl::Span<const Charge> plan, const Reservation& reservation,
                        int64_t now_ns) {
  const Moment moment{now_ns, /*confirmed=*/true};
  Reservation left = reservation;
  left.ttl_ns = reservation.admitted_ns + reservation.ttl_ns - now_ns;
  if (left.ttl_ns <= 0) return;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Reservation::Part& part = reservation.parts[i];
    if (part.units == Reservation::kNone) continue;
    OpenRecord({plan[i].key, plan[i].limit, part.units}, left, moment);
    if (!reservation.is_settled) continue;
    ChangeRecord(plan[i], left, moment, [&](Record* change) {
      *change = {true, part.units};
      return true;
    });
  }
}

Decision Store::Settle(absl::Span<const Charge> plan, Reservation* reservation,
                       const Moment& moment) {
  absl::InlinedVector<Charge, 4> ones(plan.begin(), plan.end());
  for (Charge& one : ones) one.cost = 1;
  // Before any record is taken: the call is made again if a limit needs a confirmed reading.
  const Decision standing = PeekAll(ones, moment, nullptr);
  if (IsToRepeat(standing, moment)) return standing;
  const Moment confirmed{moment.now_ns, /*confirmed=*/true};
  int64_t least = std::numeric_limits<int64_t>::max();
  bool is_changed = false;
  for (size_t i = 0; i < plan.size(); ++i) {
    Reservation::Part& part = reservation->parts[i];
    part.found = Found::kNothing;
    if (part.units == Reservation::kNone) continue;
    const int64_t used = std::min(plan[i].cost, Reservation::kMostUnits);
    if (reservation->makes_records) {
      OpenRecord({plan[i].key, plan[i].limit, part.units}, *reservation, confirmed);
    }
    // In this order: if the process dies in between, the estimate stands, and nothing is given back
    // or charged a second time.
    const auto settle = [used](Record* change) {
      if (change->is_settled) return false;
      *change = {true, used};
      return true;
    };
    const std::optional<Record> record =
        reservation->unrecorded ? Unrecorded(*reservation, part, moment)
                                : ChangeRecord(plan[i], *reservation, confirmed, settle);
    if (!record.has_value()) continue;
    part.found = !record->is_settled     ? Found::kOpen
                 : record->units == used ? Found::kAgain
                                         : Found::kSettled;
    part.found_units = record->units;
    int64_t charged = used;
    if (record->is_settled) {
      charged = record->units;
    } else if (used > record->units) {
      is_changed = true;
      const int64_t more = used - record->units;
      charged = record->units +
                ChargeUsed(Op::kCharge, {plan[i].key, plan[i].limit, more}, confirmed).charged;
    } else if (used < record->units) {
      is_changed = true;
      GiveBackUntil({plan[i].key, plan[i].limit, record->units - used}, reservation->admitted_ns,
                    LaterBy(plan[i].limit->limit, part.until_ns, record->units - part.units),
                    confirmed);
    }
    part.charged = charged;
    if (!plan[i].limit->limit.shadow() || plan.size() == 1) least = std::min(least, charged);
    if (reservation->unrecorded && part.found == Found::kOpen) part.units = used;
  }
  // One end of life holds for all parts.
  const auto is_open = [](const Reservation::Part& part) { return part.found == Found::kOpen; };
  reservation->is_settled |=
      reservation->unrecorded &&
      std::any_of(reservation->parts.begin(), reservation->parts.end(), is_open);
  Decision decision = is_changed ? PeekAll(ones, confirmed, nullptr) : standing;
  decision.SetCharged(least == std::numeric_limits<int64_t>::max() ? 0 : least);
  return decision;
}

Decision Store::Raise(absl::Span<const Charge> plan, Reservation* reservation, const Moment& moment,
                      absl::FunctionRef<int64_t()> clock) {
  const Moment confirmed{moment.now_ns, /*confirmed=*/true};
  // Adds `more` units to the record of a charge, if it is open.
  const auto raise = [&](size_t i, int64_t more) {
    Reservation::Part& part = reservation->parts[i];
    const auto add = [more](Record* change) {
      if (change->is_settled || more == 0) return false;
      change->units = std::min(change->units + more, Reservation::kMostUnits);
      return true;
    };
    const std::optional<Record> record = reservation->unrecorded
                                             ? Unrecorded(*reservation, part, moment)
                                             : ChangeRecord(plan[i], *reservation, confirmed, add);
    part.found = !record.has_value()  ? Found::kNothing
                 : record->is_settled ? Found::kSettled
                                      : Found::kOpen;
    if (part.found == Found::kOpen) part.units = part.found_units = record->units + more;
    return part.found == Found::kOpen;
  };
  bool open = true;
  for (size_t i = 0; i < plan.size(); ++i) {
    reservation->parts[i].found = Found::kOpen;
    if (reservation->parts[i].units != Reservation::kNone) open &= raise(i, 0);
  }
  if (!open) {
    Decision standing = PeekAll(plan, confirmed, nullptr);
    standing.allowed = false;
    return standing;
  }
  Outcomes outcomes;
  const Decision decision = HitAll(plan, moment, clock, &outcomes);
  if (!decision.allowed || IsToRepeat(decision, moment)) return decision;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (!outcomes[i].allowed) continue;  // in shadow, without room
    const int64_t until_ns = moment.now_ns + outcomes[i].reset_after_ns;
    Reservation::Part& part = reservation->parts[i];
    if (part.units != Reservation::kNone && raise(i, plan[i].cost)) {
      part.until_ns = std::max(part.until_ns, until_ns);
    } else {  // settled meanwhile, or it had no room before
      GiveBackUntil(plan[i], moment.now_ns, until_ns, confirmed);
    }
  }
  return decision;
}

void Store::GiveBackUntil(const Charge& charge, int64_t admitted_ns, int64_t until_ns,
                          const Moment& moment) {
  const Limit& limit = charge.limit->limit;
  if (IsLog(limit.algorithm())) {
    Release(charge, admitted_ns, moment);
  } else if (CountedFor(limit, moment.now_ns, until_ns) > 0) {
    Refund(charge, moment);
  }
}

}  // namespace tidegate
