#include "tidegate/replayer.h"

#include <type_traits>
#include <utility>

#include "algorithms/log.h"
#include "algorithms/windows.h"
#include "quotas/step.h"
#include "tidegate/step.h"
#include "tidegate/store.h"

namespace tidegate {

// The states of all keys under one limit: cells or rings.
struct Replayer::LimitState {
  LimitState(Limit the_limit, uint32_t keys) : limit(std::move(the_limit)) {
    if (IsLog(limit.algorithm())) {
      rings = std::vector<InstantRing>(keys);
    } else if (limit.quota() != nullptr) {
      quotas.resize(keys);
    } else {
      cells.resize(keys);
    }
  }

  Decision PeekAt(uint32_t key, int64_t now_ns, int64_t cost) const {
    if (limit.quota() != nullptr) return PeekQuota(limit, quotas[key], now_ns, cost);
    return IsLog(limit.algorithm()) ? PeekLog(limit, rings[key], now_ns, cost)
                                    : Peek(limit, cells[key], now_ns, cost);
  }
  Decision StepAt(uint32_t key, int64_t now_ns, int64_t cost) {
    if (IsLog(limit.algorithm())) return StepLog(limit, &rings[key], now_ns, cost);
    if (limit.quota() != nullptr) return StepAtQuota(limit, quotas[key], now_ns, cost);
    return Charge(cells[key], now_ns, cost);
  }
  // Makes what the request at `at` has used its charge.
  void Settle(const ChargeColumns& charges, size_t at, int64_t now_ns) {
    if (charges.used == nullptr) return;
    const int64_t more = charges.used[at] - charges.CostAt(at);
    if (more > 0) ChargeInFull(charges.keys[at], now_ns, more);
    if (more < 0) GiveBack(charges.keys[at], now_ns, -more);
  }
  void ChargeInFull(uint32_t key, int64_t now_ns, int64_t cost) {
    const int64_t most_debt = MostDebt(Op::kCharge, limit);
    if (IsLog(limit.algorithm())) {
      StepLogCharge(limit, &rings[key], now_ns, cost, most_debt);
    } else if (limit.quota() != nullptr) {
      uint8_t ignored = 0;
      StepQuotaCharge(limit, &quotas[key], now_ns, cost, most_debt, &ignored);
    } else {
      CellState next;
      StepCharge(limit, cells[key], now_ns, cost, most_debt, &next);
      cells[key] = next;
    }
  }
  void GiveBack(uint32_t key, int64_t now_ns, int64_t cost) {
    if (IsLog(limit.algorithm())) {
      RefundLog(limit, &rings[key], now_ns, cost);
    } else if (limit.quota() != nullptr) {
      RefundQuota(limit, &quotas[key], now_ns, cost);
    } else {
      cells[key] = Refund(limit, cells[key], now_ns, cost);
    }
  }
  Decision Charge(CellState& cell, int64_t now_ns, int64_t cost) const {
    CellState next;
    const Decision decision = Step(limit, cell, now_ns, cost, &next);
    cell = next;
    return decision;
  }
  static Decision StepAtQuota(const Limit& limit, QuotaState& state, int64_t now_ns, int64_t cost) {
    QuotaState next = state;
    uint8_t ignored = 0;
    const Decision decision = StepQuota(limit, &next, now_ns, cost, &ignored);
    if (decision.allowed || decision.behind) state = std::move(next);
    return decision;
  }

  Limit limit;
  std::vector<CellState> cells;
  std::vector<InstantRing> rings;
  std::vector<QuotaState> quotas;
};

namespace {

// How many requests ahead the state of a key is fetched into the cache: as many as are decided
// during a cache miss. The memory that a ring points to is fetched once the ring is in the cache.
constexpr size_t kAhead = 32;
constexpr size_t kRingAhead = 16;

// Decides requests of one limit, whose states lie at `states`, by `step(at, state, now, cost)`,
// which writes the answer. The columns are copies, which the compiler knows that no write changes.
template <typename State, typename StepOne>
__attribute__((always_inline)) inline void RunOne(RequestColumns requests, ChargeColumns charge,
                                                  size_t from, size_t to, State* states,
                                                  const StepOne& step) {
  for (size_t n = from; n < to; ++n) {
    if (n + kAhead < to) __builtin_prefetch(&states[charge.keys[requests.At(n + kAhead)]], 1);
    if constexpr (std::is_same_v<State, InstantRing>) {
      if (n + kRingAhead < to) states[charge.keys[requests.At(n + kRingAhead)]].Prefetch();
    }
    const size_t at = requests.At(n);
    step(at, states[charge.keys[at]], requests.times_ns[at], charge.CostAt(at));
  }
}

// Whether StepBucket() can step the limit, by the conditions of Step().
bool IsPlainBucket(const Limit& limit) {
  return IsBucket(limit.algorithm()) && !limit.keeps_count() && limit.burst() > 0 &&
         !limit.spec().oversize_owes;
}

}  // namespace

Replayer::Replayer(std::vector<Limit> limits, absl::Span<const uint32_t> keys) {
  states_.reserve(limits.size());
  for (size_t i = 0; i < limits.size(); ++i) states_.emplace_back(std::move(limits[i]), keys[i]);
}

Replayer::~Replayer() = default;

void Replayer::Run(const RequestColumns& requests, absl::Span<const ChargeColumns> charges,
                   size_t from, size_t to, const AnswerColumns& given) {
  const AnswerColumns answers = given;  // a copy for the same reason
  if (states_.size() > 1 || states_[0].limit.shadow() || charges[0].used != nullptr) {
    for (size_t n = from; n < to; ++n) {
      const size_t at = requests.At(n);
      const Decision decision = Hit(charges, at, requests.times_ns[at]);
      answers.Write(at, decision, decision.rule);
    }
    return;
  }
  LimitState& state = states_[0];
  const Limit& limit = state.limit;
  if (IsLog(limit.algorithm())) {
    RunOne(requests, charges[0], from, to, state.rings.data(),
           [&](size_t at, InstantRing& ring, int64_t now_ns, int64_t cost) {
             answers.Write(at, StepLog(limit, &ring, now_ns, cost), 0);
           });
  } else if (limit.quota() != nullptr) {
    RunOne(requests, charges[0], from, to, state.quotas.data(),
           [&](size_t at, QuotaState& quota, int64_t now_ns, int64_t cost) {
             answers.Write(at, LimitState::StepAtQuota(limit, quota, now_ns, cost), 0);
           });
  } else if (IsPlainBucket(limit)) {
    RunOne(requests, charges[0], from, to, state.cells.data(),
           [&](size_t at, CellState& cell, int64_t now_ns, int64_t cost) {
             BucketOutcome out;
             if (!StepBucket(limit, cell.w0, cell.w1, now_ns, cost, out)) [[unlikely]] {
               answers.Write(at, state.Charge(cell, now_ns, cost), 0);
               return;
             }
             if (out.allowed) cell = {out.next_w0, out.next_w1};
             answers.Put(at, out.allowed, out.wait_ns, out.delay_ns, 0,
                         [&] { return RemainingOfBucket(limit, out.used_ns, out.used_fraction); });
           });
  } else if (limit.algorithm() == Algorithm::kFixedWindow && !limit.spec().oversize_owes) {
    RunOne(requests, charges[0], from, to, state.cells.data(),
           [&](size_t at, CellState& cell, int64_t now_ns, int64_t cost) {
             WindowOutcome out;
             if (!StepInWindow(limit, cell, now_ns, cost, out)) {
               const CellState before = cell;
               answers.Write(at, StepFixed(limit, before, now_ns, cost, &cell), 0);
               return;
             }
             cell.w1 = static_cast<uint64_t>(out.used_units);
             answers.Put(at, out.allowed, out.wait_ns, 0, 0,
                         [&] { return std::max<int64_t>(0, limit.count() - out.used_units); });
           });
  } else {
    RunOne(requests, charges[0], from, to, state.cells.data(),
           [&](size_t at, CellState& cell, int64_t now_ns, int64_t cost) {
             answers.Write(at, state.Charge(cell, now_ns, cost), 0);
           });
  }
}

Decision Replayer::Hit(absl::Span<const ChargeColumns> charges, size_t at, int64_t now_ns) {
  Decision decision;
  if (states_.size() > 1 || states_[0].limit.shadow()) {
    decision = HitAll(charges, at, now_ns);
  } else {
    decision = states_[0].StepAt(charges[0].keys[at], now_ns, charges[0].CostAt(at));
    if (decision.allowed) states_[0].Settle(charges[0], at, now_ns);
  }
  decision.at_ns = now_ns;
  return decision;
}

Decision Replayer::HitAll(absl::Span<const ChargeColumns> charges, size_t at, int64_t now_ns) {
  PlanVerdict forecast;
  for (size_t i = 0; i < states_.size(); ++i) {
    forecast.Add(states_[i].PeekAt(charges[i].keys[at], now_ns, charges[i].CostAt(at)),
                 static_cast<uint32_t>(i));
  }
  const bool allowed = forecast.get().allowed;
  // A hit that cannot pass moves back the states that a clock left ahead when it went back.
  if (!allowed && !forecast.get().behind) return forecast.get();
  PlanVerdict verdict;
  for (size_t i = 0; i < states_.size(); ++i) {
    const int64_t cost = allowed ? charges[i].CostAt(at) : states_[i].limit.beyond();
    const Decision each = states_[i].StepAt(charges[i].keys[at], now_ns, cost);
    verdict.Add(each, static_cast<uint32_t>(i));
    // A limit in shadow that was exceeded has counted nothing.
    if (allowed && each.allowed) states_[i].Settle(charges[i], at, now_ns);
  }
  return allowed ? verdict.get() : forecast.get();
}

}  // namespace tidegate
