// What is said to Redis: the scripts of lua/, their arguments and their replies.
// Pure: no I/O.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_SCRIPTS_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_SCRIPTS_H_

#include <hiredis/hiredis.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tidegate/step.h"
#include "tidegate/store.h"

namespace tidegate::redis {

// The reply of lua/plan.lua.
struct Answer {
  bool allowed = false;
  int64_t now_ns = 0;
  // For each limit the numbers that the head of its Lua file lists.
  std::vector<std::array<int64_t, 6>> states;
  // For each limit the units that charge_up_to charged; else empty.
  std::vector<int64_t> charged;
};

struct Request {
  std::string_view op;  // as lua/plan.lua knows it, or reset
  absl::Span<const Charge> plan;
  bool server_time = true;
  int64_t now_ns = 0;       // unless server_time
  bool confirmed = true;    // see Moment
  int64_t margin_ms = 0;    // added to the life of keys
  int64_t admitted_ns = 0;  // release, and refund where it is known
};

// Which script does it.
enum class Form : uint8_t {
  kHits,        // lua/bucket_hits.lua: hits of one limit and cost, each on its own
  kBucketPlan,  // lua/bucket_plan.lua
  kFull,        // lua/plan.lua, and DEL for a reset
};

class Scripts {
 public:
  // Hits that one call of lua/bucket_hits.lua takes.
  static constexpr size_t kMostHits = 32;

  Scripts();

  // The leanest that can do it.
  static Form FormOf(const Request& request);

  // The command that applies `request`: by the script's digest, or by its text for a
  // server that does not have it.
  std::string Command(const Request& request, Form form, bool by_text) const;
  // The same with Form::kHits for several keys.
  std::string HitsCommand(const Request& request, absl::Span<const std::string_view> keys,
                          bool by_text) const;

  // DataLoss where the reply is not of the shape that the command's replies have: it belongs to
  // another command. Internal where it is, but the value of a key is out of range. An answer
  // without states is to be asked for in full: nothing was done.
  static absl::StatusOr<Answer> Parse(const redisReply& reply, const Request& request, Form form);
  // An answer for each of `hits`.
  static absl::StatusOr<std::vector<Answer>> ParseHits(const redisReply& reply, size_t hits);

  // Finds out whether calls for such charges would succeed, at no charge; lua/probe.lua.
  // `number` tells the probe's reply from those to other probes.
  static std::string ProbeCommand(const Charge& charge, int64_t number);
  static absl::Status ParseProbe(const redisReply& reply, int64_t number);

  // The decision on one limit of a plan. `charged`: the plan passed and was no
  // peek.
  static Decision Decide(const Charge& charge, const Answer& answer, size_t index, bool peek);

  // The same of charge_up_to. Refused where the script charged otherwise than the step would.
  static Decision DecideUpTo(const Charge& charge, const Answer& answer, size_t index);

  // The state of one limit of a plan, where later decisions follow from it alone: not of
  // places in flight, which are given back at any time, and of a log only when it is full.
  static std::optional<CellState> Steppable(const Charge& charge, const Answer& answer,
                                            size_t index);
  // What such a state says later; behind where it does not tell.
  static Decision StepLater(const Charge& charge, const CellState& state, int64_t now_ns);

 private:
  struct Script {
    std::string text;
    std::string digest;
  };
  static absl::StatusOr<Answer> ParseFull(const redisReply& reply, const Request& request);

  std::array<Script, 16> scripts_;  // by the set of algorithms in them
  Script hits_;
  Script bucket_plan_;
};

// What sets a limit's keys apart from those of other limits and scopes.
std::string KeyPrefix(const Limit& limit, std::string_view scope);
// The key in Redis: the caller's is its hash tag, as it stands where it is short
// and has no braces, else as a digest.
std::string RedisKey(const BoundLimit& limit, std::string_view key);

// A whole command, as the protocol of Redis has it.
std::string Format(const std::vector<std::string>& words);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_SCRIPTS_H_
