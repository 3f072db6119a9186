// The error replies of Redis 6.2 to 8.2 and Valkey 8.1, in their own words, and those of proxies.
#include "redis/protocol/error_reply.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace tidegate::redis {
namespace {

struct Case {
  std::string_view message;
  ErrorClass means;
};

void ExpectClasses(std::initializer_list<Case> cases) {
  for (const Case& c : cases) {
    EXPECT_EQ(static_cast<int>(ClassifyError(c.message)), static_cast<int>(c.means)) << c.message;
  }
}

constexpr std::string_view kOom = "OOM command not allowed when used memory > 'maxmemory'.";
constexpr std::string_view kReadOnly = "READONLY You can't write against a read only replica.";
constexpr std::string_view kWrongType =
    "WRONGTYPE Operation against a key holding the wrong kind of value";

// The replies to an error inside a script: of Redis 7, of Redis 6, and of Redis 6 if it raised the
// error itself.
std::string InScript7(std::string_view error) {
  return std::string(error) + " script: f_e0e1, on @user_script:29.";
}
std::string InScript6(std::string_view error) {
  return "ERR Error running script (call to f_e0e1): @user_script:29: " + std::string(error) + " ";
}
std::string RaisedByScript6(std::string_view error) {
  return InScript6("@user_script: 29: -" + std::string(error));
}

TEST(ErrorReplyTest, EveryFirstWordHasItsClass) {
  ExpectClasses({
      {"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
       ErrorClass::kFailure},
      {"BUSY Valkey is busy running a module command.", ErrorClass::kFailure},
      {"CLUSTERDOWN The cluster is down", ErrorClass::kFailure},
      {"CLUSTERDOWN The cluster is down and only accepts read commands", ErrorClass::kFailure},
      {"CLUSTERDOWN Hash slot not served", ErrorClass::kFailure},
      {"IOERR error or timeout connecting to the client", ErrorClass::kFailure},
      {"LOADING Redis is loading the dataset in memory", ErrorClass::kFailure},
      {"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to "
       "disk. Commands that may modify the data set are disabled, because this instance is "
       "configured to report errors during writes if RDB snapshotting fails "
       "(stop-writes-on-bgsave-error option). Please check the Redis logs for details about the "
       "RDB error.",
       ErrorClass::kFailure},
      {"MISCONF Errors writing to the AOF file: No space left on device", ErrorClass::kFailure},
      {"NOREPLICAS Not enough good replicas to write.", ErrorClass::kFailure},
      {kOom, ErrorClass::kFailure},

      {"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
       ErrorClass::kNotMaster},
      {kReadOnly, ErrorClass::kNotMaster},
      {"UNBLOCKED force unblock from blocking operation, instance state changed (master -> "
       "replica?)",
       ErrorClass::kNotMaster},

      {"NOAUTH Authentication required.", ErrorClass::kNotLoggedIn},
      {"WRONGPASS invalid username-password pair or user is disabled.", ErrorClass::kNotLoggedIn},

      {"DENIED Redis is running in protected mode because protected mode is enabled and no "
       "password is set for the default user.",
       ErrorClass::kDenied},
      {"NOPERM this user has no permissions to run the 'evalsha' command", ErrorClass::kDenied},
      {"NOPERM User app has no permissions to run the 'eval' command", ErrorClass::kDenied},
      {"NOPERM this user has no permissions to access one of the keys used as arguments",
       ErrorClass::kDenied},

      {"ASK 3999 127.0.0.1:6381", ErrorClass::kRedirect},
      {"MOVED 3999 127.0.0.1:6381", ErrorClass::kRedirect},
      {"REDIRECT 127.0.0.1:6381", ErrorClass::kRedirect},
      {"TRYAGAIN Multiple keys request during rehashing of slot", ErrorClass::kRedirect},

      {"NOSCRIPT No matching script. Please use EVAL.", ErrorClass::kNoScript},
      {"NOSCRIPT No matching script.", ErrorClass::kNoScript},

      {"CROSSSLOT Keys in request don't hash to the same slot", ErrorClass::kScriptError},
      {"TIDEGATE the value of a key is not a bucket", ErrorClass::kScriptError},
      {kWrongType, ErrorClass::kScriptError},

      {"BUSYGROUP Consumer Group name already exists", ErrorClass::kForeign},
      {"BUSYKEY Target key name already exists.", ErrorClass::kForeign},
      {"EXECABORT Transaction discarded because of previous errors.", ErrorClass::kForeign},
      {"INPROG Failover already in progress", ErrorClass::kForeign},
      {"INVALIDOBJ Corrupted HLL object detected", ErrorClass::kForeign},
      {"NOGOODSLAVE No suitable replica to promote", ErrorClass::kForeign},
      {"NOGROUP No such key 'k' or consumer group 'g'", ErrorClass::kForeign},
      {"NOMASTERLINK Can't SYNC while not connected with my master", ErrorClass::kForeign},
      {"NOPROTO unsupported protocol version", ErrorClass::kForeign},
      {"NOQUORUM 1 usable Sentinels.", ErrorClass::kForeign},
      {"NOTBUSY No scripts in execution right now.", ErrorClass::kForeign},
      {"UNKILLABLE Sorry the script already executed write commands against the dataset.",
       ErrorClass::kForeign},
  });
}

TEST(ErrorReplyTest, AnErrorInsideAScriptIsClassifiedByItsOwnFirstWord) {
  for (const auto& in_script : {InScript7, InScript6, RaisedByScript6}) {
    for (const auto& [error, means] : std::initializer_list<Case>{
             {kOom, ErrorClass::kFailure},
             {"NOREPLICAS Not enough good replicas to write.", ErrorClass::kFailure},
             {"MISCONF Errors writing to the AOF file: No space left on device",
              ErrorClass::kFailure},
             {kReadOnly, ErrorClass::kNotMaster},
             {"NOPERM this user has no permissions to run the 'get' command", ErrorClass::kDenied},
             {kWrongType, ErrorClass::kScriptError},
             {"TIDEGATE the value of a key is not a log", ErrorClass::kScriptError}}) {
      const std::string message = in_script(error);
      EXPECT_EQ(static_cast<int>(ClassifyError(message)), static_cast<int>(means)) << message;
    }
  }
}

TEST(ErrorReplyTest, ErrorsWithTheWordErrAreClassifiedByTheirText) {
  ExpectClasses({
      {"ERR max number of clients reached", ErrorClass::kFailure},
      {"ERR max number of clients + cluster connections reached", ErrorClass::kFailure},
      {"ERR Script killed by user with SCRIPT KILL... script: f_e0e1, on @user_script:1.",
       ErrorClass::kFailure},
      {"ERR Error running script (call to f_e0e1): @user_script:1: Script killed by user with "
       "SCRIPT KILL... ",
       ErrorClass::kFailure},
      {"ERR Script attempted to execute a command while the cluster is down script: f_e0e1, on "
       "@user_script:29.",
       ErrorClass::kFailure},
      {"ERR Error running script (call to f_e0e1): @user_script:29: @user_script: 29: Lua script "
       "attempted to execute a write command while the cluster is down and readonly ",
       ErrorClass::kFailure},
      {"ERR Script attempted to access a slot not served script: f_e0e1, on @user_script:29.",
       ErrorClass::kFailure},
      {"ERR Error running script (call to f_e0e1): @user_script:29: @user_script: 29: Write "
       "commands not allowed after non deterministic commands. Call redis.replicate_commands() at "
       "the start of your script in order to switch to single commands replication mode. ",
       ErrorClass::kFailure},
      {"ERR Could not find scripting engine 'lua'", ErrorClass::kFailure},

      {"ERR Can not execute the command on a stale replica script: f_e0e1, on @user_script:29.",
       ErrorClass::kNotMaster},

      {"ERR unknown command 'EVALSHA', with args beginning with: 'e0e1' '1' 'tg:a{k}' ",
       ErrorClass::kDenied},
      {"ERR unknown command `EVALSHA`, with args beginning with: ", ErrorClass::kDenied},
      {"ERR Unknown Redis command called from script script: f_e0e1, on @user_script:12.",
       ErrorClass::kDenied},
      {"ERR Unknown command called from script script: f_e0e1, on @user_script:12.",
       ErrorClass::kDenied},
      {"ERR Error running script (call to f_e0e1): @user_script:12: @user_script: 12: Unknown "
       "Redis command called from Lua script ",
       ErrorClass::kDenied},
      {"ERR This Redis command is not allowed from script script: f_e0e1, on @user_script:12.",
       ErrorClass::kDenied},
      {"ERR The user executing the script can't run this command or subcommand script: f_e0e1, on "
       "@user_script:20.",
       ErrorClass::kDenied},
      {"ERR The user executing the script can't access at least one of the keys mentioned in the "
       "command arguments script: f_e0e1, on @user_script:20.",
       ErrorClass::kDenied},
      {"ERR ACL failure in script: User app has no permissions to run the 'get' command script: "
       "f_e0e1, on @user_script:20.",
       ErrorClass::kDenied},
      {"ERR Error running script (call to f_e0e1): @user_script:20: @user_script: 20: The user "
       "executing the script can't run this command or subcommand ",
       ErrorClass::kDenied},

      {"ERR Script attempted to access a non local key in a cluster node script: f_e0e1, on "
       "@user_script:20.",
       ErrorClass::kRedirect},
      {"ERR Error running script (call to f_e0e1): @user_script:20: @user_script: 20: Lua script "
       "attempted to access a non local key in a cluster node ",
       ErrorClass::kRedirect},

      {"ERR Error compiling script (new function): user_script:1: '=' expected near 'x'",
       ErrorClass::kScriptError},
      {"ERR user_script:30: TIDEGATE the value of a key is not a bucket script: f_e0e1, on "
       "@user_script:30.",
       ErrorClass::kScriptError},
      // Errors that a script of hits has caught, as hits.cc begins them.
      {"ERR Error running script (plan.lua): user_script:30: TIDEGATE the value of a key is not a "
       "bucket",
       ErrorClass::kScriptError},
      {"ERR Error running script (plan.lua): WRONGTYPE Operation against a key",
       ErrorClass::kScriptError},
      {"ERR Error running script (call to f_e0e1): @user_script:30: user_script:30: TIDEGATE the "
       "value of a key is not a bucket ",
       ErrorClass::kScriptError},
      {"ERR user_script:3: Script attempted to access nonexistent global variable 'x' script: "
       "f_e0e1, on @user_script:3.",
       ErrorClass::kScriptError},
      {"ERR invalid expire time in 'set' command script: f_e0e1, on @user_script:33.",
       ErrorClass::kScriptError},
      {"ERR Error running script f_e0e1, execution failure", ErrorClass::kScriptError},

      {"ERR Protocol error: invalid bulk length", ErrorClass::kForeign},
  });
}

TEST(ErrorReplyTest, UnknownErrorsAreFailures) {
  ExpectClasses({
      {"", ErrorClass::kFailure},
      {"ERR", ErrorClass::kFailure},
      {"ERR ", ErrorClass::kFailure},
      {"ERR syntax error", ErrorClass::kFailure},
      {"ERR upstream timed out", ErrorClass::kFailure},
      {"upstream failure", ErrorClass::kFailure},
      {"no upstream host", ErrorClass::kFailure},
      {"NEWWORD of a Redis to come script: f_e0e1, on @user_script:29.", ErrorClass::kFailure},
      // Only whole words count.
      {"OOMPH", ErrorClass::kFailure},
      {"NOSCRIPTS", ErrorClass::kFailure},
      {"WRONGTYPES are not WRONGTYPE", ErrorClass::kFailure},
      // Text after the first word, such as a caller's key, does not change the class.
      {"LOADING WRONGTYPE NOSCRIPT script: f_e0e1, on @user_script:29.", ErrorClass::kFailure},
      {"ERR unknown command 'EVALSHA', with args beginning with: 'e0e1' '1' "
       "'tg:a{TIDEGATE user_script, on @user_script:1}' ",
       ErrorClass::kDenied},
  });
}

TEST(ErrorReplyTest, EachClassHasItsStatus) {
  EXPECT_TRUE(absl::IsUnknown(ErrorStatus(kOom)));
  EXPECT_TRUE(absl::IsUnknown(ErrorStatus("MOVED 1 127.0.0.1:1")));
  EXPECT_TRUE(absl::IsFailedPrecondition(ErrorStatus(kReadOnly)));
  EXPECT_TRUE(absl::IsUnauthenticated(ErrorStatus("NOAUTH Authentication required.")));
  EXPECT_TRUE(absl::IsPermissionDenied(ErrorStatus("NOPERM no")));
  EXPECT_TRUE(absl::IsNotFound(ErrorStatus("NOSCRIPT No matching script.")));
  EXPECT_TRUE(absl::IsInternal(ErrorStatus(kWrongType)));
  EXPECT_TRUE(absl::IsDataLoss(ErrorStatus("EXECABORT no")));
}

TEST(ErrorReplyTest, OnlyLostRolesLoginsAndStepNeedANewConnection) {
  for (const std::string_view message :
       {kReadOnly, std::string_view("MASTERDOWN no"), std::string_view("NOAUTH no"),
        std::string_view("NOTBUSY no"),
        std::string_view("ERR Protocol error: unbalanced quotes")}) {
    EXPECT_TRUE(NeedsNewConnection(ErrorStatus(message))) << message;
  }
  for (const std::string_view message :
       {kOom, kWrongType, std::string_view("LOADING no"), std::string_view("NOPERM no"),
        std::string_view("MOVED 1 127.0.0.1:1"), std::string_view("ERR no")}) {
    EXPECT_FALSE(NeedsNewConnection(ErrorStatus(message))) << message;
  }
  EXPECT_FALSE(NeedsNewConnection(absl::OkStatus()));
  EXPECT_FALSE(NeedsNewConnection(absl::AbortedError("the connection broke")));
}

TEST(ErrorReplyTest, ARefusedConnectionIsRecognised) {
  EXPECT_TRUE(RefusesConnection("ERR max number of clients reached"));
  EXPECT_TRUE(RefusesConnection("DENIED Redis is running in protected mode"));
  EXPECT_TRUE(RefusesConnection("NOAUTH Authentication required."));
  EXPECT_FALSE(RefusesConnection("NOPERM this user has no permissions to run 'client|setname'"));
  EXPECT_FALSE(RefusesConnection("ERR unknown command 'CLIENT'"));
}

TEST(ErrorReplyTest, MessagesArePrintableShortAndWithoutKeys) {
  EXPECT_EQ(ErrorStatus("OOM \r\n\xff\0 'x'").message(), "OOM ???");
  EXPECT_EQ(ErrorStatus(std::string_view("OOM\0no", 6)).message(), "OOM?no");
  EXPECT_EQ(ErrorStatus(std::string(1 << 20, 'x')).message().size(), 300u);
  EXPECT_EQ(ErrorStatus("ERR unknown command 'EVALSHA', with args beginning with: 'tg:a{secret}' ")
                .message(),
            "ERR unknown command 'EVALSHA'");
}

}  // namespace
}  // namespace tidegate::redis
