#include "leases/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/time_units.h"
#include "leases/clock.h"
#include "tidegate/step.h"

namespace tidegate::leases {
namespace {

constexpr int64_t kLeastBurst = 20;
constexpr int64_t kMostBurst = int64_t{1} << 40;  // what a value has room for, with a reserve
constexpr int64_t kLeastUnits = 2;                // in one lease
// A question without an answer for so long was lost with its call.
constexpr int64_t kForgottenNs = 2'000'000'000;
// So many sets are looked through at once, and so often at most.
constexpr size_t kSweptSets = 64;
constexpr int64_t kSweepNs = 2'000'000;
// As long as a refusal holds at most: units may come back, as those that others hold of a window.
constexpr int64_t kLongestHoldNs = 1'000'000'000;

// Why no limit of the algorithm is leased; empty if limits are.
std::string_view WhyStrict(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kTokenBucket:
    case Algorithm::kFixedWindow:
    case Algorithm::kSlidingWindow:
      return "";
    case Algorithm::kLeakyBucket:
      // The bucket stays as full as what is out, so the queue would be that long.
      return "the calls of all processes wait in one queue, which leases would lengthen";
    case Algorithm::kSlidingLog:
      return "a log keeps the instant of each call";
    case Algorithm::kConcurrency:
      return "each place is given back by itself";
    case Algorithm::kQuota:
      return "units of a process that died would stay charged until the period ends";
  }
  return "its algorithm is not leased";
}

}  // namespace

std::shared_ptr<const Leasing> Leasing::Of(const BoundLimit& bound, int64_t longest_ns,
                                           std::string* why) {
  const Limit& limit = bound.limit;
  const auto strict = [&](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return nullptr;
  };
  const bool is_window = IsWindow(limit.algorithm());
  if (const std::string_view reason = WhyStrict(limit.algorithm()); !reason.empty()) {
    return strict(std::string(reason));
  }
  if (limit.shadow()) return strict("a limit in shadow is not leased");
  if (limit.spec().oversize_owes) {
    return strict("costs beyond its capacity pass when no unit is out, so it is not leased");
  }
  if (limit.capacity() < kLeastBurst || limit.capacity() > kMostBurst) {
    return strict(absl::StrCat("its ", is_window ? "count" : "burst", " is ", limit.capacity(),
                               "; expected ", kLeastBurst, " to ", kMostBurst));
  }
  if (is_window) {
    if (limit.period_ns() % kMicrosecondNs != 0) {
      return strict("its window is no whole number of microseconds");
    }
    const Terms terms{.token = limit.period_ns(), .burst = limit.count(), .denominator = 1};
    const int64_t length = std::min(longest_ns, limit.period_ns() / 4);
    return std::make_shared<Leasing>(
        Leasing{bound, terms, length / kMicrosecondNs * kMicrosecondNs});
  }
  const int64_t length =
      std::min(longest_ns, limit.depth_ns() / 4) / kMicrosecondNs * kMicrosecondNs;
  const Interval least = CostInterval(limit, kLeastUnits);
  if (length < least.ns + (least.fraction != 0)) {
    return strict(absl::StrCat("a lease of ", length / kMicrosecondNs, " us has less than ",
                               kLeastUnits, " of its units"));
  }
  auto leasing = std::make_shared<Leasing>(Leasing{bound, Terms::Of(limit), length});
  return leasing;
}

namespace {

// As UsageOf(), of numbers of either width.
template <typename Number>
Leasing::Usage UsageIn(Number depth, Number token, Number denominator, Number ahead_ns, Number held,
                       Number refused_cost) {
  const Number least = refused_cost == 0 ? 0 : depth - (refused_cost - 1) * token;
  const Number used = std::clamp<Number>(ahead_ns * denominator - held * token,
                                         std::max<Number>(least, 0), std::max<Number>(depth, 0));
  if (denominator == 1) return {static_cast<int64_t>(used), 0};
  return {static_cast<int64_t>(used / denominator), static_cast<int64_t>(used % denominator)};
}

}  // namespace

Leasing::Usage Leasing::UsageOf(int64_t ahead_ns, int64_t held, int64_t refused_cost) const {
  if (narrow_depth == 0) {
    return UsageIn<Parts>(terms.depth(), terms.token, terms.denominator, ahead_ns, held,
                          refused_cost);
  }
  return UsageIn<int64_t>(narrow_depth, static_cast<int64_t>(terms.token), terms.denominator,
                          std::min(ahead_ns, most_ahead_ns), std::min(held, terms.burst),
                          refused_cost);
}

bool Table::WasSeen(const Fingerprint& print, int64_t now_ns, int64_t length_ns) {
  constexpr int kTick = 20;  // about a millisecond
  constexpr uint64_t kTag = 0xffffffff00000000;
  const uint64_t tag = print.hi & kTag;
  const auto now = static_cast<uint32_t>(now_ns >> kTick);
  const size_t first = (print.lo >> 16) % (kSightings / kSightingWays) * kSightingWays;
  std::atomic<uint64_t>* oldest = nullptr;
  uint32_t longest = 0;
  for (size_t i = first; i < first + kSightingWays; ++i) {
    const uint64_t before = sightings_[i].load(std::memory_order_relaxed);
    const uint32_t passed = now - static_cast<uint32_t>(before);
    if ((before & kTag) == tag) {
      sightings_[i].store(tag | now, std::memory_order_relaxed);
      return passed <= static_cast<uint32_t>(length_ns >> kTick);
    }
    if (oldest == nullptr || passed > longest) {
      oldest = &sightings_[i];
      longest = passed;
    }
  }
  // What another thread sees meanwhile may be lost, which costs a lease a call.
  oldest->store(tag | now, std::memory_order_relaxed);
  return false;
}

Table::Entry* Table::PlaceOf(Set& set, const Fingerprint& print) {
  for (size_t i = 0, at = HomeOf(print); i < kWays; ++i, at = (at + 1) % kWays) {
    if (set.prints[at] == print && set.entries[at].leasing != nullptr) return &set.entries[at];
  }
  return nullptr;
}

Table::Entry* Table::Find(Set& set, const Charge& charge, const Fingerprint& print,
                          int64_t now_ns) {
  Entry* const entry = PlaceOf(set, print);
  return entry == nullptr ? nullptr : Own(set, *entry, charge, now_ns);
}

Table::Entry* Table::Own(Set& set, Entry& entry, const Charge& charge, int64_t now_ns) {
  const Leasing& own = *charge.limit->leasing;
  const Leasing& known = *entry.leasing;
  if (&own != &known) [[unlikely]] {
    const bool same =
        own.terms.token == known.terms.token && own.terms.burst == known.terms.burst &&
        own.terms.denominator == known.terms.denominator && own.length_ns == known.length_ns;
    if (!same) {
      // Another number of the limit's id: its grants are not this one's to spend.
      GiveUp(set, entry);
      return nullptr;
    }
  }
  entry.last_ns = now_ns;
  return &entry;
}

Table::Entry* Table::Enter(Set& set, const Charge& charge, const Fingerprint& print,
                           int64_t now_ns) {
  const size_t home = HomeOf(print);
  Entry* place = &set.entries[home];
  for (size_t i = 0; i < kWays; ++i) {
    Entry& entry = set.entries[(home + i) % kWays];
    if (entry.leasing == nullptr) {
      place = &entry;
      break;
    }
    if (entry.last_ns < place->last_ns) place = &entry;
  }
  if (place->leasing != nullptr) GiveUp(set, *place);
  place->leasing = charge.limit->leasing;
  set.print_of(*place) = print;
  place->key = std::string(charge.key);
  place->keeper.emplace(place->leasing->length_ns);
  place->last_ns = now_ns;
  // The hit before this one.
  (void)place->keeper->Hit(now_ns, 1);
  return place;
}

void Table::GiveUp(Set& set, Entry& entry) {
  TellLater(entry.leasing, set.print_of(entry), entry.key, entry.keeper->GiveUp());
  set.print_of(entry) = {};
  entry = Entry();
}

void Table::TellLater(std::shared_ptr<const Leasing> leasing, const Fingerprint& print,
                      const std::string& key, const std::array<Report, 2>& reports) {
  int64_t given = 0;
  for (const Report& report : reports) given += report.given;
  if (given == 0) return;
  auto asking = std::make_shared<Asking>();
  asking->leasing = std::move(leasing);
  asking->print = print;
  asking->key = key;
  asking->question.reports = reports;
  asking->asks = false;
  given_back_.fetch_add(given, std::memory_order_relaxed);
  absl::MutexLock lock(&given_up_mu_);
  given_up_.push_back(std::move(asking));
  has_given_up_.store(true, std::memory_order_relaxed);
}

void Table::Sweep() {
  const int64_t now_ns = LeaseNowNs();
  int64_t due_ns = next_sweep_ns_.load(std::memory_order_relaxed);
  if (now_ns < due_ns || !next_sweep_ns_.compare_exchange_strong(due_ns, now_ns + kSweepNs)) return;
  const size_t first = swept_.fetch_add(kSweptSets, std::memory_order_relaxed);
  for (size_t i = first; i < first + kSweptSets; ++i) {
    Set& set = sets_[i % kSets];
    const SetLock lock(set.lock);
    for (Entry& entry : set.entries) {
      // Units of a bucket come back by themselves; those of a window would be lost until it ends.
      if (entry.leasing == nullptr || !entry.leasing->is_window) continue;
      const Holding& holding = entry.keeper->holding();
      if (holding.asks() || holding.EndNs() == 0 || now_ns < holding.EndNs()) continue;
      TellLater(entry.leasing, set.print_of(entry), entry.key, entry.keeper->GiveUp());
    }
  }
}

std::shared_ptr<const Asking> Table::Begin(const Fingerprint& print, Entry& entry, int64_t now_ns) {
  auto asking = std::make_shared<Asking>();
  asking->leasing = entry.leasing;
  asking->print = print;
  asking->key = entry.key;
  asking->question = entry.keeper->Ask(now_ns);
  entry.asked_ns = now_ns;
  questions_.fetch_add(1, std::memory_order_relaxed);
  for (const Report& report : asking->question.reports) {
    given_back_.fetch_add(report.given, std::memory_order_relaxed);
  }
  return asking;
}

namespace {

// The time until a bucket with this usage has room for the cost, which is no more than its burst.
int64_t WaitOf(const Charge& charge, const Leasing::Usage& used) {
  const Limit& limit = charge.limit->limit;
  const Interval cost = charge.cost == 1 ? Interval{limit.step_ns(), limit.step_fraction()}
                                         : CostInterval(limit, charge.cost);
  const int64_t beyond = used.fraction + cost.fraction - limit.depth_fraction();
  return used.ns + cost.ns - limit.depth_ns() + (beyond > 0) + (beyond > limit.denominator());
}

}  // namespace

void Table::Decide(const Charge& charge, const Entry& entry, int64_t now_ns, bool allowed,
                   Decision* decision) {
  const Leasing& leasing = *entry.leasing;
  if (leasing.is_window) [[unlikely]] {
    return DecideWindow(charge, entry, now_ns, allowed, decision);
  }
  const int64_t passed = now_ns - entry.heard_ns;
  // What the others have used since is not known.
  const Leasing::Usage used =
      leasing.UsageOf(std::max<int64_t>(entry.known_ns - passed, 0),
                      entry.keeper->holding().Held(now_ns), allowed ? 0 : charge.cost);
  decision->allowed = allowed;
  decision->leased = true;
  decision->limit = &charge.limit->limit;
  decision->used_ns = used.ns;
  decision->used_fraction = used.fraction;
  decision->reset_after_ns = decision->used_ns + (decision->used_fraction != 0);
  decision->retry_after_ns =
      allowed ? 0 : std::max(entry.keeper->hold_ns() - now_ns, WaitOf(charge, used));
  decision->at_ns = entry.server_ns + passed;
}

void Table::DecideWindow(const Charge& charge, const Entry& entry, int64_t now_ns, bool allowed,
                         Decision* decision) {
  const Limit& limit = charge.limit->limit;
  const int64_t held = entry.keeper->holding().Held(now_ns);
  const int64_t at_ns = entry.server_ns + (now_ns - entry.heard_ns);
  Decision d = tidegate::Peek(limit, WithoutHeld(limit, entry.cell, held), at_ns, charge.cost);
  d.allowed = allowed;
  d.behind = false;
  d.leased = true;
  d.at_ns = at_ns;
  d.used_units = std::min(d.used_units, limit.count());
  if (allowed) {
    d.retry_after_ns = 0;
  } else {
    // Calls are refused as if the room beyond this were taken.
    d.used_units = std::max(d.used_units, limit.count() - charge.cost + 1);
    d.retry_after_ns = std::max(d.retry_after_ns, entry.keeper->hold_ns() - now_ns);
    d.reset_after_ns = std::max(d.reset_after_ns, d.retry_after_ns);
  }
  *decision = d;
}

Table::Answer Table::Hit(const Charge& charge, const Fingerprint& print, Decision* decision,
                         std::shared_ptr<const Asking>* asking) {
  Set& set = SetOf(print);
  // All that a hit needs at once: with many keys nothing of it is near.
  __builtin_prefetch(&set.prints[HomeOf(print)]);
  set.entries[HomeOf(print)].Prefetch();
  const SetLock lock(set.lock);
  Entry* entry = PlaceOf(set, print);
  // Read under the lock, after which no other call changes the lease.
  int64_t now_ns = LeaseClock::NowNs();
  // The processor may have read the counter before it had the lock.
  if (entry != nullptr && now_ns < entry->leased_ns) [[unlikely]]
    now_ns = LeaseNowNs();
  NoteSweep(now_ns);
  if (entry != nullptr) entry = Own(set, *entry, charge, now_ns);
  if (entry == nullptr || entry->heard_ns == 0 || IsBeyond(charge)) return Answer::kUnknown;
  const Keeper::Course done = entry->keeper->TryHit(now_ns, charge.cost);
  if (done == Keeper::Course::kStrict) return Answer::kUnknown;
  const bool allowed = done != Keeper::Course::kRefused;
  new (decision) Decision();
  Decide(charge, *entry, now_ns, allowed, decision);
  ++set.decided;
  if (allowed) set.spent += charge.cost;
  if (done == Keeper::Course::kSpentAndAsk) [[unlikely]]
    *asking = Begin(print, *entry, LeaseNowNs());
  return Answer::kDecided;
}

bool Table::Spend(const Charge& charge, const Fingerprint& print, int64_t now_ns,
                  std::shared_ptr<const Asking>* asking) {
  Set& set = SetOf(print);
  const SetLock lock(set.lock);
  Entry* const entry = PlaceOf(set, print);
  // A lease that came after the reading was not there at that instant.
  if (entry == nullptr || entry->leasing != charge.limit->leasing || entry->leased_ns > now_ns ||
      entry->keeper->Peek(now_ns, charge.cost) != Keeper::Course::kSpent) {
    return false;
  }
  const Keeper::Course done = entry->keeper->TryHit(now_ns, charge.cost);
  entry->last_ns = std::max(entry->last_ns, now_ns);
  ++set.decided;
  set.spent += charge.cost;
  if (done == Keeper::Course::kSpentAndAsk) [[unlikely]]
    *asking = Begin(print, *entry, now_ns);
  return true;
}

std::shared_ptr<const Asking> Table::Ask(const Charge& charge, const Fingerprint& print) {
  return AskFor(charge, print, &Keeper::Miss);
}

std::shared_ptr<const Asking> Table::AskFor(const Charge& charge, const Fingerprint& print,
                                            Keeper::Course (Keeper::*count)(int64_t, int64_t)) {
  if (charge.key.size() > kLongestKey || IsBeyond(charge)) return nullptr;
  Set& set = SetOf(print);
  const SetLock lock(set.lock);
  const int64_t now_ns = LeaseNowNs();
  Entry* entry = Find(set, charge, print, now_ns);
  if (entry == nullptr) {
    if (!WasSeen(print, now_ns, charge.limit->leasing->length_ns)) return nullptr;
    entry = Enter(set, charge, print, now_ns);
  }
  Keeper& keeper = *entry->keeper;
  if (keeper.holding().asks() && now_ns - entry->asked_ns > kForgottenNs) keeper.Forget();
  // The units of a call that a lease has by now are spent at the centre all the same.
  if ((keeper.*count)(now_ns, charge.cost) == Keeper::Course::kAsk)
    return Begin(print, *entry, now_ns);
  return entry->heard_ns == 0 ? nullptr : Alone(print, *entry);
}

std::shared_ptr<const Asking> Table::Alone(const Fingerprint& print, const Entry& entry) {
  auto alone = std::make_shared<Asking>();
  alone->leasing = entry.leasing;
  alone->print = print;
  alone->asks = false;
  return alone;
}

bool Table::Peek(const Charge& charge, const Fingerprint& print, Decision* decision) {
  Set& set = SetOf(print);
  const SetLock lock(set.lock);
  const int64_t now_ns = LeaseNowNs();
  Entry* const entry = Find(set, charge, print, now_ns);
  if (entry == nullptr || entry->heard_ns == 0 || IsBeyond(charge)) return false;
  const Keeper::Course course = entry->keeper->Peek(now_ns, charge.cost);
  if (course == Keeper::Course::kStrict) return false;
  new (decision) Decision();
  Decide(charge, *entry, now_ns, course != Keeper::Course::kRefused, decision);
  return true;
}

bool Table::PutBack(const Charge& charge, const Fingerprint& print) {
  Set& set = SetOf(print);
  const SetLock lock(set.lock);
  const int64_t now_ns = LeaseNowNs();
  Entry* const entry = Find(set, charge, print, now_ns);
  if (entry == nullptr || !entry->keeper->PutBack(now_ns, charge.cost)) return false;
  set.spent -= charge.cost;
  return true;
}

void Table::Reset(const Fingerprint& print) {
  Set& set = SetOf(print);
  const SetLock lock(set.lock);
  if (Entry* const entry = PlaceOf(set, print); entry != nullptr) entry->keeper->Reset();
}

void Table::Hear(const Asking& asking, const Heard& heard) {
  Set& set = SetOf(asking.print);
  const SetLock lock(set.lock);
  const int64_t now_ns = LeaseNowNs();
  granted_.fetch_add(heard.granted, std::memory_order_relaxed);
  const int64_t slot_ns =
      heard.window.has_value() ? heard.window->end_ns : heard.level.slots.end_ns;
  const auto give_back = [&] {
    TellLater(asking.leasing, asking.print, asking.key, {Report{slot_ns, 0, heard.granted}});
  };
  Entry* const place = PlaceOf(set, asking.print);
  if (place == nullptr || place->leasing != asking.leasing) return give_back();
  Entry& entry = *place;
  const Terms& terms = entry.leasing->terms;
  // A call that asked for nothing may have come later and be answered sooner, by another thread.
  const int64_t late_ns = entry.server_ns - heard.now_ns;
  if (late_ns <= 0 || late_ns > kForgottenNs) {
    entry.heard_ns = now_ns;
    entry.server_ns = heard.now_ns;
    entry.known_ns =
        static_cast<int64_t>((heard.level.ahead + terms.denominator - 1) / terms.denominator);
    if (heard.window.has_value()) entry.cell = heard.window->cell;
  }
  if (!asking.asks) return;
  entry.leased_ns = now_ns;
  Keeper::Heard answer;
  if (heard.window.has_value()) {
    const int64_t left_ns = heard.window->end_ns - heard.now_ns;
    answer.granted = {heard.granted, slot_ns, std::min(asking.question.length_ns, left_ns)};
  } else {
    answer.granted = {heard.granted, slot_ns, asking.question.length_ns};
  }
  answer.allowed = heard.allowed;
  answer.cost = heard.cost;
  // Others may give units back or reset the key, and a limit may change.
  answer.wait_ns = std::min(heard.wait_ns, std::max(kLongestHoldNs, entry.leasing->length_ns));
  answer.room = heard.window.has_value() ? heard.window->room : Room(terms, heard.level);
  answer.burst = terms.burst;
  answer.random = static_cast<uint32_t>(
      (static_cast<uint64_t>(now_ns) ^ asking.print.lo) * 0x9e3779b97f4a7c15 >> 32);
  if (!entry.keeper->Hear(asking.question, now_ns, answer)) give_back();
}

void Table::Lose(const Asking& asking) {
  if (!asking.asks) return;
  Set& set = SetOf(asking.print);
  const SetLock lock(set.lock);
  Entry* const entry = PlaceOf(set, asking.print);
  if (entry == nullptr || entry->leasing != asking.leasing) return;
  entry->keeper->Lose(asking.question, LeaseNowNs());
}

int64_t Table::HeldFor(const Charge& charge, const Fingerprint& print) {
  Set& set = SetOf(print);
  const SetLock lock(set.lock);
  const Entry* const entry = PlaceOf(set, print);
  if (entry == nullptr || charge.cost < entry->keeper->hold_cost()) return 0;
  return std::max<int64_t>(entry->keeper->hold_ns() - LeaseNowNs(), 0);
}

std::vector<std::shared_ptr<const Asking>> Table::TakeGivenUp() {
  Sweep();
  absl::MutexLock lock(&given_up_mu_);
  has_given_up_.store(false, std::memory_order_relaxed);
  return std::exchange(given_up_, {});
}

std::vector<std::shared_ptr<const Asking>> Table::GiveUpAll() {
  for (Set& set : absl::MakeSpan(sets_.get(), kSets)) {
    const SetLock lock(set.lock);
    for (Entry& entry : set.entries) {
      if (entry.leasing != nullptr) GiveUp(set, entry);
    }
  }
  return TakeGivenUp();
}

void Table::AddTo(StoreStats* stats) {
  stats->lease_questions = questions_.load();
  const int64_t spent = AddSetsTo(stats);
  // What other threads do meanwhile makes the difference inexact, but it never falls.
  const int64_t over = granted_.load() - spent - given_back_.load() - stats->held_units;
  int64_t wasted = wasted_.load();
  while (wasted < over && !wasted_.compare_exchange_weak(wasted, over)) {
  }
  stats->wasted_units = std::max(wasted, over);
}

int64_t Table::AddSetsTo(StoreStats* stats) {
  const int64_t now_ns = LeaseNowNs();
  int64_t spent = 0;
  for (Set& set : absl::MakeSpan(sets_.get(), kSets)) {
    const SetLock lock(set.lock);
    stats->leased += set.decided;
    spent += set.spent;
    for (const Entry& entry : set.entries) {
      if (entry.leasing == nullptr) continue;
      const int64_t held = entry.keeper->holding().Held(now_ns);
      stats->held_units += held;
      stats->held_keys += held > 0;
      stats->dry_keys += held == 0 && now_ns < entry.keeper->hold_ns();
    }
  }
  return spent;
}

}  // namespace tidegate::leases
