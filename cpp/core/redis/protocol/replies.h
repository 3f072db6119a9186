// What the functions that read replies share.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_REPLIES_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_REPLIES_H_

#include <hiredis/hiredis.h>

#include "absl/status/status.h"

namespace tidegate::redis {

// Replies may be out of step with requests.
inline absl::Status ForeignReply() {
  return absl::DataLossError("the reply does not belong to the command");
}

// The reply has the script's shape, but the key that the script read holds a foreign value.
inline absl::Status ForeignValue() {
  return absl::InternalError("the value of a key is out of range");
}

inline bool IsInteger(const redisReply& reply) { return reply.type == REDIS_REPLY_INTEGER; }

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_REPLIES_H_
