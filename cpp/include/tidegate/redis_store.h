// The store that a fleet shares: every call is one round trip to one Redis.
//
//   auto store = RedisStore::Create({.host = "127.0.0.1"});
//
// The scripts in lua/ decide; the state they return is stepped once more by the
// pure step (step.h) for the values of the headers, so decisions equal those of the
// memory store. docs/adr/0007 explains the design of the client.
//
// Decisions never fail. If Redis does not answer within the deadline, refuses, or the breaker is
// open, RedisOptions::on_error decides and the decision is marked degraded. A command that may have
// been executed is never sent again.
//
// Thread-safe. Fork-safe: a child opens a connection of its own.
#ifndef TIDEGATE_REDIS_STORE_H_
#define TIDEGATE_REDIS_STORE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tidegate/fingerprint.h"
#include "tidegate/step.h"
#include "tidegate/store.h"

struct redisReply;

namespace tidegate {

// The reply of Redis to a command: nothing, an integer, a string, or a list of these.
struct RedisValue {
  std::variant<std::monostate, int64_t, std::string, std::vector<RedisValue>> value;
};

namespace leases {
struct Asking;
class Table;
}  // namespace leases

namespace redis {
struct BoardView;
class Breaker;
class Client;
class DenyCache;
class Scripts;
struct Answer;
struct FreeReply;
template <typename T>
class ProcessLocal;
struct Request;
using Reply = std::unique_ptr<redisReply, FreeReply>;
}  // namespace redis

enum class OnError : uint8_t {
  kFallback,  // a store in this process decides, at fallback_share of the limit
  kOpen,      // everything passes
  kClosed,    // nothing passes
};

struct RedisAddress {
  std::string host;
  int port = 6379;
};

enum class Topology : uint8_t {
  kStandalone,
  kSentinel,  // one server, whose address the sentinels at `nodes` return
  kCluster,   // a cluster, some of whose nodes are `nodes`
};

struct RedisTls {
  std::string ca_file;  // if both are empty: the system's authorities
  std::string ca_dir;
  std::string cert_file;  // the certificate of this client
  std::string key_file;   // its key; if empty, cert_file has the key too
  bool verify = true;
  bool check_hostname = true;
};

struct RedisOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string unix_path;  // instead of host and port
  Topology topology = Topology::kStandalone;
  std::vector<RedisAddress> nodes;  // instead of host and port
  std::string service;              // the sentinels' name of the master
  std::string sentinel_username;
  std::string sentinel_password;
  std::string username;
  std::string password;
  // Called at each connection instead of using `password`, for passwords that change.
  std::function<absl::StatusOr<std::string>()> password_source;
  int database = 0;
  std::optional<RedisTls> tls;
  std::string client_name = "tidegate";
  absl::Duration timeout = absl::Milliseconds(50);    // of a call, in all
  absl::Duration connect_timeout = absl::Seconds(1);  // of one attempt
  // Decide at instants of the limiter's clock instead of the server's TIME.
  bool client_clock = false;
  // How long a key lives after its state no longer matters. With client_clock the clocks of the
  // hosts differ: at least the tolerance (step.h) is added.
  absl::Duration ttl_margin = absl::ZeroDuration();
  OnError on_error = OnError::kFallback;
  double fallback_share = 1.0;  // 0 to 1, such as 1/instances
  // The store that decides without Redis; a memory store of its own if null. Stores with the same
  // shared memory as fallback also share their knowledge of the same Redis: whether it answers, and
  // which keys it refused.
  std::shared_ptr<Store> fallback;
  size_t max_queue = 100'000;  // calls in flight; further calls fail at once
  // For how long units of hot keys are leased to this process, which then decides without asking:
  // 1 ms to 10 s, and no longer than a quarter of a limit's burst takes to come back; twice as
  // long for keys of which few calls come. 0 asks at each call. Not with client_clock.
  // docs/leases.md says what is leased.
  absl::Duration lease = absl::ZeroDuration();
  // Called, from any thread, for each limit that is not leased then, with its text and the reason;
  // may be null.
  std::function<void(const std::string& limit, const std::string& why)> on_strict;
  // How long a refusal may be repeated without asking Redis again; 0 turns this off.
  absl::Duration deny_cache_max = absl::Seconds(1);
  // See redis/health/breaker.h.
  int breaker_failures = 5;
  absl::Duration breaker_open = absl::Seconds(30);
  // Called once at each change of the breaker, from any thread: whether it is open now, and why. A
  // change by another process is reported at the next call. If null, nothing is reported.
  std::function<void(bool open, const std::string& why)> on_breaker;
  // Called with the reason of the first failure, and then of one in a minute, from any thread: a
  // call that Redis did not answer, or an attempt to connect, which needs no call. If null, nothing
  // is reported.
  std::function<void(const std::string& message)> on_failure;
  // Called with a message at the first, second, fourth, eighth, ... script error (see
  // StoreStats), from any thread. If null, nothing is reported.
  std::function<void(const std::string& message)> on_script_error;
  // Calls what it is given, with which the destructor of a store with leases waits for answers, up
  // to a tenth of a second: for a user whose thread may have a lock that others need, and lets go
  // of it meanwhile. If null, that is called as it is.
  std::function<void(absl::FunctionRef<void()> wait)> while_ending;
};

class RedisStore final : public Store, public std::enable_shared_from_this<RedisStore> {
 public:
  // Begins to connect. An unreachable server is no error here.
  static absl::StatusOr<std::shared_ptr<RedisStore>> Create(RedisOptions options);
  ~RedisStore() override;

  std::string_view kind() const override { return "redis"; }
  absl::Status Accepts(const Limit& limit) const override;
  BoundLimit Bind(const Limit& limit, std::string_view scope) const override;
  Decision Hit(const Charge& charge, const Moment& moment) override;
  Decision Peek(const Charge& charge, const Moment& moment) override;
  // A refund if it is unknown which store charged the units: units that the fallback counts are
  // taken back there, and only the rest in Redis. Returns the cost.
  int64_t Refund(const Charge& charge, const Moment& moment) override;
  void Reset(const Charge& charge, const Moment& moment) override;
  void Forget(const Charge& charge, const Moment& moment) override;
  // Only in Redis, like GiveBack().
  void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) override;
  // Only in Redis; kNoInstant if the breaker is open.
  int64_t Extend(absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment) override;
  Decision HitAll(absl::Span<const Charge> plan, const Moment& moment,
                  absl::FunctionRef<int64_t()> clock, Outcomes* outcomes) override;
  Decision ChargeUsed(Op op, const Charge& charge, const Moment& moment) override;
  // Both are errors while Redis does not answer: the fallback does not know what a key has.
  absl::StatusOr<QuotaStatus> StatusOf(const Charge& charge, const Moment& moment) override;
  absl::Status TopUp(const Charge& charge, const QuotaTopUp& top_up, const Moment& moment) override;
  absl::Status BringForward(const Charge& charge, const Moment& moment) override;
  Decision ChargeAllUsed(Op op, absl::Span<const Charge> plan, const Moment& moment) override;
  Decision PeekAll(absl::Span<const Charge> plan, const Moment& moment,
                   Outcomes* outcomes) override;
  // Only in Redis; does nothing if the breaker is open.
  void GiveBack(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                const Moment& moment) override;
  void HitMany(absl::Span<const Charge> charges, const Moment& moment, Verdict* verdicts) override;
  absl::Status KeepsReservations(const Limit& limit) const override;
  // Records are kept in Redis only: what was reserved in the fallback has none.
  std::optional<Decision> SubmitReserved(Op op, absl::Span<const Charge> plan,
                                         std::shared_ptr<Reservation> reservation,
                                         const Moment& moment, Clock clock, Done done) override;
  StoreStats stats() const override;
  // Waits for half a second at most, or twice the timeout if that is shorter.
  void GiveLeasesBack() override;
  // Clears the fallback and the remembered refusals.
  void Clear() override;

  bool blocks() const override { return true; }
  bool HitWithoutWaiting(absl::Span<const Charge> plan, const Moment& moment, Decision* decision,
                         Outcomes* outcomes) override;
  bool HitLeased(const Charge& charge, Decision* decision) override;
  // Refunds and releases go only to Redis. If a state lies too far ahead, the call is made again at
  // a confirmed reading of `clock`, if there is one.
  std::optional<Decision> Submit(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                 const Moment& moment, Clock clock, Outcomes* outcomes,
                                 Done done) override;
  void Flush() override;
  // Asks Redis even if the breaker is open.
  absl::Status Ping() override;

  // Whether RedisOptions::lease is set.
  bool leases() const { return leases_ != nullptr; }
  // For how long units of `limit` are leased, see RedisOptions::lease; zero, and in `why` the
  // reason, if Redis is asked for each call.
  absl::Duration LeaseOf(const Limit& limit, std::string* why) const;

  // Whether RedisOptions::client_clock is set.
  bool reads_clock() const override { return options_.client_clock; }
  bool spans_hosts() const override { return true; }

  Decision PeekFallback(const Charge& charge, const Moment& moment) override;
  void GiveBackInFallback(const Charge& charge, int64_t admitted_ns, const Moment& moment) override;
  int64_t ExtendInFallback(const Charge& charge, int64_t admitted_ns,
                           const Moment& moment) override;
  int64_t RefundFallback(const Charge& charge, const Moment& moment) override;

  // The server as a URI without credentials or options.
  std::string name() const override;
  // Sends any command, for tools that inspect a server; waits up to `timeout`. An error reply
  // becomes a status with that message.
  absl::StatusOr<RedisValue> Command(const std::vector<std::string>& words, absl::Duration timeout);
  // Forgets the remembered refusals, for tools that have removed keys by a command.
  void ForgetRefusals();

 private:
  class Sent;
  class SentReserved;
  class Spread;
  class SpreadReserved;
  class Parting;
  class Probe;
  class LeaseDesk;
  class LeaseQuestion;
  static constexpr size_t kMostDenied = 8;
  // The circumstances of a request, which decide how far its reply can be used.
  struct Asked {
    int64_t at_ns;  // by SystemClock, or with client_clock the moment's
    uint64_t renewals = 0;
    uint64_t foreign_replies = 0;
    // The versions in the deny cache, if the plan has at most so many limits.
    uint64_t versions[kMostDenied] = {};
    // What a hit asks beside its cost, for each limit; empty if nothing.
    absl::InlinedVector<std::shared_ptr<const leases::Asking>, 1> askings;
  };

  explicit RedisStore(RedisOptions options);

  Asked Ask(Op op, absl::Span<const Charge> plan, const Moment& moment) const;
  Fingerprint KeyOf(const Charge& charge) const;
  uint16_t SlotOf(const Charge& charge) const;
  redis::Request RequestFor(
      Op op, absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment,
      absl::Span<const std::shared_ptr<const leases::Asking>> askings = {}) const;
  // The failure of a call, before its reply is read: a status of client.h or of error_reply.h, so
  // NotFound if the server does not have the script.
  static absl::Status FailureIn(const absl::StatusOr<redis::Reply>& reply);
  // Renews the connection if `failure` means that it is useless. Only the first of the calls made
  // since the last renewal does so: the others failed on a connection that is gone.
  void RenewAfter(const absl::Status& failure, uint64_t renewals);
  void Renew(uint64_t renewals, const std::string& why);
  // The decision of an answer; if Redis did not give one, the degraded decision in its place.
  Decision Judge(Op op, absl::Span<const Charge> plan, const Moment& moment, const Asked& asked,
                 const absl::StatusOr<redis::Answer>& answer, Outcomes* outcomes);
  // The same for a call of a reservation.
  Decision JudgeReserved(Op op, absl::Span<const Charge> plan, const Moment& moment,
                         const Asked& asked, const absl::StatusOr<redis::Answer>& answer,
                         Reservation* reservation);
  // SubmitReserved() for the parts `held` of the reservation.
  std::optional<Decision> SubmitHeld(Op op, absl::Span<const Charge> plan,
                                     std::shared_ptr<Reservation> reservation,
                                     const std::vector<size_t>& held, const Moment& moment,
                                     Clock clock, Done done);
  Decision DegradedReserved(Op op, absl::Span<const Charge> plan, const Moment& moment,
                            Reservation* reservation);
  // Remember() puts the refusal of a plan into the deny cache; Denied() repeats it later.
  void Remember(absl::Span<const Charge> plan, const Asked& asked, const redis::Answer& answer,
                int64_t retry_after_ns);
  bool Denied(absl::Span<const Charge> plan, int64_t now_ns, Decision* decision,
              Outcomes* outcomes);
  using Decide = Decision(const Charge& charge, const CellState& state, int64_t now_ns);
  bool Recall(const Charge& charge, int64_t now_ns, Decide* decide, Decision* decision) const;
  // The work before Redis is asked; returns true if it need not be asked, and `decision` is the
  // answer.
  bool Before(Op op, absl::Span<const Charge> plan, const Moment& moment, Decision* decision,
              Outcomes* outcomes);
  // The same while the breaker is not quiet: also reports its changes and sends a probe that is
  // due.
  bool DecideByBreaker(Op op, absl::Span<const Charge> plan, const Moment& moment,
                       Decision* decision, Outcomes* outcomes);
  // Whether to send a probe before the breaker's time is over, since the server shows life.
  bool ProbeIsEarly(int64_t now_ns);
  // Whether leases may decide a call of the plan: all of its limits are leased.
  bool IsLeased(absl::Span<const Charge> plan) const;
  // What a hit asks beside its cost; empty if nothing.
  absl::InlinedVector<std::shared_ptr<const leases::Asking>, 1> AskForLeases(
      absl::Span<const Charge> plan) const;
  // Decides a hit, a peek or a refund by what this process was leased, if it can.
  bool DecideByLease(Op op, absl::Span<const Charge> plan, Decision* decision, Outcomes* outcomes);
  bool HitByLease(const Charge& charge, Decision* decision);
  // Whether a lease has the units of a hit at `now_ns`, by the clock of leases; then they are
  // spent.
  bool SpendLease(leases::Table& table, const Charge& charge, int64_t now_ns);
  // HitWithoutWaiting() for calls that leases do not decide.
  bool HitUnleased(absl::Span<const Charge> plan, const Moment& moment, Decision* decision,
                   Outcomes* outcomes);
  void SendGivenUp(leases::Table& table);
  // Questions that were asked at one time, in one command if their keys share a hash slot.
  void SendQuestions(absl::Span<const std::shared_ptr<const leases::Asking>> askings);
  // Tells the table what became of the questions of a plan; fails if the script leased differently
  // from the core.
  absl::Status HearLeases(absl::Span<const std::shared_ptr<const leases::Asking>> askings,
                          absl::Span<const Charge> plan,
                          const absl::StatusOr<redis::Answer>& answer);
  absl::Status HearLease(const leases::Asking& asking, const Charge& charge,
                         const redis::Answer& answer, size_t index);
  // Waits for the answers so long at most, once for those under way and once for those it sends.
  void GiveLeasesBackWithin(absl::Duration longest);
  absl::StatusOr<redis::Answer> RunQuotaScript(redis::Request request);
  Decision Run(Op op, absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment,
               Outcomes* outcomes);
  // Submit() once it is known that Redis must be asked, and the answers without a round trip for a
  // plan with keys in several slots.
  void Enqueue(Op op, absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment,
               std::chrono::steady_clock::time_point deadline, Clock clock, Outcomes* outcomes,
               Done done);
  bool Spans(absl::Span<const Charge> plan) const;
  std::optional<Decision> SubmitSpread(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                       const Moment& moment, Clock clock, Outcomes* outcomes,
                                       Done done);
  // The same, and waits for the answer.
  Decision RunSpread(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                     const Moment& moment, Outcomes* outcomes);
  // RunSpread() for a plan with keys in several slots, Run() for others.
  Decision RunAll(Op op, absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment,
                  Outcomes* outcomes);
  // `host_ns` is HostNowNs().
  Decision Degraded(Op op, absl::Span<const Charge> plan, const Moment& moment, int64_t host_ns,
                    Outcomes* outcomes);
  // Makes `d` the refusal of a limit that is used up.
  static void Refuse(Decision* d, int64_t retry_after_ns);
  Decision FromPolicy(const Charge& charge, int64_t host_ns) const;
  Decision FromPolicies(Op op, absl::Span<const Charge> plan, int64_t host_ns,
                        Outcomes* outcomes) const;
  // Turns a decision on the fallback's share of `whole` into one on the whole, with the room that
  // the share leaves.
  static void OnWhole(const Limit& whole, Decision* decision);
  Decision FromFallback(Op op, absl::Span<const Charge> plan, const Moment& moment,
                        Outcomes* outcomes);
  Decision DecideInFallback(Op op, absl::Span<const Charge> plan, const Moment& moment,
                            Outcomes* outcomes);
  Moment FallbackMoment(const Moment& moment, int64_t host_ns) const;
  // The fallback's part of a charge.
  static Charge InFallback(Charge charge);
  void Record(const absl::Status& status);
  // Reports a change of the breaker to this store's users, with its reason.
  void ReportChange(absl::string_view failure);
  void Report(bool open, absl::string_view failure);
  // The instant by the clock that all users of the board share.
  int64_t HostNowNs() const;
  // The same corrected when the wall clock is set: for instants, not durations.
  int64_t WallNowNs() const;

  const RedisOptions options_;
  const std::shared_ptr<Store> fallback_;
  const ClockShift clock_shift_;  // of the fallback
  const std::unique_ptr<redis::BoardView> board_;
  const std::unique_ptr<redis::Scripts> scripts_;
  const std::unique_ptr<redis::DenyCache> denied_;
  const std::unique_ptr<redis::Breaker> breaker_;
  const std::shared_ptr<redis::Client> client_;
  const std::unique_ptr<redis::ProcessLocal<leases::Table>> leases_;  // null if none are wanted
  const std::unique_ptr<redis::ProcessLocal<LeaseDesk>> desk_;        // the same

  std::atomic<uint64_t> renewals_{0};         // connections given up because of a reply
  std::atomic<uint64_t> foreign_replies_{0};  // replies that belong to another command
  std::atomic<int64_t> probes_{0};            // sent
  std::atomic<int64_t> next_look_ns_{0};      // when to look for life again; see ProbeIsEarly()
  std::atomic<int64_t> look_pause_ns_{0};
  std::atomic<int64_t> closed_ns_{0};  // when the breaker was last seen to close
  std::atomic<int64_t> degraded_{0};
  std::atomic<int64_t> errors_{0};
  std::atomic<int64_t> script_errors_{0};
  std::atomic<int64_t> denied_locally_{0};
};

}  // namespace tidegate

#endif  // TIDEGATE_REDIS_STORE_H_
