// Units that are charged before their number is known, and corrected once it is.
//
// A reservation charges an estimate, all or none. For each limit that it charged the store keeps a
// record, under the reservation's id and the key: how many units are reserved. To settle is to take
// that record, in one step with charging or giving back the difference, so that the
// second caller finds it taken: no difference is charged twice. While the record is open the
// estimate stands, and so it stays if nobody settles before the record's life is over.
#ifndef TIDEGATE_RESERVATION_H_
#define TIDEGATE_RESERVATION_H_

#include <array>
#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace tidegate {

// What was found of one record.
enum class Found : uint8_t {
  kNothing,   // none: it was never made, its life is over, or the store lost it
  kOpen,      // it was open, and the call was made
  kAgain,     // it had been settled before at the same units; nothing was done
  kSettled,   // it had been settled before at others; nothing was done
  kOther,     // it is open with another number of units than the caller said; nothing was done
  kNoAnswer,  // the store did not answer: the call was made or not
};

// One reservation, as a caller knows it, for one call.
struct Reservation {
  // A settled record is kept so long, and not beyond its life, for callers that ask again.
  static constexpr int64_t kSettledNs = 60'000'000'000;
  // The most units of a record.
  static constexpr int64_t kMostUnits = (int64_t{1} << 53) - 1;
  static constexpr int64_t kMostTtlNs = int64_t{86'400} * 366 * 1'000'000'000;

  // One for each charge of the plan.
  struct Part {
    int64_t units = 0;     // reserved; kNone if the charge reserved nothing
    int64_t until_ns = 0;  // when these units no longer count, if nobody else charges the key
    // Set by each call: what was found, and the units of the record then.
    Found found = Found::kNoAnswer;
    int64_t found_units = 0;
    int64_t charged = 0;  // the units that the key was charged in all; set by kSettle
  };
  static constexpr int64_t kNone = -1;

  std::array<uint64_t, 2> id{};  // random
  int64_t ttl_ns = 0;            // the life of its records
  int64_t admitted_ns = 0;       // when the estimate was charged
  // Whether a call that settles makes the records that are not there, and remembers them for
  // `ttl_ns`: for units that were charged without a reservation, and are to be given back once.
  bool makes_records = false;
  // Whether there is no record: these units were charged by a hit, or in memory for a caller who
  // has told nobody the id. That caller sees to it that they are settled once; a store that may
  // lose the answer notes that they were, for kSettledNs, in case it is asked again.
  bool unrecorded = false;
  // Of an unrecorded one in memory: whether it was settled, at the units that its parts then have.
  bool is_settled = false;
  // Whether the estimate is given back when the life of its records is over without a settlement.
  bool gives_back = false;
  absl::InlinedVector<Part, 4> parts;
};

}  // namespace tidegate

#endif  // TIDEGATE_RESERVATION_H_
