// What an error reply says about the call that it answers. Pure: no I/O.
//
// An error is classified by its own first word, never by what stands behind it: since
// Redis 7 every error that a script meets ends in ", on @user_script:N", whoever is to
// blame, and Redis 6 puts "ERR Error running script" before it.
#ifndef TIDEGATE_SRC_REDIS_PROTOCOL_ERROR_REPLY_H_
#define TIDEGATE_SRC_REDIS_PROTOCOL_ERROR_REPLY_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace tidegate::redis {

enum class ErrorClass : uint8_t {
  kFailure,      // the server cannot serve calls now; also every error not known here
  kNotMaster,    // the server is a replica: after a failover the name may lead elsewhere
  kNotLoggedIn,  // the connection has no login, or has lost it
  kDenied,       // the server permits the command or the key to nobody, or not to this user
  kRedirect,     // another node of the cluster serves the slot, or soon will
  kNoScript,     // the server does not have the script: its text must be sent
  kScriptError,  // a key holds something else, or the script or its arguments are wrong
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
// Its message is printable and short, without the arguments of a command that is not known.
absl::Status ErrorStatus(std::string_view message);

// Whether a call that failed with `status` says that the next one needs another connection.
bool NeedsNewConnection(const absl::Status& status);

// Whether a connection whose first command was answered with this error is of no use.
bool RefusesConnection(std::string_view message);

}  // namespace tidegate::redis

#endif  // TIDEGATE_SRC_REDIS_PROTOCOL_ERROR_REPLY_H_
