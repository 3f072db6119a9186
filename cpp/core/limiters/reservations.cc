// The calls of limiters and plans on reservations.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "tidegate/instant.h"
#include "tidegate/limiter.h"
#include "tidegate/plan.h"
#include "tidegate/rule_limiter.h"

namespace tidegate {

namespace {

// Calls `submit` with a function that passes the answer on through `finish`, as the answer that is
// there at once is.
template <typename Finish, typename Submit>
std::optional<Decision> Finished(Finish finish, Store::Done done, Submit submit) {
  const std::optional<Decision> early =
      submit([finish, done = std::move(done)](const Decision& late) { done(finish(late)); });
  if (!early.has_value()) return std::nullopt;
  return finish(*early);
}

// The units that settling did not charge, since a key owes the most that it may.
int64_t WrittenOff(const Reservation& reservation, const Decision& decision, int64_t least) {
  const auto settled = [](const Reservation::Part& part) { return part.found == Found::kOpen; };
  const bool any = std::any_of(reservation.parts.begin(), reservation.parts.end(), settled);
  return any ? std::max<int64_t>(0, least - decision.charged) : 0;
}

// What limits in shadow have done, as outcomes: those without room have reserved nothing.
// `limit_of` is a function of the number of a part.
template <typename LimitOf>
Outcomes OutcomesOf(const Reservation& reservation, const Decision& decision, LimitOf limit_of) {
  Outcomes outcomes;
  for (size_t i = 0; decision.allowed && i < reservation.parts.size(); ++i) {
    Decision& each = outcomes.emplace_back(decision);
    each.limit = &limit_of(i);
    each.allowed = reservation.parts[i].units != Reservation::kNone || decision.degraded;
  }
  return outcomes;
}

}  // namespace

absl::Status Reservable(const Store& store, const Limit& limit, Op op) {
  if (absl::Status status = store.KeepsReservations(limit); !status.ok()) return status;
  const auto refused = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("a reservation of ", limit.ToString(), why));
  };
  if (limit.algorithm() == Algorithm::kConcurrency) {
    return refused(
        " was requested, whose places are given back by slots; expected limits of other "
        "algorithms than concurrency");
  }
  if (op == Op::kRaise && limit.algorithm() == Algorithm::kSlidingLog) {
    return refused(
        " was to be raised, which remembers each charge by its instant; expected an algorithm "
        "other than sliding-log");
  }
  return absl::OkStatus();
}

std::optional<Decision> Limiter::SubmitReserved(Op op, std::string_view key, int64_t cost,
                                                std::shared_ptr<Reservation> reservation,
                                                Store::Done done) {
  const auto finish = [this, op, cost, reservation](const Decision& decision) {
    CountReserved(op, cost, *reservation, decision);
    return decision;
  };
  return Finished(finish, std::move(done), [&](Store::Done then) {
    return store_.SubmitReserved(op, PlanFor(key, cost), reservation, std::move(then));
  });
}

Decision Limiter::CallReserved(Op op, std::string_view key, int64_t cost,
                               Reservation* reservation) {
  const Decision decision = store_.CallReserved(op, PlanFor(key, cost), reservation);
  CountReserved(op, cost, *reservation, decision);
  return decision;
}

void Limiter::RecordReserved(std::string_view key, Reservation* reservation) {
  store_.store().KeepRecords(PlanFor(key, 0), *reservation, store_.NowNs());
  reservation->unrecorded = false;
}

void Limiter::CountReserved(Op op, int64_t cost, const Reservation& reservation,
                            const Decision& decision) {
  if (op == Op::kReserve) {
    Count(decision, decision.rule);
    if (has_shadow_) {
      CountShadow(OutcomesOf(reservation, decision,
                             [&](size_t i) -> const Limit& { return limits_[i].limit; }));
    }
  }
  if (op == Op::kSettle) {
    written_off_.fetch_add(WrittenOff(reservation, decision, cost), std::memory_order_relaxed);
  }
}

int64_t Plan::LeastOf(const Charged& charged) {
  const auto less = [](const Charge& a, const Charge& b) { return a.cost < b.cost; };
  return std::min_element(charged.charges.begin(), charged.charges.end(), less)->cost;
}

Decision Plan::FinishReserved(Op op, const ChargeNumbers& charge_of, int64_t least,
                              const Reservation& reservation, Decision decision) const {
  if (op == Op::kReserve) return Finish(decision, charge_of, nullptr);
  if (op == Op::kSettle) {
    limiters_[0]->written_off_.fetch_add(WrittenOff(reservation, decision, least),
                                         std::memory_order_relaxed);
  }
  decision.rule = static_cast<uint16_t>(
      std::find(charge_of.begin(), charge_of.end(), decision.rule) - charge_of.begin());
  return decision;
}

std::optional<Decision> Plan::SubmitReserved(Op op, Keys keys, Costs costs,
                                             std::shared_ptr<Reservation> reservation,
                                             Store::Done done) {
  const Charged charged = For(keys, costs);
  const auto finish = [this, op, least = LeastOf(charged), charge_of = charged.charge_of,
                       reservation](const Decision& decision) {
    return FinishReserved(op, charge_of, least, *reservation, decision);
  };
  return Finished(finish, std::move(done), [&](Store::Done then) {
    return store_.SubmitReserved(op, charged.charges, reservation, std::move(then));
  });
}

Decision Plan::CallReserved(Op op, Keys keys, Costs costs, Reservation* reservation) {
  const Charged charged = For(keys, costs);
  const Decision decision = store_.CallReserved(op, charged.charges, reservation);
  return FinishReserved(op, charged.charge_of, LeastOf(charged), *reservation, decision);
}

void Plan::RecordReserved(Keys keys, Reservation* reservation) {
  const absl::InlinedVector<int64_t, 4> nothing(keys.size());
  store_.store().KeepRecords(For(keys, nothing).charges, *reservation, store_.NowNs());
  reservation->unrecorded = false;
}

Reservation RuleLimiter::ReservationOf(const Request& request, int64_t cost, const Decision& hit,
                                       absl::Span<const Decision> outcomes) const {
  Charged charged;
  ChargesOf(&hit, request, cost, &charged);
  return ReservationOf(charged, hit, outcomes);
}

Reservation RuleLimiter::ReservationOf(const Charged& charged, const Decision& hit,
                                       absl::Span<const Decision> outcomes) {
  Reservation reservation;
  reservation.admitted_ns = hit.at_ns;
  reservation.unrecorded = true;
  for (size_t i = 0; i < charged.charges.size(); ++i) {
    const bool is_settled_later =
        i < outcomes.size() && outcomes[i].allowed && hit.charged_in(i) == ChargedIn::kStore &&
        charged.charges[i].limit->limit.algorithm() != Algorithm::kConcurrency;
    reservation.parts.push_back(
        is_settled_later
            ? Reservation::Part{charged.charges[i].cost, hit.at_ns + outcomes[i].reset_after_ns}
            : Reservation::Part{Reservation::kNone});
  }
  return reservation;
}

absl::StatusOr<int64_t> RuleLimiter::UnitsOfUsage(const Request& request, int64_t at_ns,
                                                  Usage usage) const {
  RuleSet::Matched matched;
  rules_->Match(request, at_ns, &matched);
  if (matched.listed != nullptr) return 0;
  if (!matched.is_estimate) {
    return absl::InvalidArgumentError(
        "a usage was given for a request whose cost in the rules has no `usage`; expected a number "
        "of units, or `costs` with `cost: {usage: {...}}` for such requests");
  }
  const auto& weights = rules_->costs()[static_cast<size_t>(matched.cost_number)].usage;
  absl::uint128 total = 0;
  for (const auto& [field, used] : usage) {
    const auto weight =
        std::find_if(weights.begin(), weights.end(),
                     [field = field](const auto& known) { return known.first == field; });
    if (weight != weights.end()) {
      total += absl::uint128(static_cast<uint64_t>(weight->second)) * static_cast<uint64_t>(used);
    } else if (used != 0) {
      const auto name = [](std::string* text, const auto& known) { *text += known.first; };
      return absl::InvalidArgumentError(absl::StrCat("the usage has the field ", Quote(field),
                                                     "; expected ",
                                                     absl::StrJoin(weights, ", ", name)));
    }
  }
  constexpr uint64_t kMillion = 1'000'000;
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const absl::uint128 units = (total + (kMillion - 1)) / kMillion;
  if (units > static_cast<uint64_t>(kMost)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the usage costs more than ", kMost, " units; expected at most that"));
  }
  return static_cast<int64_t>(units);
}

std::vector<std::string> RuleLimiter::CountsOf(const Request& request, int64_t at_ns) const {
  Charged charged;
  Charges(request, 1, 1, at_ns, Load::kNone, &charged);
  std::vector<std::string> names;
  for (const Charge& charge : charged.charges) {
    names.push_back(CountName(charge.limit->limit, charge.limit->scope));
  }
  return names;
}

absl::StatusOr<std::optional<Decision>> RuleLimiter::SubmitReserved(
    Op op, const Request& request, std::optional<int64_t> cost,
    std::shared_ptr<Reservation> reservation, Store::Done done, int64_t factor) const {
  Charged charged;
  const int64_t at_ns = op == Op::kReserve ? store_->NowNs() : reservation->admitted_ns;
  const bool is_used = op != Op::kReserve && !reservation->makes_records;
  Charges(request, cost.value_or(0), factor, at_ns, Load::kNone, &charged,
          is_used ? Of::kUsed : Of::kRequest);
  return SubmitReserved(op, !cost.has_value(), &charged, std::move(reservation), std::move(done));
}

absl::StatusOr<std::optional<Decision>> RuleLimiter::SubmitReserved(
    Op op, bool gives_all_back, Charged* asked, std::shared_ptr<Reservation> reservation,
    Store::Done done) const {
  Charged& charged = *asked;
  const auto is_one = [&](size_t i) { return rules_->rules()[charged.rules[i]].counts_requests; };
  for (size_t i = 0; i < charged.charges.size(); ++i) {
    if (gives_all_back) charged.charges[i].cost = 0;
    if (op == Op::kSettle) continue;
    const Limit& limit = charged.charges[i].limit->limit;
    if (absl::Status status = Reservable(store_->store(), limit, op); !status.ok()) return status;
  }
  if (charged.charges.empty()) {
    Decision decision = WithoutCharges(charged);
    if (op == Op::kReserve) Count(charged, decision, nullptr);
    if (op == Op::kSettle) decision.SetCharged(0);
    return decision;
  }
  if (reservation->makes_records) {
    // What was charged without a reservation counts as long as it may, as for any refund.
    reservation->parts.clear();
    for (Charge& charge : charged.charges) {
      reservation->parts.push_back({charge.cost, kMaxInstantNs});
      charge.cost = 0;
    }
  }
  if (op != Op::kReserve && reservation->parts.size() != charged.charges.size()) {
    reservation->parts.assign(charged.charges.size(), {Reservation::kNone});
  }
  // Nothing is added to rules that count requests: to the store they are no parts of the call.
  absl::InlinedVector<size_t, 6> kept;
  absl::InlinedVector<Charge, 6> charges;
  const auto some = std::make_shared<Reservation>(*reservation);
  some->parts.clear();
  for (size_t i = 0; i < charged.charges.size(); ++i) {
    if (op == Op::kRaise && is_one(i)) continue;
    kept.push_back(i);
    charges.push_back(charged.charges[i]);
    if (op != Op::kReserve) some->parts.push_back(reservation->parts[i]);
  }
  if (charges.empty()) {
    for (Reservation::Part& part : reservation->parts) part.found = Found::kOpen;
    return WithoutCharges(charged);
  }
  // The parts of rules that count units, and what they are charged at most.
  absl::InlinedVector<std::pair<size_t, int64_t>, 6> counted;
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!is_one(kept[i])) counted.emplace_back(i, charges[i].cost);
  }
  const auto limit_of = [bound = [&] {
    absl::InlinedVector<const Limit*, 6> limits;
    for (const Charge& charge : charges) limits.push_back(&charge.limit->limit);
    return limits;
  }()](size_t i) -> const Limit& { return *bound[i]; };
  const auto finish = [this, op, counted, kept, some, reservation, limit_of,
                       rules = charged.rules](Decision decision) {
    reservation->is_settled = some->is_settled;
    if (op == Op::kReserve) {
      reservation->parts = some->parts;
      reservation->admitted_ns = some->admitted_ns;
      Outcomes outcomes;
      if (has_shadow_) outcomes = OutcomesOf(*some, decision, limit_of);
      CountFor(rules, decision, &outcomes);
    } else {
      for (Reservation::Part& part : reservation->parts) {
        part.found = Found::kOpen;
        part.found_units = part.units;
      }
      for (size_t i = 0; i < kept.size(); ++i) reservation->parts[kept[i]] = some->parts[i];
      if (op == Op::kSettle) {
        constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
        int64_t charged_least = kMost;
        int64_t left = 0;
        for (const auto& [i, units] : counted) {
          const Reservation::Part& part = some->parts[i];
          const bool is_known = part.found != Found::kNothing && part.found != Found::kNoAnswer;
          if (!is_known || (limit_of(i).shadow() && counted.size() > 1)) continue;
          charged_least = std::min(charged_least, part.charged);
          left = std::max(left, units - part.charged);
        }
        if (charged_least != kMost) {
          decision.charged = charged_least;
          total_->written_off.fetch_add(WrittenOff(*some, decision, charged_least + left),
                                        std::memory_order_relaxed);
        } else {
          decision.charged = counted.empty() ? Decision::kUnset : 0;
        }
      }
      decision.rule = static_cast<uint16_t>(kept[decision.rule]);
    }
    return decision;
  };
  return Finished(finish, std::move(done), [&](Store::Done then) {
    return store_->SubmitReserved(op, charges, some, std::move(then));
  });
}

std::unique_ptr<RuleLimiter::Held> RuleLimiter::Hold(const Request& request,
                                                     const Decision* hit) const {
  return std::make_unique<Held>(*this, request, hit == nullptr ? store_->NowNs() : hit->at_ns);
}

RuleLimiter::Held::Held(const RuleLimiter& limiter, const Request& request, int64_t at_ns)
    : limiter_(limiter) {
  limiter.Charges(request, 1, 1, at_ns, Load::kNone, &charged_);
  size_t bytes = 0;
  for (const Charge& charge : charged_.charges) bytes += charge.key.size();
  keys_.reserve(bytes);
  for (Charge& charge : charged_.charges) {
    const size_t at = keys_.size();
    keys_ += charge.key;
    charge.key = std::string_view(keys_).substr(at);
  }
}

void RuleLimiter::Held::SetCosts(int64_t cost, Of of) {
  const int64_t units = UnitsOf(charged_.matched, cost, of);
  for (size_t i = 0; i < charged_.charges.size(); ++i) {
    const bool is_one = limiter_.rules_->rules()[charged_.rules[i]].counts_requests;
    charged_.charges[i].cost = is_one ? 1 : units;
  }
}

Reservation RuleLimiter::Held::ReservationOf(int64_t cost, const Decision& hit,
                                             absl::Span<const Decision> outcomes) {
  SetCosts(cost, Of::kRequest);
  return RuleLimiter::ReservationOf(charged_, hit, outcomes);
}

absl::StatusOr<Decision> RuleLimiter::Held::Call(Op op, std::optional<int64_t> cost,
                                                 Reservation* reservation) {
  SetCosts(cost.value_or(0), op == Op::kReserve ? Of::kRequest : Of::kUsed);
  // The caller owns it, beyond this call.
  const std::shared_ptr<Reservation> shared(std::shared_ptr<void>(), reservation);
  const auto answer = limiter_.SubmitReserved(op, !cost.has_value(), &charged_, shared, nullptr);
  if (!answer.ok()) return answer.status();
  return **answer;
}

void RuleLimiter::Held::Record(Reservation* reservation) const {
  if (!charged_.charges.empty()) {
    limiter_.store_->store().KeepRecords(charged_.charges, *reservation, limiter_.store_->NowNs());
  }
  reservation->unrecorded = false;
}

}  // namespace tidegate
