// Leases of several limits at once: all or none.
#include <algorithm>
#include <new>

#include "leases/clock.h"
#include "leases/table.h"

namespace tidegate::leases {

// Always in the order of the table, so that no two callers wait for each other.
class Table::Locked {
 public:
  Locked(Table& table, absl::Span<const Fingerprint> prints) {
    for (const Fingerprint& print : prints) sets_.push_back(&table.SetOf(print));
    std::sort(sets_.begin(), sets_.end());
    sets_.erase(std::unique(sets_.begin(), sets_.end()), sets_.end());
    for (Set* const set : sets_) set->lock.lock();
  }
  ~Locked() {
    for (Set* const set : sets_) set->lock.unlock();
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  absl::InlinedVector<Set*, 4> sets_;
};

Table::Entries Table::Deciding(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints,
                               int64_t now_ns, bool* passes) {
  Entries entries;
  *passes = true;
  for (size_t i = 0; i < plan.size(); ++i) {
    Entry* const entry = Find(SetOf(prints[i]), plan[i], prints[i], now_ns);
    if (entry == nullptr || entry->heard_ns == 0 || IsBeyond(plan[i])) return {};
    const Keeper::Course course = entry->keeper->Peek(now_ns, plan[i].cost);
    if (course == Keeper::Course::kStrict) return {};
    *passes &= course == Keeper::Course::kSpent;
    entries.push_back(entry);
  }
  return entries;
}

void Table::DecideAll(absl::Span<const Charge> plan, const Entries& entries, int64_t now_ns,
                      bool passes, Decision* decision, Outcomes* outcomes) {
  PlanVerdict verdict;
  if (outcomes != nullptr) outcomes->clear();
  for (size_t i = 0; i < plan.size(); ++i) {
    const Keeper& keeper = *entries[i]->keeper;
    const bool allowed = passes || keeper.Peek(now_ns, plan[i].cost) != Keeper::Course::kRefused;
    Decision each;
    Decide(plan[i], *entries[i], now_ns, allowed, &each);
    verdict.Add(each, static_cast<uint32_t>(i));
    if (outcomes != nullptr) outcomes->push_back(each);
  }
  new (decision) Decision(verdict.get());
}

Table::Answer Table::HitAll(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints,
                            Decision* decision, Outcomes* outcomes, Askings* askings) {
  const Locked locked(*this, prints);
  Set& first = SetOf(prints[0]);  // counts it
  // Read under all locks: one instant for all limits.
  const int64_t now_ns = LeaseNowNs();
  NoteSweep(now_ns);
  bool passes = false;
  const Entries entries = Deciding(plan, prints, now_ns, &passes);
  if (entries.empty()) return Answer::kUnknown;
  if (!passes) {
    DecideAll(plan, entries, now_ns, passes, decision, outcomes);
    // Calls that another limit refuses need no units of this one.
    for (size_t i = 0; i < plan.size(); ++i) {
      Keeper& keeper = *entries[i]->keeper;
      if (keeper.Peek(now_ns, plan[i].cost) == Keeper::Course::kRefused) {
        (void)keeper.Hit(now_ns, plan[i].cost);
      }
    }
    ++first.decided;
    return Answer::kDecided;
  }
  absl::InlinedVector<Keeper::Course, 4> courses;
  for (size_t i = 0; i < plan.size(); ++i) {
    courses.push_back(entries[i]->keeper->Hit(now_ns, plan[i].cost));
    const bool is_spent =
        courses.back() == Keeper::Course::kSpent || courses.back() == Keeper::Course::kSpentAndAsk;
    if (is_spent) continue;
    // The plan has this key twice.
    for (size_t j = 0; j < i; ++j) (void)entries[j]->keeper->PutBack(now_ns, plan[j].cost);
    return Answer::kUnknown;
  }
  DecideAll(plan, entries, now_ns, passes, decision, outcomes);
  for (size_t i = 0; i < plan.size(); ++i) {
    SetOf(prints[i]).spent += plan[i].cost;
    if (courses[i] == Keeper::Course::kSpentAndAsk && !entries[i]->keeper->holding().asks()) {
      askings->push_back(Begin(prints[i], *entries[i], now_ns));
    }
  }
  ++first.decided;
  return Answer::kDecided;
}

bool Table::PeekAll(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints,
                    Decision* decision, Outcomes* outcomes) {
  const Locked locked(*this, prints);
  const int64_t now_ns = LeaseNowNs();
  bool passes = false;
  const Entries entries = Deciding(plan, prints, now_ns, &passes);
  if (entries.empty()) return false;
  DecideAll(plan, entries, now_ns, passes, decision, outcomes);
  return true;
}

bool Table::PutBackAll(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints) {
  const Locked locked(*this, prints);
  const int64_t now_ns = LeaseNowNs();
  Entries entries;
  for (size_t i = 0; i < plan.size(); ++i) {
    Entry* const entry = Find(SetOf(prints[i]), plan[i], prints[i], now_ns);
    if (entry != nullptr && entry->keeper->PutBack(now_ns, plan[i].cost)) {
      entries.push_back(entry);
      continue;
    }
    // Redis takes all back. What was put back just now has its lease still.
    for (size_t j = 0; j < entries.size(); ++j) {
      (void)entries[j]->keeper->TakeAgain(now_ns, plan[j].cost);
    }
    return false;
  }
  for (size_t i = 0; i < plan.size(); ++i) SetOf(prints[i]).spent -= plan[i].cost;
  return true;
}

Askings Table::AskAll(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints) {
  const bool all_leased = std::all_of(plan.begin(), plan.end(), [](const Charge& charge) {
    return charge.limit->leasing != nullptr;
  });
  Askings askings(plan.size());
  bool any = false;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (all_leased) {
      askings[i] = AskFor(plan[i], prints[i], &Keeper::Beside);
    } else if (plan[i].limit->leasing != nullptr) {
      askings[i] = AskNothing(plan[i], prints[i]);
    }
    any |= askings[i] != nullptr;
  }
  if (!any) askings.clear();
  return askings;
}

std::shared_ptr<const Asking> Table::AskNothing(const Charge& charge, const Fingerprint& print) {
  Set& set = SetOf(print);
  const SetLock lock(set.lock);
  const Entry* const entry = Find(set, charge, print, LeaseNowNs());
  return entry == nullptr || entry->heard_ns == 0 ? nullptr : Alone(print, *entry);
}

}  // namespace tidegate::leases
