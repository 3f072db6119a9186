// A model checker of leases of windows, like leases_model_test.cc: every order of questions, lost
// and late answers, spending, put back and given back units, strict calls and ends of windows.
//
// Beside the centre the units that were really admitted are counted, window by window. What a
// strict window admits, it decides from those counts alone; so none may be admitted that it would
// refuse.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "leases/holding.h"
#include "leases/windows.h"
#include "leases_message.h"
#include "state_space.h"
#include "testing.h"

namespace tidegate::leases {
namespace {

constexpr int64_t kTick = 1000;
constexpr int64_t kPeriod = 3;  // ticks
constexpr int64_t kFirst = 1000 * kPeriod * kTick;
constexpr int64_t kUntil = kFirst + 7 * kTick;  // in the third window
constexpr size_t kNodes = 2;
constexpr int kShift = 32;  // of the current units of a sliding window

// What is done wrong, to see that the checker notices it.
enum class Flaw : uint8_t {
  kNone,
  kBeyondTheWindow,  // a lease does not end with its window
  kEndFromReply,     // a lease counts from its reply, and not from before its question
  kLateGiveBack,     // units of a window that is over are given back in the present one
};

struct Config {
  Algorithm algorithm = Algorithm::kFixedWindow;
  Flaw flaw = Flaw::kNone;
};

struct State {
  int64_t now = kFirst;
  CellState cell;        // of the key at the centre
  int64_t current = 0;   // units admitted in this window
  int64_t previous = 0;  // and in the one before
  std::array<Holding, kNodes> nodes;
  std::array<uint64_t, kNodes> asking{};  // the question that a node waits for
  Message message;
};

class Checker {
 public:
  explicit Checker(const Config& config)
      : config_(config),
        limit_(testing::MakeLimit(
            {.count = 2, .period_ns = kPeriod * kTick, .algorithm = config.algorithm})) {}

  // Returns how many units a window admits beyond what a strict one does, at worst.
  int64_t Run() {
    State state;
    Visit(state);
    while (worst_ <= 0 && states_.Take(&state)) Expand(state);
    return worst_;
  }
  size_t states() const { return states_.size(); }

 private:
  bool is_fixed() const { return config_.algorithm == Algorithm::kFixedWindow; }
  static int64_t EndOf(int64_t now) { return now - now % (kPeriod * kTick) + kPeriod * kTick; }

  void Visit(const State& state) { states_.Add(state, Text(state)); }

  void Expand(const State& state) {
    if (state.now < kUntil) Tick(state);
    Strict(state);
    for (size_t i = 0; i < kNodes; ++i) {
      Spend(state, i);
      PutBack(state, i);
      Ask(state, i);
      GiveUp(state, i);
    }
    if (state.message.stage == Message::Stage::kNone) return;
    State lost = state;
    lost.message = {};
    Visit(lost);
    state.message.stage == Message::Stage::kQuestion ? Arrive(state) : HearReply(state);
  }

  void Tick(State next) {
    const int64_t end = EndOf(next.now);
    next.now += kTick;
    if (next.now == end) {
      next.previous = next.current;
      next.current = 0;
    }
    Visit(next);
  }

  void Admit(State* state) {
    ++state->current;
    int64_t used = state->current;
    if (!is_fixed()) {
      const int64_t left = EndOf(state->now) - state->now;
      used += (state->previous * left + kPeriod * kTick - 1) / (kPeriod * kTick);
    }
    worst_ = std::max(worst_, used - limit_.count());
  }

  void Strict(State next) {
    CellState after;
    if (!Step(limit_, next.cell, next.now, 1, &after).allowed) return;
    next.cell = after;
    Admit(&next);
    Visit(next);
  }

  void Spend(State next, size_t i) {
    if (!next.nodes[i].Take(next.now, 1)) return;
    Admit(&next);
    Visit(next);
  }

  // A refund: the admission is undone.
  void PutBack(State next, size_t i) {
    if (next.current == 0 || !next.nodes[i].PutBack(next.now, 1)) return;
    --next.current;
    Visit(next);
  }

  void Ask(State next, size_t i) {
    if (next.message.stage != Message::Stage::kNone) return;
    if (next.nodes[i].asks()) {
      Question unanswered;
      unanswered.number = next.asking[i];
      next.nodes[i].Lose(unanswered);
    }
    for (const int64_t ending : {int64_t{0}, kPeriod * kTick}) {
      State asked = next;
      const Question question = asked.nodes[i].Ask(asked.now, limit_.count(), 0, ending);
      asked.asking[i] = question.number;
      asked.message = {Message::Stage::kQuestion, i, question, {}};
      Visit(asked);
    }
  }

  void GiveUp(State next, size_t i) {
    if (next.message.stage != Message::Stage::kNone || next.nodes[i].EndNs() == 0) return;
    next.message = {Message::Stage::kQuestion, i, {}, {}};
    next.message.question.reports = next.nodes[i].GiveUp();
    next.asking[i] = 0;
    Visit(next);
  }

  // As lua/fixed_window.lua and lua/sliding_window.lua do.
  void HearReports(State* state) const {
    const int64_t end = EndOf(state->now);
    for (const Report& report : state->message.question.reports) {
      const bool is_late = report.slot_ns != 0 && report.slot_ns != end;
      const bool is_of_this = !is_late || config_.flaw == Flaw::kLateGiveBack;
      // What a window has is kept as its current units until a later one is written.
      const bool is_current =
          static_cast<int64_t>(state->cell.w0) == end + (is_fixed() ? 0 : kPeriod * kTick);
      if (is_fixed()) {
        if (is_of_this && is_current) TakeOff(report.given, 0, &state->cell);
      } else if (is_of_this) {
        if (is_current) TakeOff(report.given, kShift, &state->cell);
      } else if (report.slot_ns == end - kPeriod * kTick) {
        TakeOff(report.given, is_current ? 0 : kShift, &state->cell);
      }
    }
  }
  static void TakeOff(int64_t units, int shift, CellState* cell) {
    const auto used = static_cast<int64_t>(cell->w1 >> shift & 0xffffffff);
    cell->w1 -= static_cast<uint64_t>(std::min(units, used)) << shift;
  }

  void Arrive(State next) {
    HearReports(&next);
    Message& message = next.message;
    const WindowLevel level =
        LeaseWindow(limit_, next.cell, next.now, 0, true, message.question.want);
    next.cell = level.cell;
    int64_t length = 2 * kTick;
    if (config_.flaw != Flaw::kBeyondTheWindow) length = std::min(length, level.end_ns - next.now);
    message.granted = {level.granted, level.end_ns, length};
    message.stage = Message::Stage::kReply;
    if (message.question.number == 0) message = {};
    Visit(next);
  }

  void HearReply(State next) {
    Message& message = next.message;
    if (config_.flaw == Flaw::kEndFromReply) message.question.asked_ns = next.now;
    if (message.question.number == next.asking[message.node]) next.asking[message.node] = 0;
    next.nodes[message.node].Hear(message.question, message.granted);
    message = {};
    Visit(next);
  }

  // The state in words, without the numbers of questions.
  static std::string Text(const State& state) {
    std::string text;
    const auto add = [&](int64_t number) { text += std::to_string(number) + ","; };
    add(state.now);
    add(static_cast<int64_t>(state.cell.w0));
    add(static_cast<int64_t>(state.cell.w1));
    add(state.current);
    add(state.previous);
    for (size_t i = 0; i < kNodes; ++i) {
      add(state.nodes[i].asks());
      for (const Lease& lease : state.nodes[i].leases()) {
        // Only what it can still give back matters of one that has ended.
        const bool is_over = lease.end_ns <= state.now;
        const bool is_gone = is_over && lease.tokens == 0;
        add(is_gone ? 0 : is_over ? 1 : lease.end_ns);
        add(is_gone ? 0 : lease.slot_ns);
        add(lease.tokens);
        add(is_over ? 0 : lease.spent);
      }
    }
    const Message& message = state.message;
    add(static_cast<int64_t>(message.stage));
    if (message.stage == Message::Stage::kNone) return text;
    const bool is_question = message.question.number != 0;
    add(is_question ? static_cast<int64_t>(message.node) : -1);
    add(message.question.number == state.asking[message.node]);
    add(message.question.asked_ns);
    add(message.question.want);
    for (const Report& report : message.question.reports) {
      add(report.slot_ns);
      add(report.given);
    }
    for (const int64_t number :
         {message.granted.tokens, message.granted.slot_ns, message.granted.length_ns}) {
      add(number);
    }
    return text;
  }

  const Config config_;
  const Limit limit_;
  int64_t worst_ = -1000;
  StateSpace<State, std::string> states_;
};

int64_t Worst(const Config& config) {
  Checker checker(config);
  const int64_t worst = checker.Run();
  std::printf("  %zu states, at worst %d\n", checker.states(), static_cast<int>(worst));
  return worst;
}

class LeasesWindowsModelTest : public ::testing::TestWithParam<Algorithm> {};

TEST_P(LeasesWindowsModelTest, NoScheduleAdmitsMoreThanAStrictWindow) {
  EXPECT_EQ(Worst({.algorithm = GetParam()}), 0);
}

TEST_P(LeasesWindowsModelTest, MistakesAreNoticed) {
  for (const Flaw flaw : {Flaw::kBeyondTheWindow, Flaw::kEndFromReply, Flaw::kLateGiveBack}) {
    EXPECT_GT(Worst({.algorithm = GetParam(), .flaw = flaw}), 0) << static_cast<int>(flaw);
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, LeasesWindowsModelTest,
                         ::testing::Values(Algorithm::kFixedWindow, Algorithm::kSlidingWindow));

}  // namespace
}  // namespace tidegate::leases
