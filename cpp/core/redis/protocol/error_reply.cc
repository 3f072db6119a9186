#include "redis/protocol/error_reply.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"

namespace tidegate::redis {
namespace {

constexpr size_t kLongestMessage = 300;

struct Rule {
  std::string_view start;
  ErrorClass means;
};

// The first words of the errors of Redis 6.2 to 8.2 and Valkey 8.1, except ERR.
constexpr Rule kByWord[] = {
    {"BUSY", ErrorClass::kFailure},
    {"CLUSTERDOWN", ErrorClass::kFailure},
    {"IOERR", ErrorClass::kFailure},
    {"LOADING", ErrorClass::kFailure},
    {"MISCONF", ErrorClass::kFailure},
    {"NOREPLICAS", ErrorClass::kFailure},
    {"OOM", ErrorClass::kFailure},

    {"MASTERDOWN", ErrorClass::kNotMaster},
    {"READONLY", ErrorClass::kNotMaster},
    {"UNBLOCKED", ErrorClass::kNotMaster},  // "instance state changed (master -> replica?)"

    {"NOAUTH", ErrorClass::kNotLoggedIn},
    {"WRONGPASS", ErrorClass::kNotLoggedIn},

    {"DENIED", ErrorClass::kDenied},  // protected mode
    {"NOPERM", ErrorClass::kDenied},

    {"ASK", ErrorClass::kRedirect},
    {"MOVED", ErrorClass::kRedirect},
    {"REDIRECT", ErrorClass::kRedirect},
    {"TRYAGAIN", ErrorClass::kRedirect},

    {"NOSCRIPT", ErrorClass::kNoScript},

    // Caused by one plan, which must not open the breaker for all others.
    {"CROSSSLOT", ErrorClass::kScriptError},
    {"TIDEGATE", ErrorClass::kScriptError},  // raised by lua/
    {"WRONGTYPE", ErrorClass::kScriptError},

    {"BUSYGROUP", ErrorClass::kForeign},     // XGROUP CREATE
    {"BUSYKEY", ErrorClass::kForeign},       // RESTORE
    {"EXECABORT", ErrorClass::kForeign},     // EXEC
    {"INPROG", ErrorClass::kForeign},        // SENTINEL FAILOVER
    {"INVALIDOBJ", ErrorClass::kForeign},    // PFADD
    {"NOGOODSLAVE", ErrorClass::kForeign},   // SENTINEL FAILOVER
    {"NOGROUP", ErrorClass::kForeign},       // XREADGROUP
    {"NOMASTERLINK", ErrorClass::kForeign},  // PSYNC
    {"NOPROTO", ErrorClass::kForeign},       // HELLO
    {"NOQUORUM", ErrorClass::kForeign},      // SENTINEL CKQUORUM
    {"NOTBUSY", ErrorClass::kForeign},       // SCRIPT KILL
    {"UNKILLABLE", ErrorClass::kForeign},    // SCRIPT KILL
};

// The text of errors after "ERR ", or for errors in a script after the place in the script.
constexpr Rule kByText[] = {
    {"max number of clients", ErrorClass::kFailure},
    {"Script killed by user", ErrorClass::kFailure},
    {"Script attempted to execute a", ErrorClass::kFailure},  // "... while the cluster is down"
    {"Lua script attempted to execute a", ErrorClass::kFailure},
    {"Script attempted to access a slot not served", ErrorClass::kFailure},
    // lua-replicate-commands is off (before Redis 7).
    {"Write commands not allowed after non deterministic commands", ErrorClass::kFailure},

    {"Can not execute the command on a stale replica", ErrorClass::kNotMaster},

    // The command was renamed, or a proxy does not know it.
    {"unknown command", ErrorClass::kDenied},
    {"Unknown command called from", ErrorClass::kDenied},
    {"Unknown Redis command called from", ErrorClass::kDenied},
    {"This command is not allowed from script", ErrorClass::kDenied},
    {"This Redis command is not allowed from script", ErrorClass::kDenied},
    {"ACL failure in script", ErrorClass::kDenied},
    {"The user executing the script", ErrorClass::kDenied},  // "... can't run this command"

    {"Script attempted to access a non local key", ErrorClass::kRedirect},
    {"Lua script attempted to access a non local key", ErrorClass::kRedirect},

    {"Error compiling script", ErrorClass::kScriptError},

    {"Protocol error", ErrorClass::kForeign},
};

std::string_view FirstWord(std::string_view text) { return text.substr(0, text.find(' ')); }

const Rule* FindWord(std::string_view word) {
  const Rule* const rule = std::find_if(std::begin(kByWord), std::end(kByWord),
                                        [&](const Rule& r) { return r.start == word; });
  return rule == std::end(kByWord) ? nullptr : rule;
}

bool Consume(std::string_view* text, std::string_view start) {
  if (!text->starts_with(start)) return false;
  text->remove_prefix(start.size());
  return true;
}

// Consumes "@user_script:29: ", "@user_script: 29: " or "user_script:29: ".
bool ConsumePlaceInScript(std::string_view* text) {
  std::string_view rest = *text;
  Consume(&rest, "@");
  if (!Consume(&rest, "user_script:")) return false;
  Consume(&rest, " ");
  const size_t digits = rest.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos) return false;
  rest.remove_prefix(digits);
  if (!Consume(&rest, ": ")) return false;
  *text = rest;
  return true;
}

}  // namespace

ErrorClass ClassifyError(std::string_view message) {
  std::string_view text = message;
  if (!Consume(&text, "ERR ")) {
    const Rule* const rule = FindWord(FirstWord(text));
    return rule == nullptr ? ErrorClass::kFailure : rule->means;
  }
  bool in_script = text.find(", on @user_script:") != std::string_view::npos;
  // Redis 6: "Error running script (call to f_DIGEST): PLACE PLACE -OOM command not ..."
  if (Consume(&text, "Error running script")) {
    in_script = true;
    const size_t end = text.find("): ");
    if (end != std::string_view::npos) text.remove_prefix(end + 3);
  }
  while (ConsumePlaceInScript(&text)) in_script = true;
  Consume(&text, "-");
  Consume(&text, "ERR ");
  if (in_script) {
    if (const Rule* const rule = FindWord(FirstWord(text)); rule != nullptr) return rule->means;
  }
  for (const Rule& rule : kByText) {
    if (text.starts_with(rule.start)) return rule.means;
  }
  return in_script ? ErrorClass::kScriptError : ErrorClass::kFailure;
}

absl::Status ErrorStatus(std::string_view message) {
  // "ERR unknown command 'EVALSHA', with args beginning with: ..." shows the caller's key.
  const size_t arguments = message.find(", with args beginning with");
  std::string text(message.substr(0, std::min(arguments, kLongestMessage)));
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return !absl::ascii_isprint(static_cast<unsigned char>(c)); }, '?');
  switch (ClassifyError(message)) {
    case ErrorClass::kNotMaster:
      return absl::FailedPreconditionError(text);
    case ErrorClass::kNotLoggedIn:
      return absl::UnauthenticatedError(text);
    case ErrorClass::kDenied:
      return absl::PermissionDeniedError(text);
    case ErrorClass::kNoScript:
      return absl::NotFoundError(text);
    case ErrorClass::kScriptError:
      return absl::InternalError(text);
    case ErrorClass::kForeign:
      return absl::DataLossError(text);
    case ErrorClass::kFailure:
    case ErrorClass::kRedirect:
      break;
  }
  return absl::UnknownError(text);
}

bool NeedsNewConnection(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnauthenticated(status) ||
         absl::IsDataLoss(status);
}

bool RefusesConnection(std::string_view message) {
  const std::string_view word = FirstWord(message);
  return word == "DENIED" || word == "NOAUTH" || message.starts_with("ERR max number of clients");
}

}  // namespace tidegate::redis
