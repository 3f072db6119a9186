// What requests and replies say of leases.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_LEASE_WORDS_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_LEASE_WORDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "leases/centre.h"
#include "redis/protocol/scripts.h"
#include "redis/protocol/words.h"

namespace tidegate::redis {

// Whether a hit is a `lease` (lua/plan.lua): whether it asks for units or reports some.
bool IsLease(const Request& request);
// The arguments that lua/bucket.lua has for it, of one charge of the plan.
void AppendQuestion(Words* words, const Request& request, const Charge& charge);
// The units that it asks for of a limit.
int64_t WantOf(const Request& request, size_t index);

// The level of a bucket in an answer, by the numbers of its limit; nothing if those of another
// limit wrote it.
std::optional<leases::Level> LevelOf(const Charge& charge, const Answer& answer, size_t index);
// How long a refused call waits for certain while the bucket does not refill below what is out; 0
// if nothing is out.
int64_t WaitUnderCap(const Charge& charge, const Answer& answer, size_t index);
// The time until the state is that of another slot; the longest time if nothing is out.
int64_t SlotLeft(const Charge& charge, const Answer& answer, size_t index);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_LEASE_WORDS_H_
