// Classifies error replies. Pure: no I/O.
//
// An error is classified by its own first word, never by the text behind it: since Redis 7 every
// error in a script ends in ", on @user_script:N", whatever its cause, and Redis 6 puts "ERR Error
// running script" before it.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_ERROR_REPLY_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_ERROR_REPLY_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace tidegate::redis {

enum class ErrorClass : uint8_t {
  kFailure,      // the server cannot serve calls now; also every unknown error
  kNotMaster,    // the server is a replica: after a failover its name may lead to another server
  kNotLoggedIn,  // the connection has no login, or has lost it
  kDenied,       // the server forbids the command or the key, perhaps only to this user
  kRedirect,     // another node of the cluster serves the slot, or soon will
  kNoScript,     // the server does not have the script: its text must be sent
  kScriptError,  // a key holds a foreign value, or the script or its arguments are wrong
  kForeign,      // an answer to a command that is never sent: replies are out of step
};

// `message` is the error reply without the "-" that it begins with.
ErrorClass ClassifyError(std::string_view message);

// The status of a call that was answered with this error, by its class:
//   kFailure, kRedirect  Unknown
//   kNotMaster           FailedPrecondition
//   kNotLoggedIn         Unauthenticated
//   kDenied              PermissionDenied
//   kNoScript            NotFound
//   kScriptError         Internal
//   kForeign             DataLoss
// Its message is printable and short, and does not show the arguments of an unknown command.
absl::Status ErrorStatus(std::string_view message);

// Whether the call after one that failed with `status` needs another connection.
bool NeedsNewConnection(const absl::Status& status);

// Whether a connection is useless if its first command was answered with this error.
bool RefusesConnection(std::string_view message);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_ERROR_REPLY_H_
