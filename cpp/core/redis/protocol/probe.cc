// The commands that no limit needs.
#include "absl/strings/str_cat.h"
#include "redis/lua.inc"
#include "redis/protocol/keys.h"
#include "redis/protocol/scripts.h"
#include "redis/protocol/words.h"

namespace tidegate::redis {

std::string Scripts::ProbeCommand(const Charge& charge, int64_t number) {
  return Format({"EVAL", std::string(lua::probe), "1",
                 absl::StrCat(RedisKey(*charge.limit, charge.key), ":probe"),
                 absl::StrCat(number)});
}

absl::Status Scripts::ParseProbe(const redisReply& reply, int64_t number) {
  if (reply.type == REDIS_REPLY_INTEGER && reply.integer == number) return absl::OkStatus();
  return absl::DataLossError("the reply does not belong to the command");
}

}  // namespace tidegate::redis
