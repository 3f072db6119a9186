// The pure step of quotas, on the whole state of a key (see quota.h). lua/quota.lua restates it.
//
// A state is brought forward to `now` before anything else, in closed form over any number of
// missed periods: what is left of the base becomes a carried grant, carried grants grow older and
// expire, an untouched period leaves what an untouched base does, and the base is granted anew. A
// limit that grew since the base was granted adds its share of the rest of the period at once; a
// smaller one counts from the next period on.
#ifndef TIDEGATE_SRC_QUOTAS_STEP_H_
#define TIDEGATE_SRC_QUOTAS_STEP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "tidegate/decision.h"
#include "tidegate/limit.h"
#include "tidegate/quota.h"

namespace tidegate {

// Decides. `state` becomes the state to store if the call is allowed or Decision::behind; else it
// has no meaning. `happened` are the bits of the soft events that this charge caused.
Decision StepQuota(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost,
                   uint8_t* happened);
// As StepUpTo() in step.h.
Decision StepQuotaUpTo(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost,
                       uint8_t* happened);
// As Peek() in step.h.
Decision PeekQuota(const Limit& limit, QuotaState state, int64_t now_ns, int64_t cost);
// Gives back units that were charged in this period, the last ones spent first, to grants that have
// not expired; returns how many there were.
int64_t RefundQuota(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost);
// Adds a top-up. The error says what is wrong with it; the state is then unchanged.
absl::Status AddTopUp(const Limit& limit, QuotaState* state, int64_t now_ns,
                      const QuotaTopUp& top_up);
QuotaStatus StatusOfQuota(const Limit& limit, QuotaState state, int64_t now_ns);

// Charges units that are left, to the grants in their order.
void SpendQuota(const QuotaTerms& terms, QuotaState* state, int64_t units);

// From this instant on, in seconds, the state is as a fresh one.
int64_t ForgottenAt(const QuotaTerms& terms, const QuotaState& state);

// The state as bytes, which the Redis script reads too: see lua/quota.lua.
std::string PackQuota(const QuotaState& state);
// Nothing if the bytes are no state. No bytes are the fresh state.
std::optional<QuotaState> UnpackQuota(std::string_view bytes);

}  // namespace tidegate

#endif  // TIDEGATE_SRC_QUOTAS_STEP_H_
