// The commands of lua/reserve.lua.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/time_units.h"
#include "redis/lua.inc"
#include "redis/protocol/keys.h"
#include "redis/protocol/scripts.h"
#include "redis/protocol/words.h"

namespace tidegate::redis {
namespace {

// The key of a charge's record: in the hash slot of the charge's key.
std::string RecordKey(const Charge& charge, const Reservation& reservation) {
  return absl::StrCat(RedisKey(*charge.limit, charge.key), ":",
                      absl::Hex(reservation.id[0], absl::kZeroPad16),
                      absl::Hex(reservation.id[1], absl::kZeroPad16));
}

// What settling does about the difference of one limit.
std::string_view ActOf(int64_t held, int64_t used) {
  return used > held ? "charge" : used < held ? "refund" : "none";
}

}  // namespace

std::string Scripts::ReservedCommand(const Request& request, size_t set, bool by_text) const {
  absl::call_once(once_reserve_[set], [&] { reserve_[set] = ScriptOf(set, lua::reserve); });
  const Reservation& reservation = *request.reservation;
  const bool settles = request.op == "settle";
  Words words;
  words.Add(by_text ? "EVAL" : "EVALSHA");
  words.Add(by_text ? reserve_[set].text : reserve_[set].digest);
  words.Add(static_cast<int64_t>(3 * request.plan.size()));
  for (const Charge& charge : request.plan) words.Add(RedisKey(*charge.limit, charge.key));
  for (const Charge& charge : request.plan) words.Add(RecordKey(charge, reservation));
  for (const Charge& charge : request.plan) {
    words.Add(absl::StrCat(RedisKey(*charge.limit, charge.key), ":open"));
  }
  const bool undoes = reservation.makes_records || (settles && reservation.unrecorded);
  words.Add(undoes                                              ? std::string_view("undo")
            : reservation.gives_back && request.op == "reserve" ? std::string_view("hold")
                                                                : request.op);
  if (request.server_time) {
    words.Add("");
    words.Add("");
  } else {
    words.AddInstant(request.now_ns);
  }
  words.Add(request.confirmed ? 1 : 0);
  words.Add(request.margin_ms);
  std::string letters;
  for (const Charge& charge : request.plan) letters += LetterOf(request.op, charge);
  words.Add(letters);
  const bool lives = !settles || reservation.makes_records;
  const int64_t life_ns = lives ? reservation.ttl_ns : Reservation::kSettledNs;
  words.Add(std::max<int64_t>(1, (life_ns + kMillisecondNs - 1) / kMillisecondNs));
  for (size_t i = 0; i < request.plan.size(); ++i) {
    Charge charge = request.plan[i];
    Request own = request;
    own.op = "hit";
    int64_t held = 0;
    int64_t until_ns = 0;
    std::string_view act = "hit";
    const int64_t units = std::min(charge.cost, Reservation::kMostUnits);
    if (settles) {
      held = reservation.parts[i].units;
      until_ns = reservation.parts[i].until_ns;
      // A sliding window shows its units for a window after the one that counted them.
      if (charge.limit->limit.algorithm() == Algorithm::kSlidingWindow) {
        until_ns = std::max<int64_t>(0, until_ns - charge.limit->limit.period_ns());
      }
      act = ActOf(held, units);
      own.op = act == "none" ? "peek" : act;
      own.owes = true;
      own.admitted_ns = reservation.admitted_ns;
      charge.cost = act == "charge" ? units - held : act == "refund" ? held - units : 1;
    }
    words.Add(act);
    words.Add(held);
    words.Add(units);
    words.AddInstant(until_ns);
    AppendLimit(&words, own, charge);
  }
  return words.Finish();
}

}  // namespace tidegate::redis
