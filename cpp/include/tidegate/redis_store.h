// The store that a fleet shares: every call is one round trip to one Redis.
//
//   auto store = RedisStore::Create({.host = "127.0.0.1"});
//
// The scripts in lua/ decide; the state they return is stepped once more by the
// pure step (step.h) for what the headers need, so decisions equal those of the
// memory store. docs/adr/0007 tells why the client is as it is.
//
// Nothing is ever raised into a call. Where Redis does not answer within the
// deadline, refuses, or the breaker is open, RedisOptions::on_error decides and the
// decision is marked degraded. What may have been executed is never sent again.
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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tidegate/fingerprint.h"
#include "tidegate/step.h"
#include "tidegate/store.h"

struct redisReply;

namespace tidegate {

namespace redis {
struct BoardView;
class Breaker;
class Client;
class DenyCache;
class Scripts;
struct Answer;
struct FreeReply;
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
  kSentinel,  // one server, which those at `nodes` know
  kCluster,   // of which `nodes` are some
};

struct RedisTls {
  std::string ca_file;  // where both are empty: what the system trusts
  std::string ca_dir;
  std::string cert_file;  // of this client, and its key where that is another file
  std::string key_file;
  bool verify = true;
  bool check_hostname = true;
};

struct RedisOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string unix_path;  // instead of host and port
  Topology topology = Topology::kStandalone;
  std::vector<RedisAddress> nodes;  // instead of host and port
  std::string service;              // what sentinels call the master
  std::string sentinel_username;
  std::string sentinel_password;
  std::string username;
  std::string password;
  // Asked for at each connection instead, for passwords that change.
  std::function<absl::StatusOr<std::string>()> password_source;
  int database = 0;
  std::optional<RedisTls> tls;
  std::string client_name = "tidegate";
  absl::Duration timeout = absl::Milliseconds(50);    // of a call, in all
  absl::Duration connect_timeout = absl::Seconds(1);  // of one attempt
  // The instants of the limiter's clock instead of the server's TIME.
  bool client_clock = false;
  // How much longer than its state matters a key lives. With client_clock the
  // clocks of the hosts differ: at least the tolerance (step.h) is added.
  absl::Duration ttl_margin = absl::ZeroDuration();
  OnError on_error = OnError::kFallback;
  double fallback_share = 1.0;  // 0 to 1, that is 1/instances
  // What decides without Redis; a memory store of its own where it is null. All whose
  // fallback is the same shared memory also share what they learn of the same Redis:
  // whether it answers, and whom it refused.
  std::shared_ptr<Store> fallback;
  size_t max_queue = 100'000;  // calls in flight; more are failures at once
  // How long a refusal may be repeated without asking again; 0: never.
  absl::Duration deny_cache_max = absl::Seconds(1);
  // See redis/breaker.h.
  int breaker_failures = 5;
  absl::Duration breaker_open = absl::Seconds(30);
  // Told once of each change of the breaker, from any thread: whether it is open now,
  // and why; of what another process found at the next call. Written to stderr where
  // it is null.
  std::function<void(bool open, const std::string& why)> on_breaker;
  // Called with a message at the first, second, fourth, eighth, ... script error (see
  // StoreStats), from any thread. Written to stderr where it is null.
  std::function<void(const std::string& message)> on_script_error;
};

class RedisStore final : public Store, public std::enable_shared_from_this<RedisStore> {
 public:
  // Begins to connect. A server that cannot be reached is no error here.
  static absl::StatusOr<std::shared_ptr<RedisStore>> Create(RedisOptions options);
  ~RedisStore() override;

  absl::Status Accepts(const Limit& limit) const override;
  BoundLimit Bind(const Limit& limit, std::string_view scope) const override;
  Decision Hit(const Charge& charge, const Moment& moment) override;
  Decision Peek(const Charge& charge, const Moment& moment) override;
  // Where it is not known what charged the units: what the fallback counts of them is taken back
  // there, and only the rest in Redis. Returns the cost.
  int64_t Refund(const Charge& charge, const Moment& moment) override;
  void Reset(const Charge& charge, const Moment& moment) override;
  // In Redis alone, as GiveBack().
  void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) override;
  Decision HitAll(absl::Span<const Charge> plan, const Moment& moment,
                  absl::FunctionRef<int64_t()> clock) override;
  Decision PeekAll(absl::Span<const Charge> plan, const Moment& moment) override;
  bool HitWithoutWaiting(absl::Span<const Charge> plan, const Moment& moment,
                         Decision* decision) override;
  void HitMany(absl::Span<const Charge> charges, const Moment& moment, Verdict* verdicts) override;
  StoreStats stats() const override;
  bool blocks() const override { return true; }

  // Refunds or releases a plan, of one slot, in Redis alone: nothing where the breaker is open.
  // With the instant of their hit a refund takes back the very units of a log.
  void GiveBack(Op op, absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment);
  // Gives back in the fallback what it charged at `admitted_ns`.
  void GiveBackInFallback(Charge charge, int64_t admitted_ns, const Moment& moment);
  // Gives back what the fallback counts for the key, at most the cost; returns how many units.
  int64_t RefundFallback(Charge charge, const Moment& moment);
  // How the fallback counts for the key, by its own share of the limit.
  Decision PeekFallback(Charge charge, const Moment& moment);

  using Clock = std::function<int64_t()>;
  using Done = std::function<void(const Decision&)>;
  // Asks without waiting. The answer where it takes no round trip; else `done` is told
  // later, once, by another thread. The limits of `plan` and this must live until then.
  // Refunds and releases are of Redis alone, and `admitted_ns` is as in GiveBack(). What
  // decides nothing (refunds, releases, resets) is told an empty decision. A state that lies
  // too far ahead is asked for again at a confirmed reading of `clock`, where there is one.
  std::optional<Decision> Begin(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                const Moment& moment, Clock clock, Done done);
  // Sends what was begun: once for many, so that they go out together.
  void Kick();

  bool client_clock() const { return options_.client_clock; }
  // Where it counts, as a URI without credentials or options, for logs and metrics.
  std::string server() const;
  // One round trip, whatever the breaker says; the error says what is wrong.
  absl::Status Ping();
  // Any command, for who looks after a server; waits up to `timeout`.
  absl::StatusOr<redis::Reply> Command(const std::vector<std::string>& words,
                                       absl::Duration timeout);
  // Forgets the refusals that were remembered, for who has removed keys by a command.
  void ForgetRefusals();

 private:
  class Sent;
  class Spread;
  class Parting;
  class Probe;
  static constexpr size_t kMostDenied = 8;
  // What a request was made with, for what its reply is worth.
  struct Asked {
    int64_t at_ns;  // by SystemClock, or with client_clock the moment's
    uint64_t renewals = 0;
    uint64_t foreign_replies = 0;
    uint64_t versions[kMostDenied] =
        {};  // of the deny cache, where the plan is no longer than this
  };

  explicit RedisStore(RedisOptions options);

  Asked Ask(absl::Span<const Charge> plan, const Moment& moment) const;
  Fingerprint KeyOf(const Charge& charge) const;
  uint16_t SlotOf(const Charge& charge) const;
  redis::Request RequestFor(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                            const Moment& moment) const;
  // What is wrong with a reply, before it is read: a status of client.h or of error_reply.h,
  // so NotFound where the server does not have the script.
  static absl::Status FailureIn(const absl::StatusOr<redis::Reply>& reply);
  // Gives up the connection if `failure` says that it is of no use. Only the first of the
  // calls made since the last renewal does: the others speak of a connection that is gone.
  void RenewAfter(const absl::Status& failure, uint64_t renewals);
  void Renew(uint64_t renewals, const std::string& why);
  // The decision that an answer comes to, or that stands in for it.
  Decision Judge(Op op, absl::Span<const Charge> plan, const Moment& moment, const Asked& asked,
                 const absl::StatusOr<redis::Answer>& answer);
  // What a refused plan leaves in the deny cache, and what that says later.
  void Remember(absl::Span<const Charge> plan, const Asked& asked, const redis::Answer& answer,
                int64_t retry_after_ns);
  bool Denied(absl::Span<const Charge> plan, int64_t now_ns, Decision* decision);
  bool Recall(const Charge& charge, int64_t now_ns, Decision* decision) const;
  // What is done before Redis is asked; true where it need not be, and `decision` is the
  // answer.
  bool Before(Op op, absl::Span<const Charge> plan, const Moment& moment, Decision* decision);
  // The same of what the breaker says, which is not quiet.
  bool DecideUnquiet(Op op, absl::Span<const Charge> plan, const Moment& moment,
                     Decision* decision);
  Decision Run(Op op, absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment);
  // What Begin() does once it is known that Redis is to be asked, and what answers with
  // no round trip where the keys of a plan lie in several slots.
  void Enqueue(Op op, absl::Span<const Charge> plan, int64_t admitted_ns, const Moment& moment,
               std::chrono::steady_clock::time_point deadline, Clock clock, Done done);
  bool Spans(absl::Span<const Charge> plan) const;
  std::optional<Decision> BeginSpread(absl::Span<const Charge> plan, const Moment& moment,
                                      Clock clock, Done done);
  // `host_ns` is HostNowNs().
  Decision Degraded(Op op, absl::Span<const Charge> plan, const Moment& moment, int64_t host_ns);
  // Makes `d` a refusal of a limit that is used up.
  static void Refuse(Decision* d, int64_t retry_after_ns);
  Decision FromPolicy(absl::Span<const Charge> plan, int64_t host_ns) const;
  Decision FromFallback(Op op, absl::Span<const Charge> plan, const Moment& moment);
  Decision AskFallback(Op op, absl::Span<const Charge> plan, const Moment& moment);
  Moment FallbackMoment(const Moment& moment, int64_t host_ns) const;
  // What the fallback counts for a charge.
  static Charge InFallback(Charge charge);
  void Record(const absl::Status& status);
  // Tells this store's users of the breaker's change, if there is one, and why.
  void TellOfChange(absl::string_view failure);
  // By the clock that all who share the board have.
  int64_t HostNowNs() const;

  const RedisOptions options_;
  const std::shared_ptr<Store> fallback_;
  const int64_t clock_shift_ns_;  // of the fallback
  const std::unique_ptr<redis::BoardView> board_;
  const std::unique_ptr<redis::Scripts> scripts_;
  const std::unique_ptr<redis::DenyCache> denied_;
  const std::unique_ptr<redis::Breaker> breaker_;
  const std::shared_ptr<redis::Client> client_;

  std::atomic<uint64_t> renewals_{0};         // connections given up because of a reply
  std::atomic<uint64_t> foreign_replies_{0};  // replies that belong to another command
  std::atomic<int64_t> probes_{0};            // sent
  std::atomic<int64_t> closed_ns_{0};         // when the breaker was last seen to close
  std::atomic<int64_t> degraded_{0};
  std::atomic<int64_t> errors_{0};
  std::atomic<int64_t> script_errors_{0};
  std::atomic<int64_t> denied_locally_{0};
};

}  // namespace tidegate

#endif  // TIDEGATE_REDIS_STORE_H_
