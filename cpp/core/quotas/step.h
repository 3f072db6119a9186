// The pure step of quotas, on the whole state of a key (see quota.h). lua/quota.lua restates it.
//
// Every function first brings the state forward to `now`, in closed form over any number of missed
// periods: the rest of the base becomes a carried grant, carried grants grow older and expire, each
// missed period leaves a whole base to carry, and the base is granted anew. If the count has grown
// since the base was granted, its share of the rest of the period is added at once; a smaller count
// counts from the next period on.
//
// When the count changes. The terms record former counts, each with the instant at which it ended:
// then a period has the count that was in force when it began, and the share of each larger one
// from its instant on, whether or not a call was made in it. A state that was written with a count
// that the terms do not record at its time is of another quota of the same id, such as that of
// another tier, and the change has no known instant: it counts from this call on. The periods that
// were missed then have the count that wrote the state, and this one begins with the smaller count
// of both.
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

// Decides. `state` becomes the state to store if the call is allowed or Decision::behind; otherwise
// it has no meaning. `happened` are the bits of the soft events that this charge caused.
Decision StepQuota(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost,
                   uint8_t* happened);
// Like StepCharge() in step.h. What is owed is forgotten when the period ends.
Decision StepQuotaCharge(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost,
                         int64_t most_debt, uint8_t* happened);
// Like Peek() in step.h.
Decision PeekQuota(const Limit& limit, QuotaState state, int64_t now_ns, int64_t cost);
// Gives back units that were charged in this period, in reverse order of spending, to grants that
// have not expired; returns the number of units given back.
int64_t RefundQuota(const Limit& limit, QuotaState* state, int64_t now_ns, int64_t cost);
// Adds a top-up. The error says what is wrong with it; the state is then unchanged.
absl::Status AddTopUp(const Limit& limit, QuotaState* state, int64_t now_ns,
                      const QuotaTopUp& top_up);
// Brings the state forward, for a caller that is about to change the count.
void BringQuotaForward(const Limit& limit, QuotaState* state, int64_t now_ns);
// Forgets the usage of the period. Carried and topped-up units stay as they are: those that are
// spent stay spent. Returns whether there is a state to store: a fresh one stays absent, as does
// one that equals a fresh one, which a store may have dropped by now.
bool ResetQuota(const Limit& limit, QuotaState* state, int64_t now_ns);
QuotaStatus StatusOfQuota(const Limit& limit, QuotaState state, int64_t now_ns);

// Charges units to the grants in the order of spending.
void SpendQuota(const QuotaTerms& terms, QuotaState* state, int64_t units);

// The instant, in seconds, from which the state equals a fresh one.
int64_t ForgottenAt(const QuotaTerms& terms, const QuotaState& state);

// Packs the state into bytes, which the Redis script reads too: see lua/quota.lua.
std::string PackQuota(const QuotaState& state);
// Returns nothing if the bytes are not a state. Empty bytes are the fresh state.
std::optional<QuotaState> UnpackQuota(std::string_view bytes);

}  // namespace tidegate

#endif  // TIDEGATE_SRC_QUOTAS_STEP_H_
