#include "redis/transport/sentinel.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "redis/transport/dial.h"

namespace tidegate::redis {

absl::StatusOr<RedisAddress> FindMaster(const RedisOptions& options, Instant deadline) {
  std::string why = "none was named";
  size_t left = options.nodes.size();
  for (const RedisAddress& sentinel : options.nodes) {
    RedisOptions own;
    own.host = sentinel.host;
    own.port = sentinel.port;
    own.username = options.sentinel_username;
    own.password = options.sentinel_password;
    own.tls = options.tls;
    own.client_name = options.client_name;
    // A sentinel that does not answer must leave time for the others.
    const Instant now = MonotonicNow();
    const Instant until = now + (deadline - now) / static_cast<int64_t>(left--);
    auto stream = Dial(own, until);
    if (!stream.ok()) {
      why = absl::StrCat(sentinel.host, ":", sentinel.port, ": ", stream.status().message());
      continue;
    }
    const auto replies =
        Exchange(**stream, {{"SENTINEL", "get-master-addr-by-name", options.service}}, until);
    if (!replies.ok()) {
      why = absl::StrCat(sentinel.host, ":", sentinel.port, ": ", replies.status().message());
      continue;
    }
    const redisReply& reply = *replies->front();
    int port = 0;
    if (reply.type == REDIS_REPLY_ARRAY && reply.elements == 2 &&
        reply.element[0]->type == REDIS_REPLY_STRING &&
        reply.element[1]->type == REDIS_REPLY_STRING &&
        absl::SimpleAtoi(std::string(reply.element[1]->str, reply.element[1]->len), &port)) {
      return RedisAddress{{reply.element[0]->str, reply.element[0]->len}, port};
    }
    why = absl::StrCat(sentinel.host, ":", sentinel.port, " knows no master of ", options.service);
  }
  return absl::UnavailableError(absl::StrCat("no sentinel knows the master: ", why));
}

}  // namespace tidegate::redis
