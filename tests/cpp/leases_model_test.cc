// A model checker of leases: every order of questions, grants, lost and late answers, spending, put
// back and given back units, strict calls, slots, expiry of the key and steps of the server's
// clock, for a few nodes and units, by the functions that the store runs.
//
// Time runs in ticks of one unit. Beside the centre there is a strict bucket, which every admitted
// unit is taken from when it is spent. It never goes below 0 if and only if no interval has more
// admissions than burst + rate * interval. A node that crashes is one that does nothing more.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "gtest/gtest.h"
#include "leases/centre.h"
#include "leases/holding.h"
#include "leases_message.h"
#include "state_space.h"

namespace tidegate::leases {
namespace {

constexpr int64_t kTick = 1000;
constexpr int64_t kFirst = 1000 * kTick;  // so that no slot is named 0
constexpr size_t kNodes = 3;
constexpr size_t kMessages = 2;

// What is done wrong, to see that the checker notices it.
enum class Flaw : uint8_t {
  kNone,
  kEndFromReply,         // a lease counts from its reply, and not from before its question
  kNoCap,                // a bucket refills while units are out
  kReportsBeforeRefill,  // a report lifts the cap for the time before it
  kLateGiveBack,         // units of a slot that is over are given back
  kOneSlot,              // units count as out until the end of their slot only
  kRefundAfterReport,    // a unit that was told as spent is put back
  kLifeOfLevel,          // the key expires when its level does
  kShortSlots,           // slots stay as they are when a longer lease is granted
};

struct Config {
  int64_t burst = 3;
  int64_t length = 3;     // of a lease, ticks
  bool has_long = false;  // there are leases of twice that, too
  size_t nodes = 2;
  size_t messages = 1;  // on their way at once
  int64_t step = 0;     // of the server's clock, once: ticks
  int64_t allowed = 0;  // how far the strict bucket may go below 0
  bool puts_back = true;
  Flaw flaw = Flaw::kNone;
};

struct State {
  int64_t now = kFirst;       // of the nodes
  int64_t centre = kFirst;    // the server's TIME
  int64_t level_at = kFirst;  // TIME at which `level` was written
  Level level;
  int64_t life = 0;    // of the key
  int64_t strict = 0;  // units of the strict bucket
  bool stepped = false;
  std::array<Holding, kNodes> nodes;
  std::array<uint64_t, kNodes> asking{};  // the question that a node waits for
  std::array<int64_t, kNodes> told{};     // units told as spent of the first lease
  std::array<Message, kMessages> messages;
};

class Checker {
 public:
  explicit Checker(const Config& config)
      : config_(config),
        terms_{.token = kTick, .burst = config.burst, .denominator = 1, .tolerance_ns = kTick / 2} {
  }

  // Returns the least level of the strict bucket.
  int64_t Run() {
    State state;
    state.strict = config_.burst;
    Visit(state);
    while (worst_ >= -config_.allowed && states_.Take(&state)) Expand(state);
    return worst_;
  }
  size_t states() const { return states_.size(); }

 private:
  void Visit(const State& state) { states_.Add(state, Digest(state)); }

  // ------------------------------------------------------------------ the centre

  Level Read(const State& state) const {
    Level level = state.life > 0 ? state.level : Level();
    const int64_t passed = state.centre - state.level_at;
    level.ahead = std::max<Parts>(level.ahead - passed, 0);
    return level;
  }

  void Settle(int64_t now, Level* level) const {
    const Parts ahead = level->ahead;
    if (config_.flaw == Flaw::kOneSlot) {
      Slots& slots = level->slots;
      if (slots.length_ns != 0 && now >= slots.end_ns) {
        level->ahead = std::max(ahead, Parts(slots.end_ns - now) + slots.out() * terms_.token);
        slots = {};
      }
      return Cap(terms_, level);
    }
    leases::Settle(terms_, now, level);
    if (config_.flaw == Flaw::kNoCap) level->ahead = ahead;
  }

  void Write(const Level& level, State* state) const {
    state->level = level;
    state->level_at = state->centre;
    const Parts life =
        config_.flaw == Flaw::kLifeOfLevel ? level.ahead : Life(terms_, state->centre, level);
    state->life = static_cast<int64_t>(life);
  }

  void HearReports(const Message& message, Level* level) const {
    for (const Report& report : message.question.reports) {
      if (report.slot_ns == 0) continue;
      const Slots before = level->slots;
      Hear(terms_, report, level);
      const bool known =
          before.length_ns != 0 &&
          (report.slot_ns == before.end_ns || report.slot_ns == before.end_ns - before.length_ns);
      if (config_.flaw == Flaw::kLateGiveBack && !known) {
        const int64_t most = std::max<int64_t>(config_.burst - level->slots.out(), 0);
        level->ahead -= std::min(report.given, most) * terms_.token;
        level->ahead = std::max<Parts>(level->ahead, 0);
      }
    }
  }

  // ---------------------------------------------------------------------- events

  void Expand(const State& state) {
    Tick(state);
    Step(state);
    for (const int64_t cost : {int64_t{1}, config_.burst}) Strict(state, cost);
    for (size_t i = 0; i < config_.nodes; ++i) {
      Spend(state, i);
      if (config_.puts_back) PutBack(state, i);
      Ask(state, i);
      GiveUp(state, i);
    }
    for (size_t i = 0; i < config_.messages; ++i) {
      const Message& message = state.messages[i];
      if (message.stage == Message::Stage::kNone) continue;
      State next = state;
      next.messages[i] = {};
      Visit(next);  // lost
      message.stage == Message::Stage::kQuestion ? Arrive(state, i) : HearReply(state, i);
    }
  }

  void Tick(State next) {
    next.now += kTick;
    next.centre += kTick;
    next.life -= kTick;
    next.strict = std::min(next.strict + 1, config_.burst);
    Visit(next);
  }

  void Step(State next) {
    if (config_.step == 0 || next.stepped) return;
    next.stepped = true;
    next.centre += config_.step * kTick;
    if (config_.step > 0) next.life -= config_.step * kTick;
    Visit(next);
  }

  void Admit(int64_t units, State* state) {
    state->strict -= units;
    worst_ = std::min(worst_, state->strict);
  }

  void Strict(State next, int64_t cost) {
    Level level = Read(next);
    Settle(next.centre, &level);
    if (Room(terms_, level) < cost) return;  // a refusal writes nothing
    ChargeUnits(terms_, cost, &level);
    Write(level, &next);
    Admit(cost, &next);
    Visit(next);
  }

  void Spend(State next, size_t i) {
    if (!next.nodes[i].Take(next.now, 1)) return;
    Admit(1, &next);
    Visit(next);
  }

  // A refund: the admission is undone.
  void PutBack(State next, size_t i) {
    if (config_.flaw == Flaw::kRefundAfterReport && next.told[i] > 0) {
      auto& lease = const_cast<Lease&>(next.nodes[i].leases()[0]);
      if (next.now < lease.end_ns && lease.spent == 0) {
        ++lease.tokens;
        --next.told[i];
        next.strict = std::min(next.strict + 1, config_.burst);
        return Visit(next);
      }
    }
    if (!next.nodes[i].PutBack(next.now, 1)) return;
    next.strict = std::min(next.strict + 1, config_.burst);
    Visit(next);
  }

  // Whether there is room for one more message, and where.
  bool FindPlace(const State& state, size_t* place) const {
    for (size_t i = 0; i < config_.messages; ++i) {
      if (state.messages[i].stage == Message::Stage::kNone) return *place = i, true;
    }
    return false;
  }

  void Ask(const State& state, size_t i) {
    size_t place = 0;
    if (!FindPlace(state, &place)) return;
    // A question that had no answer in time is given up for the next.
    State asked = state;
    if (asked.nodes[i].asks()) {
      Question unanswered;
      unanswered.number = asked.asking[i];
      asked.nodes[i].Lose(unanswered);
    }
    for (const int64_t want : {int64_t{1}, config_.burst}) {
      for (const auto& [ending, length] : EndingsAndLengths()) {
        State next = asked;
        if (config_.flaw == Flaw::kRefundAfterReport) {
          next.told[i] = next.nodes[i].leases()[0].spent;
        }
        Question question = next.nodes[i].Ask(next.now, want, 0, ending);
        question.length_ns = length;
        next.asking[i] = question.number;
        next.messages[place] = {Message::Stage::kQuestion, i, question, {}};
        Visit(next);
      }
    }
  }

  // What a question may give back, by when a lease ends, and how long a lease it asks for.
  std::vector<std::pair<int64_t, int64_t>> EndingsAndLengths() const {
    const int64_t length = config_.length * kTick;
    if (!config_.has_long) return {{0, length}, {length, length}};
    return {{0, length}, {2 * length, length}, {0, 2 * length}, {2 * length, 2 * length}};
  }

  // Its leases go back with a message that nobody waits for.
  void GiveUp(State next, size_t i) {
    size_t place = 0;
    if (!FindPlace(next, &place) || next.nodes[i].EndNs() == 0) return;
    Message& message = next.messages[place];
    message = {Message::Stage::kQuestion, i, {}, {}};
    message.question.reports = next.nodes[i].GiveUp();
    next.asking[i] = 0;
    Visit(next);
  }

  void Arrive(State next, size_t i) {
    Message& message = next.messages[i];
    Level level = Read(next);
    if (config_.flaw == Flaw::kReportsBeforeRefill) HearReports(message, &level);
    Settle(next.centre, &level);
    if (config_.flaw != Flaw::kReportsBeforeRefill) HearReports(message, &level);
    const int64_t length = message.question.length_ns;
    const bool is_short = config_.flaw == Flaw::kShortSlots && level.slots.out() > 0;
    const int64_t units = leases::Grant(terms_, next.centre, message.question.want,
                                        is_short ? level.slots.length_ns : length, &level);
    Write(level, &next);
    message.granted = {units, level.slots.end_ns, length};
    message.stage = Message::Stage::kReply;
    if (message.question.number == 0) message = {};
    Visit(next);
  }

  void HearReply(State next, size_t i) {
    Message& message = next.messages[i];
    if (config_.flaw == Flaw::kEndFromReply) message.question.asked_ns = next.now;
    if (message.question.number == next.asking[message.node]) next.asking[message.node] = 0;
    next.nodes[message.node].Hear(message.question, message.granted);
    message = {};
    Visit(next);
  }

  // ------------------------------------------------------------- states that are equal

  class Text {
   public:
    void Add(int64_t number) { text_ += static_cast<char>(std::clamp<int64_t>(number, -100, 100)); }
    void Add(const std::string& text) { text_ += text; }
    const std::string& get() const { return text_; }

   private:
    std::string text_;
  };

  // A slot by its distance from now, in half ticks. Those that nothing counts any more are equal.
  int64_t SlotOf(const State& state, int64_t slot_ns) const {
    const int64_t since = state.centre - slot_ns;
    const int64_t longest = config_.length * (config_.has_long ? 2 : 1);
    const bool is_over = slot_ns == 0 || since > (2 * longest + 1) * kTick;
    return is_over ? -100 : -since * 2 / kTick;
  }
  void AddReport(const State& state, const Report& report, Text* text) const {
    const int64_t slot = SlotOf(state, report.slot_ns);
    text->Add(slot);
    // Late ones matter only if that is done wrong.
    const bool matters = slot != -100 || config_.flaw == Flaw::kLateGiveBack;
    text->Add(matters ? report.spent : 0);
    text->Add(matters ? report.given : 0);
  }
  int64_t Left(const State& state, int64_t end_ns) const {
    return std::max<int64_t>((end_ns - state.now + kTick - 1) / kTick, 0);
  }

  using Key = std::pair<uint64_t, uint64_t>;
  Key Digest(const State& state) const {
    Text text;
    const Level level = Read(state);
    text.Add(static_cast<int64_t>(level.ahead) * 2 / kTick);
    text.Add(std::max<int64_t>(state.life, 0) / kTick);
    text.Add(level.slots.out() == 0 ? -100 : SlotOf(state, level.slots.end_ns));
    if (config_.has_long) text.Add(level.slots.length_ns / kTick);
    text.Add(level.slots.current);
    text.Add(level.slots.previous);
    text.Add(state.strict);
    text.Add(state.stepped);
    std::array<std::string, kNodes> nodes;
    for (size_t i = 0; i < config_.nodes; ++i) {
      Text node;
      node.Add(state.nodes[i].asks());
      node.Add(state.told[i]);
      for (const Lease& lease : state.nodes[i].leases()) {
        const int64_t left = Left(state, lease.end_ns);
        AddReport(state, {lease.slot_ns, lease.spent, lease.tokens}, &node);
        node.Add(lease.end_ns != 0);
        node.Add(left);
        node.Add(left > 0 ? lease.tokens : 0);
        node.Add(left > 0 ? lease.spent : 0);
      }
      std::array<std::string, kMessages> messages;
      for (size_t j = 0; j < config_.messages; ++j) {
        const Message& message = state.messages[j];
        if (message.stage == Message::Stage::kNone || message.node != i) continue;
        Text each;
        each.Add(static_cast<int64_t>(message.stage));
        each.Add(message.question.number == state.asking[i] && state.asking[i] != 0);
        each.Add(message.question.number != 0);
        // When a lease that is granted now or later will end.
        each.Add(Left(state, message.question.asked_ns + message.question.length_ns));
        if (message.stage == Message::Stage::kQuestion) {
          each.Add(message.question.want);
          for (const Report& report : message.question.reports) AddReport(state, report, &each);
        } else {
          each.Add(message.granted.tokens);
          each.Add(SlotOf(state, message.granted.slot_ns));
        }
        messages[j] = each.get();
      }
      std::sort(messages.begin(), messages.end());
      for (const std::string& message : messages) node.Add(message + "|");
      nodes[i] = node.get();
    }
    std::sort(nodes.begin(), nodes.end());
    for (const std::string& node : nodes) text.Add(node + "/");
    const XXH128_hash_t hash = XXH3_128bits(text.get().data(), text.get().size());
    return {hash.low64, hash.high64};
  }

  const Config config_;
  const Terms terms_;
  int64_t worst_ = 1000;
  StateSpace<State, Key> states_;
};

int64_t Worst(const Config& config) {
  Checker checker(config);
  const int64_t worst = checker.Run();
  ::testing::Test::RecordProperty("states", static_cast<int>(checker.states()));
  std::printf("  %zu states, at worst %d\n", checker.states(), static_cast<int>(worst));
  return worst;
}

TEST(LeasesModelTest, NoScheduleOfTwoNodesAdmitsMoreThanTheStrictBucket) {
  EXPECT_EQ(Worst({.burst = 2, .length = 2, .nodes = 2, .messages = 1}), 0);
  EXPECT_EQ(Worst({.burst = 3, .length = 3, .nodes = 2, .messages = 1, .puts_back = false}), 0);
}

TEST(LeasesModelTest, NoScheduleOfThreeNodesDoes) {
  EXPECT_EQ(Worst({.burst = 2, .length = 2, .nodes = 3, .messages = 1, .puts_back = false}), 0);
}

TEST(LeasesModelTest, NorOneWithLateQuestionsAndAnswers) {
  EXPECT_EQ(Worst({.burst = 2, .length = 2, .nodes = 1, .messages = 2}), 0);
}

TEST(LeasesModelTest, NorOneOfFourUnits) {
  EXPECT_EQ(Worst({.burst = 4, .length = 3, .nodes = 1, .messages = 1}), 0);
}

TEST(LeasesModelTest, NorOneOfLeasesOfTwoLengths) {
  EXPECT_EQ(Worst({.burst = 2, .length = 1, .has_long = true, .puts_back = false}), 0);
  EXPECT_EQ(Worst({.burst = 3, .length = 2, .has_long = true, .nodes = 1}), 0);
}

class LeasesStepTest : public ::testing::TestWithParam<int> {};
TEST_P(LeasesStepTest, AStepForwardOfTheServersClockAdmitsNoMoreThanItRefills) {
  const int64_t step = GetParam();
  const Config config{.burst = 2, .length = 2, .nodes = 1, .messages = 1, .step = step};
  Config open = config;
  open.allowed = std::min<int64_t>(step, config.burst);
  EXPECT_EQ(Worst(open), -open.allowed);
}
INSTANTIATE_TEST_SUITE_P(Ticks, LeasesStepTest, ::testing::Values(1, 2, 3, 5));

class LeasesStepBackTest : public ::testing::TestWithParam<int> {};
TEST_P(LeasesStepBackTest, AStepBackAdmitsNoMore) {
  EXPECT_EQ(Worst({.burst = 2, .length = 2, .nodes = 1, .messages = 1, .step = GetParam()}), 0);
}
INSTANTIATE_TEST_SUITE_P(Ticks, LeasesStepBackTest, ::testing::Values(-1, -2, -5));

// Each of these mistakes was made once, in a design that ordinary load found nothing wrong with.
class LeasesFlawTest : public ::testing::TestWithParam<Flaw> {};
TEST_P(LeasesFlawTest, IsNoticed) {
  const Flaw flaw = GetParam();
  Config config{.burst = 3, .length = 3, .flaw = flaw};
  // Just as much as it takes, since there are many states before the one that shows it.
  if (flaw == Flaw::kEndFromReply) config.burst = 2;
  if (flaw == Flaw::kOneSlot) config.nodes = 1;
  if (flaw == Flaw::kShortSlots)
    config = {.burst = 3, .length = 3, .has_long = true, .nodes = 1, .flaw = flaw};
  config.puts_back = flaw == Flaw::kRefundAfterReport;
  EXPECT_LT(Worst(config), 0);
}
INSTANTIATE_TEST_SUITE_P(Mistakes, LeasesFlawTest,
                         ::testing::Values(Flaw::kEndFromReply, Flaw::kNoCap,
                                           Flaw::kReportsBeforeRefill, Flaw::kLateGiveBack,
                                           Flaw::kOneSlot, Flaw::kRefundAfterReport,
                                           Flaw::kLifeOfLevel, Flaw::kShortSlots));

}  // namespace
}  // namespace tidegate::leases
