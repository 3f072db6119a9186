#include "tidegate/clients.h"

#include <algorithm>
#include <cmath>

#include "base/time_units.h"
#include "tidegate/step.h"

namespace tidegate {
namespace {

// A number in [0, 1) that depends only on its arguments (SplitMix64), so that the numbers of one
// client do not change with the behaviour of others.
double Draw(uint64_t seed, uint64_t at, uint64_t refusals) {
  uint64_t x = seed + 0x9e3779b97f4a7c15 * (at + 1) + 0xd1b54a32d192ed03 * refusals;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1.0p-53;
}

int64_t Rounded(double ns) {
  return ns >= static_cast<double>(kMaxInstantNs) ? kMaxInstantNs : std::llround(ns);
}

}  // namespace

int64_t ClientBehaviour::WaitNs(const Decision& decision, size_t at, uint32_t refusals) const {
  if (reaction == Reaction::kNever || refusals >= most_attempts) return -1;
  const double random = jitter > 0 ? jitter * Draw(seed, at, refusals) : 0;
  if (reaction == Reaction::kObey) {
    if (decision.retry_after_ns >= kMaxInstantNs) return -1;  // never, or in more than a century
    int64_t wait_ns = decision.retry_after_ns;
    if (whole_seconds) wait_ns = (wait_ns + kSecondNs - 1) / kSecondNs * kSecondNs;
    // The wait itself is exact: a double would round it.
    return wait_ns + Rounded(static_cast<double>(wait_ns) * random);
  }
  double wait_ns = static_cast<double>(pause_ns);
  if (reaction == Reaction::kBackOff) {
    wait_ns =
        std::min(wait_ns * std::pow(factor, refusals - 1), static_cast<double>(most_pause_ns));
  }
  return std::max<int64_t>(1, Rounded(wait_ns * (1 - random)));
}

void ClientReplay::Run(const RequestColumns& requests, size_t from, size_t to, Hit hit,
                       const ClientOutcomes& outcomes) {
  for (size_t n = from; n < to; ++n) {
    const size_t at = requests.At(n);
    const int64_t now_ns = requests.times_ns[at];
    while (!waiting_.empty() && waiting_.top().at_ns <= now_ns) {
      Take(requests, PopNext(), hit, outcomes);
    }
    Take(requests, {now_ns, n, at, 0}, hit, outcomes);
  }
}

bool ClientReplay::Finish(const RequestColumns& requests, size_t most, Hit hit,
                          const ClientOutcomes& outcomes) {
  for (; most > 0 && !waiting_.empty(); --most) Take(requests, PopNext(), hit, outcomes);
  return waiting_.empty();
}

ClientReplay::Attempt ClientReplay::PopNext() {
  const Attempt next = waiting_.top();
  waiting_.pop();
  return next;
}

void ClientReplay::Take(const RequestColumns& requests, const Attempt& attempt, Hit hit,
                        const ClientOutcomes& outcomes) {
  const size_t at = attempt.at;
  uint32_t binding = 0;
  const Decision decision = hit(at, attempt.at_ns, &binding);
  ++attempts_;
  outcomes.last.Write(at, decision, binding);
  if (outcomes.attempts != nullptr) outcomes.attempts[at] = attempt.refusals + 1;
  if (outcomes.waited_ns != nullptr) {
    outcomes.waited_ns[at] = attempt.at_ns - requests.times_ns[at];
  }
  if (decision.allowed) return;
  ++refused_attempts_;
  const uint32_t refusals = attempt.refusals + 1;
  const int64_t wait_ns = behaviour_.WaitNs(decision, at, refusals);
  if (wait_ns < 0 || wait_ns > kMaxInstantNs - attempt.at_ns) return;
  waiting_.push({attempt.at_ns + wait_ns, attempt.number, at, refusals});
}

}  // namespace tidegate
