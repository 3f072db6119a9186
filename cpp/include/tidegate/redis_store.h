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
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tidegate/store.h"

namespace tidegate {

namespace redis {
class Connection;
class Scripts;
struct Answer;
}  // namespace redis

enum class OnError : uint8_t {
  kFallback,  // a store in this process decides, at fallback_share of the limit
  kOpen,      // everything passes
  kClosed,    // nothing passes
};

struct RedisOptions {
  std::string host = "127.0.0.1";
  int port = 6379;
  std::string unix_path;  // instead of host and port
  std::string username;
  std::string password;
  int database = 0;
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
  int64_t fallback_capacity = 1 << 20;
  size_t max_queue = 100'000;  // calls in flight; more are failures at once
  // The breaker opens after so many failures in a row within ten seconds, and
  // stays open for breaker_open, within a tenth.
  int breaker_failures = 5;
  absl::Duration breaker_open = absl::Seconds(30);
};

class RedisStore final : public Store {
 public:
  // Begins to connect. A server that cannot be reached is no error here.
  static absl::StatusOr<std::shared_ptr<RedisStore>> Create(RedisOptions options);
  ~RedisStore() override;

  BoundLimit Bind(const Limit& limit, std::string_view scope) const override;
  Decision Hit(const Charge& charge, const Moment& moment) override;
  Decision Peek(const Charge& charge, const Moment& moment) override;
  void Refund(const Charge& charge, const Moment& moment) override;
  void Reset(const Charge& charge, const Moment& moment) override;
  void Release(const Charge& charge, int64_t admitted_ns, const Moment& moment) override;
  Decision HitAll(absl::Span<const Charge> plan, const Moment& moment,
                  absl::FunctionRef<int64_t()> clock) override;
  Decision PeekAll(absl::Span<const Charge> plan, const Moment& moment) override;
  StoreStats stats() const override;
  // Failures of our own scripts: mistakes in tidegate, not of the server.
  int64_t script_errors() const { return script_errors_.load(std::memory_order_relaxed); }
  bool blocks() const override { return true; }

  bool client_clock() const { return options_.client_clock; }
  // One round trip, whatever the breaker says; the error says what is wrong.
  absl::Status Ping();

 private:
  explicit RedisStore(RedisOptions options);

  enum class Op : uint8_t { kHit, kPeek, kRefund, kRelease };

  Decision Decide(Op op, absl::Span<const Charge> plan, const Moment& moment);
  void Amend(Op op, const Charge& charge, int64_t admitted_ns, const Moment& moment);
  absl::StatusOr<redis::Answer> Run(Op op, absl::Span<const Charge> plan, int64_t admitted_ns,
                                    const Moment& moment);
  Decision Degraded(Op op, absl::Span<const Charge> plan);
  Decision Fallback(Op op, absl::Span<const Charge> plan, const Moment& moment);
  Decision AskFallback(Op op, absl::Span<const Charge> plan, const Moment& moment);
  // The limit in the fallback store, at its share.
  BoundLimit Local(const BoundLimit& limit) const;

  // Whether the breaker lets a call through.
  bool Admit();
  void Record(const absl::Status& status);

  const RedisOptions options_;
  const std::unique_ptr<redis::Scripts> scripts_;
  const std::unique_ptr<redis::Connection> connection_;
  std::shared_ptr<Store> fallback_;

  std::atomic<int64_t> degraded_{0};
  std::atomic<int64_t> errors_{0};
  std::atomic<int64_t> script_errors_{0};
  // The breaker, without a lock that a fork() could leave held. Instants are
  // nanoseconds of SystemClock.
  std::atomic<int> failures_{0};  // in a row
  std::atomic<int64_t> first_failure_ns_{0};
  std::atomic<int64_t> open_until_ns_{0};  // 0: closed
};

}  // namespace tidegate

#endif  // TIDEGATE_REDIS_STORE_H_
