// A limiter: limits, a store and a clock.
//
//   absl::StatusOr<Limit> limit = Limit::Parse("100/minute");
//   auto limiter = Limiter::Create({*limit}, *MemoryStore::Create());
//   if ((*limiter)->Hit("user:42")) ...
//
// Several limits are one plan: a request passes all of them or is charged by
// none. Thread-safe.
#ifndef TIDEGATE_LIMITER_H_
#define TIDEGATE_LIMITER_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "tidegate/clock.h"
#include "tidegate/step.h"
#include "tidegate/store.h"
#include "tidegate/timed_store.h"

namespace tidegate {

class MemoryCells;
class ShmCells;

class Limiter {
 public:
  static constexpr size_t kMostLimits = 65'535;
  // Takes at least one limit; equal limits count once, enforced if one of them is. A null `clock`
  // is SystemClock. Limiters of one store and one scope share the counts of equal limits.
  static absl::StatusOr<std::unique_ptr<Limiter>> Create(const std::vector<Limit>& limits,
                                                         std::shared_ptr<Store> store,
                                                         std::shared_ptr<Clock> clock = nullptr,
                                                         std::string_view scope = "tg");

  const std::vector<BoundLimit>& limits() const { return limits_; }

  // Requires cost >= 1. A cost beyond a limit's capacity is refused with retry_after_ns ==
  // Decision::kNever.
  Decision Hit(std::string_view key, int64_t cost = 1);
  // Like Hit(), but returns only whether the call may pass: the fastest call.
  bool Allow(std::string_view key, int64_t cost = 1);
  Decision Peek(std::string_view key, int64_t cost = 1);
  // Charges each limit `cost`, and refuses nothing: for costs that are known afterwards. What finds
  // no room is owed, and calls are refused until that is paid. Decision::charged is the amount, the
  // smallest of several limits; it is less than `cost` if more would be owed than
  // Limit::max_debt(), and stats() counts the rest as written off. stats() does not count it as a
  // decision.
  Decision ChargeInFull(std::string_view key, int64_t cost);
  // The same, but charges each limit only as much as it has room for.
  Decision ChargeUpTo(std::string_view key, int64_t cost);
  // Like Peek(), for the first limit only, in the fallback of a shared store. Decision::limit is
  // the part of it that the fallback grants.
  Decision PeekFallback(std::string_view key);
  // Gives `cost` units back, never beyond what a fresh key has. With `hit`, the decision of the Hit
  // that charged them, they go back where that hit charged them (Decision::charged_in()) and
  // nowhere else; a log forgets exactly those units. Without it, units that the fallback of a
  // shared store counts for the key are taken back there, and only the rest in the shared store.
  void Refund(std::string_view key, int64_t cost = 1, const Decision* hit = nullptr);
  // Forgets the usage; carried and topped-up units of a quota stay. Forget() forgets these too.
  void Reset(std::string_view key);
  void Forget(std::string_view key);
  // Ends the leases that `hit` took. If the only limit is a sliding log, takes back its charge.
  void Release(std::string_view key, int64_t cost, const Decision& hit);
  // Extends the leases that `hit` took to a whole period from now, and takes those that have ended
  // again if there is room. Returns the decision that identifies them from now on; none if the
  // store did not answer.
  std::optional<Decision> Extend(std::string_view key, int64_t cost, const Decision& hit);
  // StatusOf() returns what a key has of a quota, given by its index in limits(); TopUp() gives it
  // extra units. Both are errors for other limits.
  absl::StatusOr<QuotaStatus> StatusOf(size_t quota, std::string_view key);
  absl::Status TopUp(size_t quota, std::string_view key, const QuotaTopUp& top_up);
  // Records what a key has of the quotas at this instant, for a caller that changes a quota now.
  absl::Status BringForward(std::string_view key);
  // The soft events of the quotas since the last call, with the index of their limit.
  std::vector<std::pair<size_t, QuotaEvents::Event>> TakeEvents();
  // Hits each key in order. `costs` is empty (one each) or as long as `keys`.
  void HitMany(absl::Span<const std::string_view> keys, absl::Span<const int64_t> costs,
               bool* allowed);

  // Whether keys may be passed as fingerprints, so that a caller with many keys can hash each key
  // when it reads it, and need not read it again.
  bool TakesFingerprints() const { return takes_fingerprints_; }
  // Both require TakesFingerprints().
  Fingerprint FingerprintOf(std::string_view key) const;
  void HitMany(absl::Span<const Fingerprint> keys, bool* allowed);

  int64_t NowNs() const { return store_.NowNs(); }
  LimiterStats stats() const;
  // How often each of limits() was the limit that refused, in their order.
  std::vector<int64_t> refused() const;
  // How often each of limits() that is in shadow would have refused; 0 for the others.
  std::vector<int64_t> refused_in_shadow() const;
  // Whether calls may wait for I/O.
  bool blocks() const { return store_.blocks(); }
  // Hit() for a limiter that blocks(), if it need not wait: then returns true and constructs the
  // answer in `decision`, which may be uninitialised memory.
  bool HitWithoutWaiting(std::string_view key, int64_t cost, Decision* decision);
  // Begins a call without waiting. Returns the answer if it takes no round trip (always, for a
  // store that never waits); else another thread calls `done` once, later, and this must live until
  // then. `hit` is the decision that a refund or a release gives back.
  std::optional<Decision> Submit(Op op, std::string_view key, int64_t cost, const Decision* hit,
                                 Store::Done done);
  // The same for the calls of a reservation, kReserve, kSettle and kRaise: see
  // Store::CallReserved(). The limits must be those of Store::KeepsReservations(). Counts what is
  // reserved as a hit, and what settling writes off.
  std::optional<Decision> SubmitReserved(Op op, std::string_view key, int64_t cost,
                                         std::shared_ptr<Reservation> reservation,
                                         Store::Done done);
  // The same for a limiter that does not block, at once.
  Decision CallReserved(Op op, std::string_view key, int64_t cost, Reservation* reservation);
  // CallReserved(kSettle) for a reservation of one limit that has no record, where that is one step
  // in memory of a key that then owes nothing. Returns false and changes nothing where it is not.
  // Constructs the answer in `decision`, which may be uninitialised memory.
  bool SettleQuickly(std::string_view key, int64_t actual, const Reservation& reservation,
                     Decision* decision);
  // Makes the records of what is reserved without one, so that others can settle it, or find it
  // settled. For a limiter that does not block.
  void RecordReserved(std::string_view key, Reservation* reservation);
  // Sends the submitted calls. Call it once for many, so that they are sent together.
  void Flush();
  Store& store() const { return store_.store(); }

 private:
  friend class Plan;
  using Charges = absl::InlinedVector<Charge, 4>;

  // Each is written by one thread, except number 0, which threads share.
  struct alignas(64) Counts {
    std::array<std::atomic<int64_t>, 2> calls{};  // denied, allowed
  };
  // The counters of all threads, made on a thread's first count: a process may have very many
  // limiters.
  class ThreadCounts {
   public:
    ~ThreadCounts();
    // Null if the thread has not counted yet.
    Counts* Find(int thread) const {
      return counts_[static_cast<unsigned>(thread)].load(std::memory_order_acquire);
    }
    Counts& Get(int thread);
    int64_t Sum(bool allowed) const;

   private:
    static constexpr size_t kMostThreads = 128;  // those of gate.h
    std::array<std::atomic<Counts*>, kMostThreads> counts_{};
  };

  Limiter(std::vector<BoundLimit> limits, std::shared_ptr<Store> store,
          std::shared_ptr<Clock> clock);

  // Whether there is one limit, and it is enforced.
  bool IsSingle() const { return limits_.size() == 1 && !has_shadow_; }
  // Whether in addition the fast paths of the stores can step that limit.
  bool HasShortWay() const;
  // Hit() and Allow() are one of these; an Answer is a Decision or a bool. The fast path charges
  // one limit in a store of cells. For what it cannot decide, and other stores that do not block,
  // the second one charges one limit, and the third one does all else.
  template <typename Answer, typename S>
  Answer HitQuickly(S& store, std::string_view key, int64_t cost);
  template <typename S>
  Decision HitAtLength(S& store, std::string_view key, int64_t cost);
  Decision HitPlan(std::string_view key, int64_t cost);
  template <typename S>
  bool SettleQuickly(S& store, std::string_view key, int64_t actual, const Reservation& reservation,
                     Decision* decision);
  // What is not a single unit in the memory store.
  template <typename Answer, bool is_one>
  Answer HitElsewhere(std::string_view key, int64_t cost);
  void HitBatch(absl::Span<const Fingerprint> keys, const Moment& moment, Verdict* verdicts);
  Charges PlanFor(std::string_view key, int64_t cost) const;
  void Count(int64_t allowed, int64_t denied);
  // Counts a decision in which limit `rule` of this limiter binds.
  void Count(const Decision& decision, uint32_t rule);
  // The same inline, for hits.
  void CountOne(const Decision& decision, uint32_t rule);
  void CountOne(bool allowed);
  // Counts the units of a ChargeInFull() that were not charged.
  void CountWrittenOff(const Decision& decision, int64_t cost);
  // Counts what a call of a reservation has decided or written off.
  void CountReserved(Op op, int64_t cost, const Reservation& reservation, const Decision& decision);
  // Counts calls that limits in shadow would have refused; `outcomes` begins with those of
  // limits().
  void CountShadow(absl::Span<const Decision> outcomes);
  void CountRefusalBy(uint32_t rule) {
    if (!refused_.empty()) refused_[rule].fetch_add(1, std::memory_order_relaxed);
  }
  // How often each limit in shadow, or each other limit, refused.
  std::vector<int64_t> Refused(bool shadow) const;

  const std::vector<BoundLimit> limits_;
  const TimedStore store_;
  const bool has_shadow_;
  // The store if it is one of these and HasShortWay(): the hottest calls go to it directly.
  MemoryCells* const memory_;
  ShmCells* const shm_;
  // The store if it leases the only limit: hits go to what was leased first.
  Store* const leased_;
  const bool takes_fingerprints_;
  ThreadCounts counts_;
  // The refusals by each limit, if there are several limits or one is in shadow.
  std::vector<std::atomic<int64_t>> refused_;
  std::atomic<int64_t> written_off_{0};
};

}  // namespace tidegate

#endif  // TIDEGATE_LIMITER_H_
