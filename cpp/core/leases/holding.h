// The node's part of leases: the units of one key that this process may spend without asking.
//
// A lease ends on this node's clock, counted from before its question was sent. The centre decided
// later than that, so no clocks need to agree: they need only run at the same rate for one lease,
// of which a fiftieth is left as a margin.
//
// The next question reports the units that were spent to the centre, which lifts the cap on the
// bucket early (centre.h). The node forgets what it reports before it sends the question: a report
// that is lost on the way is lost, and never counts twice.
//
// Pure functions of instants that the caller reads from one clock. Thread-compatible.
#ifndef TIDEGATE_SRC_LEASES_HOLDING_H_
#define TIDEGATE_SRC_LEASES_HOLDING_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "leases/centre.h"

namespace tidegate::leases {

struct Lease {
  int64_t tokens = 0;   // that may be spent before end_ns
  int64_t spent = 0;    // and not reported to the centre yet
  int64_t end_ns = 0;   // by the node's clock; 0: there is no lease
  int64_t slot_ns = 0;  // the centre's slot
};

struct Question {
  uint64_t number = 0;  // 0: none was asked
  int64_t asked_ns = 0;
  int64_t want = 0;
  int64_t length_ns = 0;  // of the lease that it asks for
  std::array<Report, 2> reports;
};

// What the centre granted: units of a slot for `length_ns` from when it was asked.
struct Granted {
  int64_t tokens = 0;
  int64_t slot_ns = 0;
  int64_t length_ns = 0;
};

// The mechanism: safe whatever its user wants, keeps and spends.
class Holding {
 public:
  // The lease, in place, that ends first, and the one that follows it.
  const std::array<Lease, 2>& leases() const { return leases_; }
  // Whether a question is under way.
  bool asks() const { return asking_ != 0; }
  // The units that may be spent at `now_ns`.
  int64_t Held(int64_t now_ns) const;
  // Whether a lease ended before all of its units were used.
  bool HasLeftover(int64_t now_ns) const;
  // When the last lease ends; 0 if there is none.
  int64_t EndNs() const;

  // Spends `cost` units of one lease, if it has them at `now_ns`.
  bool Take(int64_t now_ns, int64_t cost);
  // Takes back units that were spent. Fails once they were reported as spent, or their lease is
  // over: then they must go back at the centre.
  bool PutBack(int64_t now_ns, int64_t units);

  // Begins a question at `now_ns`, before it is sent. Of a lease that has at most `ending_ns` left
  // all units but `keep` are given back, and all of the first one if there are two, since a grant
  // needs a place.
  Question Ask(int64_t now_ns, int64_t want, int64_t keep, int64_t ending_ns);
  // The answer to the question. Returns whether what was granted may be spent; it may not if the
  // question was given up meanwhile.
  bool Hear(const Question& question, const Granted& granted);
  // The question has no answer: its reports and its grant are lost.
  void Lose(const Question& question);
  // The same for whatever question is under way.
  void Forget() { asking_ = 0; }
  // Forgets all leases, and returns what to tell the centre.
  std::array<Report, 2> GiveUp();

 private:
  // Moves units between these counts of the first lease that has so many; false if none has.
  bool Move(int64_t now_ns, int64_t units, int64_t Lease::*from, int64_t Lease::*to);
  // Empties places of leases of which nothing is left.
  void Clean(int64_t now_ns);

  std::array<Lease, 2> leases_;
  uint64_t asking_ = 0;
  uint64_t asked_ = 0;
};

// The calls for a key, as an average over about one lease.
class Demand {
 public:
  // Returns whether it is time to look at InOneLease() again.
  bool Count(int64_t now_ns, int64_t units, int64_t length_ns);
  // Units in one lease.
  double InOneLease(int64_t now_ns, int64_t length_ns) const;
  // The same, however short the time since the first calls.
  double Guess(int64_t now_ns, int64_t length_ns) const;
  // Whether calls have come for a lease by now, without a pause of two.
  bool IsSteady(int64_t now_ns, int64_t length_ns) const { return now_ns - begun_ns_ >= length_ns; }

 private:
  // Makes the calls since since_ns_ part of the average.
  void Roll(int64_t now_ns, int64_t length_ns);

  int64_t since_ns_ = 0;
  int64_t recent_ = 0;  // units since since_ns_
  double average_ = 0;  // units a lease
  int64_t begun_ns_ = 0;
};

// The policy of one key: when to ask, for how much, and when to refuse without asking.
class Keeper {
 public:
  enum class Course : uint8_t {
    kSpent,        // a lease had the units
    kSpentAndAsk,  // the same, and it is time to ask for more
    kRefused,      // wait until hold_ns()
    kAsk,          // ask for the call and for those after it
    kStrict,       // the call alone
  };

  explicit Keeper(int64_t length_ns);

  int64_t length_ns() const { return length_ns_; }
  const Holding& holding() const { return holding_; }
  // Until when a call is refused, and those of what cost.
  int64_t hold_ns() const { return hold_ns_; }
  int64_t hold_cost() const { return hold_cost_; }

  Course Hit(int64_t now_ns, int64_t cost);
  // The same if leases or a refusal decide it; else kStrict, and nothing has changed.
  Course TryHit(int64_t now_ns, int64_t cost);
  // A hit that neither leases nor a refusal decide: kAsk or kStrict. Also asks to give back what is
  // left of a lease that has ended.
  Course Miss(int64_t now_ns, int64_t cost);
  // A hit of which the centre decides although a lease may have the units, since it also decides of
  // other limits: kAsk if it is time to ask for more, else kStrict.
  Course Beside(int64_t now_ns, int64_t cost);
  // What would decide a hit without a question: kSpent, kRefused or kStrict. Changes nothing.
  Course Peek(int64_t now_ns, int64_t cost) const;
  bool PutBack(int64_t now_ns, int64_t units) { return holding_.PutBack(now_ns, units); }
  // Spends what was put back just now.
  bool TakeAgain(int64_t now_ns, int64_t units) { return holding_.Take(now_ns, units); }

  // The question after kAsk or kSpentAndAsk.
  Question Ask(int64_t now_ns);
  struct Heard {
    Granted granted;
    bool allowed = true;         // the call that the question was for
    int64_t cost = 0;            // of that call
    int64_t wait_ns = 0;         // if it was refused
    int64_t room = 0;            // that the centre has left, units
    int64_t burst = 0;           // of the limit
    uint32_t random = 1u << 31;  // any number, so that nodes do not ask at one time
  };
  // Like Holding::Hear().
  bool Hear(const Question& question, int64_t now_ns, const Heard& heard);
  void Lose(const Question& question, int64_t now_ns);
  // The last question, whose call is gone.
  void Forget() { holding_.Forget(); }
  // A call that was refused without a question.
  void Refuse(int64_t now_ns, int64_t cost, int64_t wait_ns);
  // The key was reset: what was known of the centre is out of date. Leases stay.
  void Reset() { hold_ns_ = hold_cost_ = 0; }
  std::array<Report, 2> GiveUp() { return holding_.GiveUp(); }

 private:
  // How long a lease the next question asks for, and of how many units.
  int64_t Length(int64_t now_ns) const;
  int64_t Want(int64_t now_ns) const;
  int64_t Ending() const;
  // The shortest of the last trips. One that took long says little: this process or the centre may
  // have stood still. Calls that ask the centre because of it would make the next ones as long.
  int64_t ShortestTrip() const { return *std::min_element(trips_.begin(), trips_.end()); }
  // Whether trips take so much of a lease that the next one is to be twice as long.
  bool IsDistant() const { return ShortestTrip() > length_ns_ / 2; }
  // Whether even of such a lease next to nothing is left when it comes.
  bool IsFar() const { return ShortestTrip() > length_ns_ + length_ns_ / 2; }
  void Count(int64_t now_ns, int64_t cost);
  bool MayAsk(int64_t now_ns) const;
  // Whether the leases run out soon.
  bool IsLow(int64_t now_ns) const;
  void SetLowWater(int64_t now_ns);
  void HoldUntil(int64_t ns);

  // In the order in which a hit of a lease needs them.
  Holding holding_;
  int64_t next_ask_ns_ = 0;
  int64_t low_water_ = 2;  // the units that calls may want meanwhile
  int64_t length_ns_;
  int64_t ending_ns_ = 0;  // how long before its end a lease is followed by another
  Demand demand_;
  int64_t hold_ns_ = 0;
  int64_t hold_cost_ = 0;
  bool is_long_ = false;            // the last question asked for a lease of twice the length
  bool is_dry_ = false;             // the centre had next to nothing left
  bool is_full_ = false;            // it had most of its units left
  bool is_rich_ = false;            // it had enough for many leases like this one
  int64_t trip_ns_ = 0;             // how long a question takes, an average
  std::array<int64_t, 3> trips_{};  // the last ones; 0: none yet
  size_t oldest_trip_ = 0;
  int64_t far_until_ns_ = 0;  // if they are too long, when to ask again
};

// ------------------------------------------------------------------ what every hit of a lease runs

inline int64_t Holding::Held(int64_t now_ns) const {
  int64_t held = 0;
  for (const Lease& lease : leases_) held += now_ns < lease.end_ns ? lease.tokens : 0;
  return held;
}

__attribute__((always_inline)) inline bool Holding::Move(int64_t now_ns, int64_t units,
                                                         int64_t Lease::*from, int64_t Lease::*to) {
  for (Lease& lease : leases_) {
    if (now_ns >= lease.end_ns || lease.*from < units) continue;
    lease.*from -= units;
    lease.*to += units;
    return true;
  }
  return false;
}

inline bool Holding::Take(int64_t now_ns, int64_t cost) {
  return Move(now_ns, cost, &Lease::tokens, &Lease::spent);
}

inline bool Demand::Count(int64_t now_ns, int64_t units, int64_t length_ns) {
  const bool is_over = now_ns - since_ns_ >= length_ns / 4;
  if (is_over) [[unlikely]]
    Roll(now_ns, length_ns);
  recent_ += units;
  return is_over || (recent_ & (recent_ - 1)) == 0;
}

inline void Keeper::Count(int64_t now_ns, int64_t cost) {
  if (demand_.Count(now_ns, cost, length_ns_)) SetLowWater(now_ns);
}

inline bool Keeper::IsLow(int64_t now_ns) const {
  const auto& [first, second] = holding_.leases();
  const auto is_live = [&](const Lease& each) { return now_ns < each.end_ns && each.tokens > 0; };
  if (is_live(first) && is_live(second)) return false;
  const int64_t end_ns = is_live(first) ? first.end_ns : second.end_ns;
  const bool ends = end_ns - now_ns < ending_ns_;
  return ends || first.tokens + second.tokens < low_water_;
}

__attribute__((always_inline)) inline Keeper::Course Keeper::TryHit(int64_t now_ns, int64_t cost) {
  if (holding_.Take(now_ns, cost)) {
    Count(now_ns, cost);
    if (holding_.asks() || now_ns < next_ask_ns_ || !IsLow(now_ns)) return Course::kSpent;
    return Want(now_ns) > 0 ? Course::kSpentAndAsk : Course::kSpent;
  }
  if (now_ns >= hold_ns_ || cost < hold_cost_) return Course::kStrict;
  Count(now_ns, cost);
  return Course::kRefused;
}

}  // namespace tidegate::leases

#endif  // TIDEGATE_SRC_LEASES_HOLDING_H_
