// Simulates fleets that share a limit: leases, with the functions that nodes and scripts run,
// beside other mechanisms. Prints the table of docs/leases-simulation.md; the same seeds give the
// same figures. `simulate_leases [SECONDS]`
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "leases/centre.h"
#include "leases/holding.h"

namespace tidegate::leases {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecond = 1'000 * kMs;
constexpr int64_t kStart = 1'000 * kSecond;

// A fleet and its load. The burst is a second's worth.
struct Case {
  std::string name;
  int nodes = 8;
  double rate = 2'000;           // of the limit, of each key, units a second
  double load = 0.9;             // calls a second, of all keys together, over the limit's rate
  int64_t least_trip = kMs / 2;  // one way to the centre
  int64_t most_trip = kMs / 2;
  double first = 0;         // the share of the first node, if it is not that of the others
  double on = 1;            // the part of each second that has calls
  bool is_diurnal = false;  // the load goes from a tenth to nearly twice of it, and back
  bool is_parted = false;   // a third of the nodes does not reach the centre for the middle third
  int64_t lease = 200 * kMs;
  int keys = 1;         // by Zipf's law
  double capacity = 0;  // commands a second that the centre can execute; 0: any number
  int64_t stop = 0;     // how long the centre stands still once, after a quarter of the time
};

struct Call {
  int64_t at;
  int node;
  int key;
};

std::vector<Call> CallsOf(const Case& fleet, double seconds) {
  std::mt19937_64 random(7);
  const double rate = fleet.rate * fleet.load;
  std::exponential_distribution<double> gap(fleet.is_diurnal ? 2 * rate : rate);
  std::uniform_real_distribution<double> any(0, 1);
  // Sums of 1, 1/2, 1/3 ...
  std::vector<double> sums;
  for (int i = 1; i <= fleet.keys; ++i) sums.push_back((i == 1 ? 0 : sums.back()) + 1.0 / i);
  const auto key_of = [&] {
    const double place = any(random) * sums.back();
    return static_cast<int>(std::lower_bound(sums.begin(), sums.end(), place) - sums.begin());
  };
  std::vector<Call> calls;
  for (double passed = 0;;) {
    passed += gap(random);
    const double whole = std::floor(passed / fleet.on);
    const double at = whole + (passed - whole * fleet.on);
    if (at >= seconds) return calls;
    if (fleet.is_diurnal) {
      const double now = 0.5 - 0.45 * std::cos(2 * std::acos(-1.0) * at / seconds);
      if (any(random) > now) continue;
    }
    const int others = fleet.nodes - 1;
    const int node = fleet.first > 0
                         ? (any(random) < fleet.first ? 0 : 1 + static_cast<int>(random() % others))
                         : static_cast<int>(random() % fleet.nodes);
    calls.push_back(
        {kStart + static_cast<int64_t>(at * kSecond), node, fleet.keys == 1 ? 0 : key_of()});
  }
}

Terms TermsOf(const Case& fleet) {
  return {.token = static_cast<Parts>(kSecond / fleet.rate),
          .burst = static_cast<int64_t>(fleet.rate),
          .denominator = 1};
}

// One bucket, in doubles, for mechanisms that are not exact.
class Bucket {
 public:
  Bucket(double rate, double burst) : rate_(rate), burst_(burst), room_(burst) {}
  double RoomAt(int64_t now) {
    room_ = std::min(burst_, room_ + rate_ * static_cast<double>(now - at_) / kSecond);
    at_ = now;
    return room_;
  }
  void Take(double units) { room_ -= units; }
  void Set(int64_t now, double room) {
    at_ = now;
    room_ = room;
  }

 private:
  double rate_;
  double burst_;
  double room_;
  int64_t at_ = kStart;
};

// What came out, of all keys.
class Outcome {
 public:
  explicit Outcome(const Case& fleet) : fleet_(fleet) {}

  // The strict bucket, for the same calls.
  void Arrive(int64_t now, int key) {
    ++calls;
    Bucket& bucket = BucketOf(&strict_, key);
    if (bucket.RoomAt(now) >= 1) {
      bucket.Take(1);
      ++strict;
    }
  }
  void Admit(int64_t now, int key) {
    ++admitted;
    Bucket& bucket = BucketOf(&meters_, key);
    // Never above the burst, however far below 0: the lowest is what some interval has too much.
    most_over = std::max(most_over, 1 - bucket.RoomAt(now));
    bucket.Take(1);
  }
  int64_t calls = 0;
  int64_t strict = 0;
  int64_t admitted = 0;
  int64_t commands = 0;
  int64_t waited = 0;  // calls that asked the centre before their answer
  double most_over = 0;

 private:
  using Buckets = std::unordered_map<int, Bucket>;
  Bucket& BucketOf(Buckets* buckets, int key) {
    return buckets->try_emplace(key, fleet_.rate, fleet_.rate).first->second;
  }

  const Case& fleet_;
  Buckets strict_;
  Buckets meters_;
};

// What happens later.
class Agenda {
 public:
  void At(int64_t when, std::function<void()> what) {
    events_.push({when, count_++, std::move(what)});
  }
  int64_t now() const { return now_; }
  void RunUntil(int64_t when) {
    while (!events_.empty() && events_.top().when <= when) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.when;
      event.what();
    }
  }

 private:
  struct Event {
    int64_t when;
    int64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : number > other.number;
    }
  };
  std::priority_queue<Event> events_;
  int64_t count_ = 0;
  int64_t now_ = kStart;
};

// How a fleet decides. The instants are the centre's.
class Mechanism {
 public:
  Mechanism(const Case& fleet, double seconds, Agenda* agenda, Outcome* outcome)
      : fleet_(fleet), seconds_(seconds), agenda_(*agenda), outcome_(*outcome) {}
  virtual ~Mechanism() = default;
  virtual void Hit(const Call& call) = 0;

 protected:
  int64_t Trip() {
    const int64_t more = fleet_.most_trip - fleet_.least_trip;
    return fleet_.least_trip + (more == 0 ? 0 : static_cast<int64_t>(random_() % more));
  }
  bool Reaches(int node, int64_t now) const {
    const double part = static_cast<double>(now - kStart) / kSecond / seconds_;
    return !fleet_.is_parted || node % 3 != 0 || part < 1.0 / 3 || part > 2.0 / 3;
  }
  // The place of a node's key in a table.
  int64_t At(const Call& call) const { return int64_t{call.key} * fleet_.nodes + call.node; }
  void Decide(bool allowed, int64_t now, int key) {
    if (allowed) outcome_.Admit(now, key);
  }

  const Case& fleet_;
  const double seconds_;
  Agenda& agenda_;
  Outcome& outcome_;
  std::mt19937_64 random_{11};
};

// Leases; with `is_strict` each call asks.
class Leased final : public Mechanism {
 public:
  Leased(const Case& fleet, double seconds, Agenda* agenda, Outcome* outcome, bool is_strict)
      : Mechanism(fleet, seconds, agenda, outcome),
        terms_(TermsOf(fleet)),
        length_(std::min<int64_t>(fleet.lease, kSecond / 4)),
        is_strict_(is_strict) {
    // The clocks of nodes differ, by up to half a percent in their rate, too.
    for (int i = 0; i < fleet.nodes; ++i) {
      clocks_.push_back({static_cast<int64_t>(random_() % (100 * kSecond)),
                         0.995 + 0.01 * static_cast<double>(random_() % 1000) / 1000});
    }
  }

  void Hit(const Call& call) override {
    if (is_strict_) return Send(call, /*costs=*/true, std::nullopt);
    const int64_t now = NodeNow(call.node, call.at);
    Node& node = nodes_[At(call)];
    if (!node.keeper.has_value()) {
      // Its second call within a lease makes a key hot.
      const bool is_hot = node.seen != 0 && now - node.seen <= length_;
      node.seen = now;
      if (!is_hot) return Send(call, /*costs=*/true, std::nullopt);
      node.keeper.emplace(length_);
      (void)node.keeper->Hit(now, 1);
    }
    switch (node.keeper->Hit(now, 1)) {
      case Keeper::Course::kSpentAndAsk:
        Send(call, /*costs=*/false, node.keeper->Ask(now));
        [[fallthrough]];
      case Keeper::Course::kSpent:
        return Decide(true, call.at, call.key);
      case Keeper::Course::kRefused:
        return Decide(false, call.at, call.key);
      case Keeper::Course::kAsk:
        return Send(call, /*costs=*/true, node.keeper->Ask(now));
      case Keeper::Course::kStrict:
        return Send(call, /*costs=*/true, std::nullopt);
    }
  }

 private:
  struct Node {
    int64_t seen = 0;
    std::optional<Keeper> keeper;
  };
  struct Centre {
    Level level;
    int64_t at = kStart;
  };
  struct Clock {
    int64_t ahead;
    double rate;
  };

  int64_t NodeNow(int node, int64_t at) const {
    const Clock& clock = clocks_[static_cast<size_t>(node)];
    return kStart + clock.ahead +
           static_cast<int64_t>(clock.rate * static_cast<double>(at - kStart));
  }

  static constexpr int64_t kTimeout = 50 * kMs;

  // When the centre executes a command that comes at `at`.
  int64_t Executed(int64_t at) {
    const int64_t stops = kStart + static_cast<int64_t>(seconds_ / 4 * kSecond);
    if (at >= stops && at < stops + fleet_.stop) at = stops + fleet_.stop;
    if (fleet_.capacity == 0) return at;
    free_at_ = std::max(free_at_, at) + static_cast<int64_t>(kSecond / fleet_.capacity);
    return free_at_;
  }

  void Send(const Call& call, bool costs, std::optional<Question> question) {
    ++outcome_.commands;
    outcome_.waited += costs;
    if (Reaches(call.node, call.at)) {
      agenda_.At(Executed(call.at + Trip()),
                 [this, call, costs, question] { Answer(call, costs, question); });
      return;
    }
    // The deadline of a call. What then decides is for on_error to say; here it refuses.
    agenda_.At(call.at + kTimeout, [this, call, costs, question] {
      if (costs) Decide(false, agenda_.now(), call.key);
      if (question.has_value()) {
        nodes_[At(call)].keeper->Lose(*question, NodeNow(call.node, agenda_.now()));
      }
    });
  }

  void Answer(const Call& call, bool costs, const std::optional<Question>& question) {
    const int64_t at = agenda_.now();
    Centre& centre = centres_[call.key];
    Level& level = centre.level;
    level.ahead = std::max<Parts>(level.ahead - (at - centre.at), 0);
    centre.at = at;
    Settle(terms_, at, &level);
    Keeper::Heard heard;
    heard.cost = costs ? 1 : 0;
    if (question.has_value()) {
      for (const Report& report : question->reports) {
        if (report.slot_ns != 0) leases::Hear(terms_, report, &level);
      }
    }
    heard.allowed = Room(terms_, level) >= heard.cost;
    if (heard.allowed) {
      ChargeUnits(terms_, heard.cost, &level);
      if (question.has_value()) {
        heard.granted.tokens = Grant(terms_, at, question->want, question->length_ns, &level);
      }
    } else {
      heard.wait_ns = static_cast<int64_t>(Wait(terms_, at, level, heard.cost));
    }
    heard.room = Room(terms_, level);
    heard.burst = terms_.burst;
    heard.granted.slot_ns = level.slots.end_ns;
    heard.granted.length_ns = question.has_value() ? question->length_ns : 0;
    heard.random = static_cast<uint32_t>(random_());
    if (costs) Decide(heard.allowed, at, call.key);
    if (!question.has_value()) return;
    agenda_.At(at + Trip(), [this, call, question, heard] {
      nodes_[At(call)].keeper->Hear(*question, NodeNow(call.node, agenda_.now()), heard);
    });
  }

  const Terms terms_;
  const int64_t length_;
  const bool is_strict_;
  int64_t free_at_ = 0;  // when the centre has executed what it has
  std::vector<Clock> clocks_;
  std::unordered_map<int64_t, Node> nodes_;
  std::unordered_map<int, Centre> centres_;
};

// Each node decides by its copy of the bucket, and every `period` tells what it admitted and takes
// the bucket as it is then. With `is_pushed` the centre also sends it to all nodes, every `period`.
class Synchronised final : public Mechanism {
 public:
  Synchronised(const Case& fleet, double seconds, Agenda* agenda, Outcome* outcome, int64_t period,
               bool is_pushed)
      : Mechanism(fleet, seconds, agenda, outcome), period_(period), is_pushed_(is_pushed) {}

  void Hit(const Call& call) override {
    Copy& copy = copies_.try_emplace(At(call), fleet_.rate).first->second;
    const bool allowed = copy.bucket.RoomAt(call.at) >= 1;
    if (allowed) {
      copy.bucket.Take(1);
      ++copy.taken;
    }
    Decide(allowed, call.at, call.key);
    if (copy.is_due) return;
    copy.is_due = true;
    // The timers of nodes are not in step.
    agenda_.At(call.at + period_ - static_cast<int64_t>(random_() % (period_ / 10)),
               [this, call] { Tell(call.node, call.key); });
  }

 private:
  struct Copy {
    explicit Copy(double rate) : bucket(rate, rate) {}
    Bucket bucket;
    double taken = 0;
    bool is_due = false;
  };

  void Tell(int node, int key) {
    const int64_t now = agenda_.now();
    Copy& copy = copies_.at(At({now, node, key}));
    copy.is_due = false;
    ++outcome_.commands;
    if (!Reaches(node, now)) return;
    const double taken = std::exchange(copy.taken, 0);
    // The trips are short beside the period, and left out.
    Bucket& centre = centres_.try_emplace(key, fleet_.rate, fleet_.rate).first->second;
    const double room = centre.RoomAt(now) - taken;
    centre.Take(taken);
    copy.bucket.Set(now, room);
    if (!is_pushed_) return;
    for (auto& [whose, other] : copies_) {
      const auto [its_key, whose_node] = std::div(whose, int64_t{fleet_.nodes});
      if (its_key != key || whose_node == node) continue;
      if (!Reaches(static_cast<int>(whose_node), now)) continue;
      ++outcome_.commands;
      other.bucket.Set(now, room - other.taken);
    }
  }

  const int64_t period_;
  const bool is_pushed_;
  std::unordered_map<int64_t, Copy> copies_;
  std::unordered_map<int, Bucket> centres_;
};

// Each node has its part of the limit, and asks nobody.
class Shares final : public Mechanism {
 public:
  using Mechanism::Mechanism;
  void Hit(const Call& call) override {
    const double part = fleet_.rate / fleet_.nodes;
    Bucket& bucket = buckets_.try_emplace(At(call), part, part).first->second;
    const bool allowed = bucket.RoomAt(call.at) >= 1;
    if (allowed) bucket.Take(1);
    Decide(allowed, call.at, call.key);
  }

 private:
  std::unordered_map<int64_t, Bucket> buckets_;
};

using Make = std::function<std::unique_ptr<Mechanism>(const Case&, double, Agenda*, Outcome*)>;

std::vector<std::pair<std::string, Make>> Mechanisms() {
  const auto leased = [](bool is_strict) -> Make {
    return [=](const Case& fleet, double seconds, Agenda* agenda, Outcome* outcome) {
      return std::make_unique<Leased>(fleet, seconds, agenda, outcome, is_strict);
    };
  };
  const auto synchronised = [](int64_t period, bool is_pushed) -> Make {
    return [=](const Case& fleet, double seconds, Agenda* agenda, Outcome* outcome) {
      return std::make_unique<Synchronised>(fleet, seconds, agenda, outcome, period, is_pushed);
    };
  };
  const Make shares = [](const Case& fleet, double seconds, Agenda* agenda, Outcome* outcome) {
    return std::make_unique<Shares>(fleet, seconds, agenda, outcome);
  };
  return {{"strict", leased(true)},
          {"leased", leased(false)},
          {"synchronised, 1 s", synchronised(kSecond, false)},
          {"synchronised, 0.1 s", synchronised(100 * kMs, false)},
          {"pushed, 0.1 s", synchronised(100 * kMs, true)},
          {"fixed shares", shares}};
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](Case fleet) { cases.push_back(std::move(fleet)); };
  add({.name = "half of the limit", .load = 0.5});
  add({.name = "90 %"});
  add({.name = "1.1 times the limit", .load = 1.1});
  add({.name = "2 times", .load = 2});
  add({.name = "10 times", .load = 10});
  add({.name = "2 times, 90 % of it at one node", .load = 2, .first = 0.9});
  add({.name = "4 times for 0.25 s of each second", .load = 4, .on = 0.25});
  add({.name = "100 a second, 90 %", .rate = 100});
  add({.name = "90 %, trips of 0.5 to 50 ms", .least_trip = kMs / 2, .most_trip = 50 * kMs});
  add({.name = "90 %, trips of 60 ms", .least_trip = 60 * kMs, .most_trip = 60 * kMs});
  add({.name = "2 times, trips of 20 ms",
       .load = 2,
       .least_trip = 20 * kMs,
       .most_trip = 20 * kMs});
  add({.name = "90 %, a centre of 1,500 commands a second stops for 0.3 s",
       .capacity = 1'500,
       .stop = 300 * kMs});
  add({.name = "2 times, a third of the nodes cut off", .load = 2, .is_parted = true});
  add({.name = "load of a day, 0.2 to 1.8 times", .is_diurnal = true});
  add({.name = "64 nodes, 90 %", .nodes = 64});
  add({.name = "1,000 nodes, 20,000 a second, 90 %", .nodes = 1'000, .rate = 20'000});
  add({.name = "1,000 nodes, 20,000 a second, 2 times", .nodes = 1'000, .rate = 20'000, .load = 2});
  add({.name = "1,000,000 keys of 100 a second, 20,000 calls",
       .rate = 100,
       .load = 200,
       .keys = 1'000'000});
  return cases;
}

// Returns whether leases kept to the limits.
bool Run(double longest) {
  bool kept = true;
  std::printf(
      "| load | mechanism | commands a decision | admitted over strict | calls that wait | "
      "beyond the limit |\n|---|---|--:|--:|--:|--:|\n");
  for (const Case& fleet : Cases()) {
    const bool is_large = fleet.nodes > 64 || fleet.keys > 1;
    const double seconds = is_large ? longest / 4 : longest;
    const std::vector<Call> calls = CallsOf(fleet, seconds);
    bool is_first = true;
    for (const auto& [name, make] : Mechanisms()) {
      // One message to each node, for each change of each key.
      if (is_large && name.starts_with("pushed")) continue;
      Agenda agenda;
      Outcome outcome(fleet);
      const auto mechanism = make(fleet, seconds, &agenda, &outcome);
      for (const Call& call : calls) {
        agenda.RunUntil(call.at);
        outcome.Arrive(call.at, call.key);
        mechanism->Hit(call);
      }
      agenda.RunUntil(calls.back().at + 10 * kSecond);
      const auto count = static_cast<double>(outcome.calls);
      std::printf(
          "| %s | %s | %.4f | %.4f | %.2f %% | %s%.1f %% |\n", is_first ? fleet.name.c_str() : "",
          name.c_str(), static_cast<double>(outcome.commands) / count,
          static_cast<double>(outcome.admitted) / static_cast<double>(outcome.strict),
          100 * static_cast<double>(outcome.waited) / count, outcome.most_over < 0.5 ? "" : "+",
          100 * (outcome.most_over < 0.5 ? 0 : outcome.most_over) / fleet.rate);
      // The meter is in doubles.
      if (name == "strict" || name == "leased") kept = kept && outcome.most_over < 1e-3;
      std::fflush(stdout);
      is_first = false;
    }
  }
  return kept;
}

}  // namespace
}  // namespace tidegate::leases

int main(int argc, char** argv) {
  if (tidegate::leases::Run(argc > 1 ? std::atof(argv[1]) : 20)) return 0;
  std::fprintf(stderr, "leases admitted more than the limit allows\n");
  return 1;
}
