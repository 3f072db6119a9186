// The requests to Redis: the scripts of lua/, their arguments and their replies. Pure: no I/O.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_SCRIPTS_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_SCRIPTS_H_

#include <hiredis/hiredis.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "redis/protocol/words.h"
#include "tidegate/step.h"
#include "tidegate/store.h"

namespace tidegate::leases {
struct Asking;
}  // namespace tidegate::leases

namespace tidegate::redis {

// The reply of lua/plan.lua, and of lua/reserve.lua.
struct Answer {
  bool allowed = false;
  int64_t now_ns = 0;
  // For each limit the numbers that the head of its Lua file lists.
  std::vector<std::array<int64_t, 8>> states;
  // For each limit the state of a quota; empty if the plan has none.
  std::vector<QuotaState> quotas;
  // For each limit the units that `charge` charged; else empty.
  std::vector<int64_t> charged;
  // For `lease`, for each limit the units that it granted; else empty.
  std::vector<int64_t> granted;
  // For each limit what lua/reserve.lua found; else empty.
  struct Record {
    Found found;
    int64_t units;
    int64_t charged;
  };
  std::vector<Record> records;
};

struct Request {
  std::string_view op;  // an operation of lua/plan.lua, or forget
  absl::Span<const Charge> plan;
  bool server_time = true;
  int64_t now_ns = 0;       // unless server_time
  bool confirmed = true;    // see Moment
  bool owes = false;        // for charge: whether what finds no room is owed
  int64_t margin_ms = 0;    // added to the life of keys
  int64_t admitted_ns = 0;  // for release, and for refund if it is known
  bool late = false;        // see Decision
  int64_t host_ns = 0;      // this host's clock, which determines the periods sent for quotas
  const QuotaTopUp* top_up = nullptr;
  // What a hit of buckets asks beside its cost, for each limit or null: it becomes a `lease` if
  // that is anything.
  absl::Span<const std::shared_ptr<const leases::Asking>> askings = {};
  bool keeps_leases = false;  // a reset keeps the units of buckets that nodes hold
  // For the calls of a reservation, whose parts are those of `plan`.
  const Reservation* reservation = nullptr;
};

// What the scripts do with a limit, as the head of lua/plan.lua lists.
char LetterOf(std::string_view op, const Charge& charge);
// The name of a limit's algorithm in the scripts, and its arguments for a request.
void AppendLimit(Words* words, const Request& request, const Charge& charge);

// The script that applies a request.
enum class Form : uint8_t {
  kBucketHits,  // lua/bucket_hits.lua: independent hits of one limit and cost
  kFixedHits,   // lua/fixed_hits.lua: independent hits of any fixed windows
  kBucketPlan,  // lua/bucket_plan.lua
  kFull,        // lua/plan.lua, and DEL where keys are forgotten
};

inline bool IsOfHits(Form form) { return form == Form::kBucketHits || form == Form::kFixedHits; }

class Scripts {
 public:
  // The most hits in one command, and the most keys, limits and costs of them that differ: a hit
  // that is like another one adds next to nothing to a command.
  static constexpr size_t kMostHits = 128;
  static constexpr size_t kMostKinds = 32;

  Scripts();

  // The cheapest form that can apply the request.
  static Form FormOf(const Request& request);

  // The command that applies `request`: by the script's digest, or by its text for a
  // server that does not have it.
  std::string Command(const Request& request, Form form, bool by_text) const;
  // The same for several independent hits, for which CanShare() holds, in a form of hits.
  std::string HitsCommand(Form form, absl::Span<const Charge> hits, int64_t margin_ms,
                          bool by_text) const;
  // Whether one command of the form can apply requests of the charges `a` and `b`.
  static bool CanShare(Form form, const Charge& a, const Charge& b);
  // Whether hits are of one key of Redis; and whether a command then has them once.
  static bool HaveSameKey(const Charge& a, const Charge& b) {
    return a.key == b.key && a.limit->tag == b.limit->tag;
  }
  static bool AreAlike(const Charge& a, const Charge& b) {
    return a.limit == b.limit && a.cost == b.cost && a.key == b.key;
  }

  // Fails with DataLoss if the reply does not have the shape of the command's replies, and so
  // belongs to another command; with Internal if it does, but the value of a key is out of range.
  static absl::StatusOr<Answer> Parse(const redisReply& reply, const Request& request, Form form);
  // An answer for each of `hits`, in a form of hits. One key's error is that of its hits alone.
  static std::vector<absl::StatusOr<Answer>> ParseHits(const redisReply& reply, Form form,
                                                       absl::Span<const Charge> hits);

  // The command of lua/probe.lua: finds out whether calls for such charges would succeed, without a
  // charge.
  // `number` distinguishes the probe's reply from those to other probes.
  static std::string ProbeCommand(const Charge& charge, int64_t number);
  static absl::Status ParseProbe(const redisReply& reply, int64_t number);

  // The decision on one limit of a plan. `charged`: the plan passed and was not a peek.
  static Decision Decide(const Charge& charge, const Answer& answer, size_t index, bool peek);

  // The same for an operation that charges what has been used. Refused if the script charged
  // differently from the step.
  static Decision DecideUsed(Op op, const Charge& charge, const Answer& answer, size_t index);

  // The state of one limit of a plan, if later decisions follow from it alone: not for concurrency
  // limits, whose places are given back at any time; for a log only when it is full, and for a
  // quota when it is used up.
  static std::optional<CellState> Steppable(const Charge& charge, const Answer& answer,
                                            size_t index);
  // The decision of such a state later, and without charging it; `behind` if the state does not
  // determine it.
  static Decision StepLater(const Charge& charge, const CellState& state, int64_t now_ns);
  static Decision PeekLater(const Charge& charge, const CellState& state, int64_t now_ns);

 private:
  struct Script {
    std::string text;
    std::string digest;
  };
  static absl::StatusOr<Answer> ParseFull(const redisReply& reply, const Request& request);
  // The answer to a hit that lua/plan.lua has decided in a form of hits, or its error.
  static absl::StatusOr<Answer> ParseHit(const redisReply& reply, const Charge& hit);
  // Whether lua/bucket_plan.lua can charge the limit. These are defined in bucket_plan.cc.
  static bool IsOfBucketPlan(const Charge& charge);
  std::string BucketPlanCommand(const Request& request, bool by_text) const;
  static absl::StatusOr<Answer> ParseBucketPlan(const redisReply& reply, const Request& request);
  // The script of a set of algorithms that ends in `tail`.
  static Script ScriptOf(size_t set, std::string_view tail);
  // Defined in reservations.cc.
  std::string ReservedCommand(const Request& request, size_t set, bool by_text) const;

  std::array<Script, 32> scripts_;  // by the set of algorithms in them
  // The same for reservations, made when the first of a set is.
  mutable std::array<absl::once_flag, 32> once_reserve_;
  mutable std::array<Script, 32> reserve_;
  Script bucket_hits_;
  Script fixed_hits_;
  Script bucket_plan_;
};

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_SCRIPTS_H_
