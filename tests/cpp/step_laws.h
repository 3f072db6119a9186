// Laws of every step, for any limit, state, instant and cost. The unit tests check them in states
// that calls can reach, and the fuzzer in any state.
#ifndef TIDEGATE_TESTS_CPP_STEP_LAWS_H_
#define TIDEGATE_TESTS_CPP_STEP_LAWS_H_

#include <cstdint>

#include "tidegate/step.h"

namespace tidegate::testing {

// The text of the first law that a step breaks; null if it keeps all.
inline const char* BrokenLaw(const Limit& limit, const CellState& state, int64_t now_ns,
                             int64_t cost) {
  const auto passes = [&](const CellState& at_state, int64_t at_ns) {
    CellState ignored;
    return Step(limit, at_state, at_ns, cost, &ignored).allowed;
  };
  CellState next;
  const Decision d = Step(limit, state, now_ns, cost, &next);
  if (d.limit != &limit) return "a decision names its limit";
  if (d.remaining() < 0 || d.remaining() > limit.capacity()) {
    return "what remains is within the capacity";
  }
  if (d.reset_after_ns < 0 || d.delay_ns < 0 || d.retry_after_ns < 0) {
    return "durations are not negative";
  }
  if (next.w0 >> 63 != 0) return "states leave the top bit to the table's claims";

  if (d.allowed) {
    if (cost > limit.capacity()) return "no cost beyond the capacity passes";
    if (d.retry_after_ns != 0) return "an allowed call need not wait";
  } else {
    if (d.retry_after_ns == 0) return "a refused call must wait";
    if (d.delay_ns != 0) return "a refused call has no place in the queue";
    if ((d.retry_after_ns == Decision::kNever) != (cost > limit.capacity())) {
      return "retry_after is kNever exactly for costs beyond the capacity";
    }
    if (!d.behind && next != state) return "a refusal writes nothing";
    if (d.retry_after_ns <= kMaxInstantNs - now_ns) {
      if (passes(next, now_ns + d.retry_after_ns - 1)) return "refused until retry_after";
      if (!passes(next, now_ns + d.retry_after_ns)) return "allowed at retry_after";
    }
  }

  if (d.reset_after_ns <= kMaxInstantNs - now_ns) {
    const auto remains = [&](int64_t at_ns) { return Peek(limit, next, at_ns, 1).remaining(); };
    if (remains(now_ns + d.reset_after_ns) != limit.capacity()) {
      return "as if untouched at reset_after";
    }
    if (d.reset_after_ns > 0 && remains(now_ns + d.reset_after_ns - 1) == limit.capacity()) {
      return "touched until reset_after";
    }
  }

  const int64_t more_after_ns = d.more_after_ns();
  if ((more_after_ns == 0) != (d.remaining() == limit.capacity())) {
    return "more comes later unless nothing is used";
  }
  if (more_after_ns > 0 && more_after_ns <= kMaxInstantNs - now_ns) {
    const auto remains = [&](int64_t at_ns) { return Peek(limit, next, at_ns, 1).remaining(); };
    if (remains(now_ns + more_after_ns) <= d.remaining()) return "more remains at more_after";
    if (remains(now_ns + more_after_ns - 1) > d.remaining()) return "no more until more_after";
  }

  const Decision peeked = Peek(limit, state, now_ns, cost);
  if (peeked.allowed != d.allowed || peeked.retry_after_ns != d.retry_after_ns ||
      peeked.delay_ns != d.delay_ns || peeked.behind != d.behind) {
    return "a peek returns what a hit would";
  }
  if (d.allowed && peeked.remaining() - d.remaining() != cost) {
    return "an allowed hit lowers `remaining` by its cost";
  }
  return nullptr;
}

}  // namespace tidegate::testing

#endif  // TIDEGATE_TESTS_CPP_STEP_LAWS_H_
