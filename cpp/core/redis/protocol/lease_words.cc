#include "redis/protocol/lease_words.h"

#include <algorithm>

#include "algorithms/debt.h"
#include "base/time_units.h"
#include "leases/table.h"

namespace tidegate::redis {
namespace {

bool HasSlots(const Charge& charge, const Answer& answer, size_t index) {
  const auto& state = answer.states[index];
  return IsBucket(charge.limit->limit.algorithm()) && state[6] + state[7] > 0;
}

}  // namespace

bool IsLease(const Request& request) {
  if (request.op != "hit") return false;
  // A cost that may owe the rest has other arguments.
  const auto owes = [](const Charge& charge) {
    return charge.limit->limit.IsOversize(charge.cost);
  };
  if (std::any_of(request.plan.begin(), request.plan.end(), owes)) return false;
  return std::any_of(request.askings.begin(), request.askings.end(), [](const auto& asking) {
    if (asking == nullptr) return false;
    const leases::Question& question = asking->question;
    return question.want > 0 || question.reports[0].slot_ns != 0 ||
           question.reports[1].slot_ns != 0;
  });
}

void AppendQuestion(Words* words, const Request& request, const Charge& charge) {
  const auto& asking = request.askings[static_cast<size_t>(&charge - request.plan.data())];
  const leases::Question question = asking == nullptr ? leases::Question() : asking->question;
  words->Add(question.want);
  words->Add(question.length_ns / kMicrosecondNs);
  for (const leases::Report& report : question.reports) {
    words->Add(report.slot_ns / kMicrosecondNs);
    words->Add(report.spent);
    words->Add(report.given);
  }
}

int64_t WantOf(const Request& request, size_t index) {
  const auto& asking = request.askings[index];
  return asking == nullptr ? 0 : asking->question.want;
}

std::optional<leases::Level> LevelOf(const Charge& charge, const Answer& answer, size_t index) {
  const Limit& limit = charge.limit->limit;
  const auto& state = answer.states[index];
  const leases::Terms terms = leases::Terms::Of(limit);
  leases::Level level;
  if (state[0] == 0 && state[1] == 0) return level;
  if (limit.keeps_count() && state[3] != limit.count()) return std::nullopt;
  const leases::Parts ahead =
      terms.time(state[0] * kSecondNs + state[1] - answer.now_ns) + state[2] % limit.denominator();
  level.ahead = std::max<leases::Parts>(ahead, 0);
  if (!limit.keeps_count()) {
    level.debt = terms.time(DebtOfCode(static_cast<uint64_t>(state[3]) & kMostDebtCode));
  } else if (level.ahead > terms.depth()) {
    level.debt = level.ahead - terms.depth();  // the span of the state allowed it
  }
  level.slots = {state[4] * kMicrosecondNs, state[5] * kMicrosecondNs, state[6], state[7]};
  return level;
}

int64_t WaitUnderCap(const Charge& charge, const Answer& answer, size_t index) {
  if (!HasSlots(charge, answer, index)) return 0;
  const auto level = LevelOf(charge, answer, index);
  if (!level.has_value()) return 0;
  const leases::Terms terms = leases::Terms::Of(charge.limit->limit);
  const leases::Parts wait = leases::Wait(terms, answer.now_ns, *level, charge.cost);
  return static_cast<int64_t>((wait + terms.denominator - 1) / terms.denominator);
}

int64_t SlotLeft(const Charge& charge, const Answer& answer, size_t index) {
  if (!HasSlots(charge, answer, index)) return Decision::kNever;
  return std::max<int64_t>(answer.states[index][4] * kMicrosecondNs - answer.now_ns, 0);
}

}  // namespace tidegate::redis
