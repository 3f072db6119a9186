#include "leases/holding.h"

#include <algorithm>
#include <cmath>

namespace tidegate::leases {

bool Holding::HasLeftover(int64_t now_ns) const {
  return std::any_of(leases_.begin(), leases_.end(), [&](const Lease& lease) {
    return lease.end_ns != 0 && lease.end_ns <= now_ns && lease.tokens > 0;
  });
}

int64_t Holding::EndNs() const { return std::max(leases_[0].end_ns, leases_[1].end_ns); }

bool Holding::PutBack(int64_t now_ns, int64_t units) {
  return Move(now_ns, units, &Lease::spent, &Lease::tokens);
}

void Holding::Clean(int64_t now_ns) {
  for (Lease& lease : leases_) {
    if (lease.end_ns <= now_ns || lease.tokens == 0) lease = {};
  }
  if (leases_[0].end_ns == 0) std::swap(leases_[0], leases_[1]);
}

Question Holding::Ask(int64_t now_ns, int64_t want, int64_t keep, int64_t ending_ns) {
  Question question;
  question.number = asking_ = ++asked_;
  question.asked_ns = now_ns;
  const bool has_both = leases_[0].end_ns != 0 && leases_[1].end_ns != 0;
  for (size_t i = 0; i < leases_.size(); ++i) {
    Lease& lease = leases_[i];
    if (lease.end_ns == 0) continue;
    Report& report = question.reports[i];
    report = {lease.slot_ns, lease.spent, 0};
    lease.spent = 0;
    const int64_t left_ns = lease.end_ns - now_ns;
    const bool is_over = left_ns <= 0 || (i == 0 && has_both && want > 0);
    if (is_over || left_ns <= ending_ns) {
      report.given = std::max<int64_t>(lease.tokens - (is_over ? 0 : keep), 0);
      lease.tokens -= report.given;
    }
  }
  Clean(now_ns);
  question.want = leases_[1].end_ns == 0 ? want : 0;
  return question;
}

bool Holding::Hear(const Question& question, const Granted& granted) {
  if (question.number != asking_) return false;
  asking_ = 0;
  if (granted.tokens <= 0) return true;
  Lease& place = leases_[0].end_ns == 0 ? leases_[0] : leases_[1];
  if (place.end_ns != 0) return false;
  place = {granted.tokens, 0, question.asked_ns + granted.length_ns - granted.length_ns / 50,
           granted.slot_ns};
  return true;
}

void Holding::Lose(const Question& question) {
  if (question.number == asking_) asking_ = 0;
}

std::array<Report, 2> Holding::GiveUp() {
  std::array<Report, 2> reports;
  for (size_t i = 0; i < leases_.size(); ++i) {
    if (leases_[i].end_ns != 0) {
      reports[i] = {leases_[i].slot_ns, leases_[i].spent, leases_[i].tokens};
    }
    leases_[i] = {};
  }
  asking_ = 0;
  return reports;
}

void Demand::Roll(int64_t now_ns, int64_t length_ns) {
  const int64_t passed = now_ns - since_ns_;
  const double lease = static_cast<double>(length_ns);
  const double share = std::min(static_cast<double>(passed) / lease, 1.0);
  const double rate = static_cast<double>(recent_) * lease / static_cast<double>(passed);
  average_ += share * (rate - average_);
  if (passed >= 2 * length_ns) begun_ns_ = now_ns;
  recent_ = 0;
  since_ns_ = now_ns;
}

double Demand::InOneLease(int64_t now_ns, int64_t length_ns) const {
  const int64_t passed = std::max(now_ns - since_ns_, length_ns / 4);
  // A key that has just become hot has no average yet. One call says nothing of others.
  const double now = static_cast<double>(recent_ - 1) * static_cast<double>(length_ns) /
                     static_cast<double>(passed);
  return std::max(average_, now);
}

double Demand::Guess(int64_t now_ns, int64_t length_ns) const {
  const double passed = static_cast<double>(std::max<int64_t>(now_ns - since_ns_, 1));
  const double now = static_cast<double>(recent_ - 1) * static_cast<double>(length_ns) / passed;
  return std::max(average_, now);
}

namespace {

// A node asks for the units that it expects to spend in one lease: for this share of them, but for
// all and so many standard deviations more if the key is full, or if the centre has room for
// kManyLeases such leases, which is enough for many nodes.
constexpr double kWantedShare = 0.9;
constexpr double kDeviationsIfFull = 2;
constexpr double kDeviationsIfRich = 1;
constexpr double kManyLeases = 16;
// A node that was granted next to nothing asks again after this share of a quarter of a lease, and
// up to one quarter more.
constexpr double kDryPause = 0.6;
// A node asks for the next lease this share of a lease before the end of the last one: later if the
// key is full or the centre rich, since then a late answer costs little.
constexpr double kLateEnding = 0.06;
constexpr double kEarlyEnding = 0.15;
// It asks at least this many round trips before the end, but not before half of the lease: the
// answer then comes in time even if it takes twice as long as most, and even if no call asks for a
// while.
constexpr int64_t kEndingTrips = 3;
// A lease is twice as long from when a node expects to spend fewer than kFewCalls units in it until
// it expects kManyCalls.
constexpr double kFewCalls = 8;
constexpr double kManyCalls = 16;
// The share of a lease that is left when the answer of a centre comes that is just far enough to be
// called distant.
constexpr double kLeftOfDistant = 0.75;
// While answers come too late for leases, a node asks once in so many leases whether they still do.
constexpr int64_t kFarLeases = 5;
// Leasing fewer units costs more than it saves.
constexpr double kLeastDemand = 2;

int64_t Scaled(int64_t ns, double by) { return static_cast<int64_t>(static_cast<double>(ns) * by); }

}  // namespace

Keeper::Keeper(int64_t length_ns) : length_ns_(length_ns) { ending_ns_ = Ending(); }

void Keeper::SetLowWater(int64_t now_ns) {
  const double meanwhile = demand_.InOneLease(now_ns, length_ns_) * static_cast<double>(trip_ns_) /
                           static_cast<double>(length_ns_);
  const double units = 2 * meanwhile + 3 * std::sqrt(meanwhile) + 2;
  low_water_ = static_cast<int64_t>(std::min(units, 1e15));
}

int64_t Keeper::Length(int64_t now_ns) const {
  const double demand = demand_.IsSteady(now_ns, length_ns_)
                            ? demand_.InOneLease(now_ns, length_ns_)
                            : demand_.Guess(now_ns, length_ns_);
  return IsDistant() || demand < (is_long_ ? kManyCalls : kFewCalls) ? 2 * length_ns_ : length_ns_;
}

int64_t Keeper::Want(int64_t now_ns) const {
  // Little is lost by asking whether that is over, and nothing else would tell.
  if (IsFar()) return now_ns < far_until_ns_ ? 0 : static_cast<int64_t>(kLeastDemand);
  double demand = demand_.InOneLease(now_ns, length_ns_);
  if (Length(now_ns) > length_ns_) demand *= 2;
  if (demand < kLeastDemand) return 0;
  const double most = 1LL << 40;  // as much as a value has room for
  // Calls come by chance; where there are enough units, a lease has some for more than usual.
  const double deviation = std::sqrt(demand);
  const double want = is_full_   ? demand + kDeviationsIfFull * deviation
                      : is_rich_ ? demand + kDeviationsIfRich * deviation
                                 : kWantedShare * demand;
  // Where trips take a quarter of a lease, all of it; then the less the longer they take.
  const double left = 1 - static_cast<double>(ShortestTrip()) / static_cast<double>(2 * length_ns_);
  const double used = IsDistant() ? left / kLeftOfDistant : 1;
  return static_cast<int64_t>(std::ceil(std::min(used * want, most)));
}

int64_t Keeper::Ending() const {
  const int64_t least = Scaled(length_ns_, is_full_ || is_rich_ ? kLateEnding : kEarlyEnding);
  return std::max(least, std::min(kEndingTrips * trip_ns_, length_ns_ / 2));
}

Keeper::Course Keeper::Hit(int64_t now_ns, int64_t cost) {
  const Course course = TryHit(now_ns, cost);
  return course == Course::kStrict ? Miss(now_ns, cost) : course;
}

Keeper::Course Keeper::Miss(int64_t now_ns, int64_t cost) {
  Count(now_ns, cost);
  return MayAsk(now_ns) ? Course::kAsk : Course::kStrict;
}

Keeper::Course Keeper::Beside(int64_t now_ns, int64_t cost) {
  if (Peek(now_ns, cost) != Course::kSpent) return Miss(now_ns, cost);
  Count(now_ns, cost);
  return IsLow(now_ns) && MayAsk(now_ns) ? Course::kAsk : Course::kStrict;
}

bool Keeper::MayAsk(int64_t now_ns) const {
  return !holding_.asks() && now_ns >= next_ask_ns_ &&
         (Want(now_ns) > 0 || holding_.HasLeftover(now_ns));
}

Keeper::Course Keeper::Peek(int64_t now_ns, int64_t cost) const {
  for (const Lease& lease : holding_.leases()) {
    if (now_ns < lease.end_ns && lease.tokens >= cost) return Course::kSpent;
  }
  return now_ns < hold_ns_ && cost >= hold_cost_ ? Course::kRefused : Course::kStrict;
}

Question Keeper::Ask(int64_t now_ns) {
  // Calls that come before the answer would find as little.
  if (is_dry_) HoldUntil(now_ns + std::clamp(ShortestTrip(), length_ns_ / 8, length_ns_ / 2));
  Question question = holding_.Ask(now_ns, Want(now_ns), low_water_, ending_ns_);
  question.length_ns = Length(now_ns);
  is_long_ = question.length_ns > length_ns_;
  return question;
}

bool Keeper::Hear(const Question& question, int64_t now_ns, const Heard& heard) {
  const bool took = holding_.Hear(question, heard.granted);
  const int64_t trip = std::max<int64_t>(now_ns - question.asked_ns, 0);
  const bool was_far = IsFar();
  trips_[oldest_trip_] = trip;
  oldest_trip_ = (oldest_trip_ + 1) % trips_.size();
  const bool is_near_again = was_far && !IsFar();
  trip_ns_ = trip_ns_ == 0 || is_near_again ? trip : trip_ns_ + (trip - trip_ns_) / 4;
  if (IsFar()) far_until_ns_ = now_ns + kFarLeases * length_ns_;
  SetLowWater(now_ns);
  is_full_ = heard.allowed && heard.room > heard.burst - heard.burst / 4;
  is_rich_ = heard.allowed &&
             static_cast<double>(heard.room) > kManyLeases * demand_.InOneLease(now_ns, length_ns_);
  ending_ns_ = Ending();
  const int64_t quarter = length_ns_ / 4;
  const double random = static_cast<double>(heard.random) / 4294967296.0;
  if (!heard.allowed) {
    is_dry_ = heard.room < heard.burst / 8;
    Refuse(now_ns, heard.cost, std::max(heard.wait_ns, Scaled(quarter, random)));
    return took;
  }
  // As long as the centre has room to speak of, it is better to ask again than to refuse.
  is_dry_ = heard.granted.tokens < question.want / 2 && heard.room < heard.burst / 8;
  if (is_dry_) {
    next_ask_ns_ = question.asked_ns + Scaled(quarter, kDryPause + random);
    HoldUntil(next_ask_ns_);
  } else if (heard.granted.tokens > 0) {
    Reset();
  }
  return took;
}

void Keeper::HoldUntil(int64_t ns) {
  hold_ns_ = std::max(hold_ns_, ns);
  hold_cost_ = 1;
}

void Keeper::Refuse(int64_t now_ns, int64_t cost, int64_t wait_ns) {
  // While fewer units are refused, that stays known.
  if (now_ns < hold_ns_ && hold_cost_ <= cost) return;
  hold_ns_ = now_ns + wait_ns;
  hold_cost_ = cost;
}

void Keeper::Lose(const Question& question, int64_t now_ns) {
  holding_.Lose(question);
  next_ask_ns_ = now_ns + length_ns_ / 4;
}

}  // namespace tidegate::leases
