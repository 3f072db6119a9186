// The keys that this process holds units of, or may soon: a table of fixed size. A key enters it
// when it is hit twice within a lease, so that keys that are seldom hit cost nothing here and are
// decided as without leases.
//
// Thread-safe. No lock is held while another function than those of this room runs. For one
// process: a child of a fork makes its own (ProcessLocal), so that it never spends what its parent
// was granted.
#ifndef TIDEGATE_SRC_LEASES_TABLE_H_
#define TIDEGATE_SRC_LEASES_TABLE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "leases/centre.h"
#include "leases/holding.h"
#include "leases/spin_lock.h"
#include "leases/windows.h"
#include "tidegate/decision.h"
#include "tidegate/fingerprint.h"
#include "tidegate/store.h"

namespace tidegate::leases {

// How a limit is leased.
struct Leasing {
  BoundLimit bound;  // for questions that outlive their limiter
  Terms terms;
  int64_t length_ns;  // of its leases
  // The depth if twice as much has room in 64 bits; else 0.
  int64_t narrow_depth = (terms.depth() >> 60) == 0 ? static_cast<int64_t>(terms.depth()) : 0;
  // More than no bucket is used, since no more than its depth is held: twice the narrow depth.
  int64_t most_ahead_ns =
      2 * (terms.denominator == 1 ? narrow_depth : narrow_depth / terms.denominator + 1);
  bool is_window = IsWindow(bound.limit.algorithm());
  // What is used of a bucket that is used for `ahead_ns`, `held` units of this among them: as a
  // Decision tells it. Of a call that was refused at least what leaves no room for its cost, which
  // is 0 for one that was not.
  struct Usage {
    int64_t ns;
    int64_t fraction;
  };
  Usage UsageOf(int64_t ahead_ns, int64_t held, int64_t refused_cost) const;

  // Leases of at most `longest_ns` for the limit that `bound` holds; null, and in `why` the reason,
  // if it stays strict.
  static std::shared_ptr<const Leasing> Of(const BoundLimit& bound, int64_t longest_ns,
                                           std::string* why = nullptr);
};

// A question to the centre, with or without a call.
struct Asking {
  std::shared_ptr<const Leasing> leasing;
  Fingerprint print;
  std::string key;
  Question question;
  bool asks = true;  // false: the call of a key that has slots at the centre, and asks for nothing
};

// The questions of a plan, one for each limit or null; empty if there are none.
using Askings = absl::InlinedVector<std::shared_ptr<const Asking>, 1>;

class Table {
 public:
  enum class Answer : uint8_t {
    kUnknown,  // ask Redis, with `asking` if it is not null
    kDecided,
  };

  // Of ProcessLocal.
  void Start() {}
  void Stop() {}

  // Decides a hit by what this process knows. If `asking` is set with kDecided, it is a question
  // without a call, to be sent now; the caller sees to Hear() or Lose().
  Answer Hit(const Charge& charge, const Fingerprint& print, Decision* decision,
             std::shared_ptr<const Asking>* asking);
  // A hit at `now_ns`, an instant that may serve many hits. Spends its units if a lease has had
  // them since then; else changes nothing. `asking` as for Hit().
  bool Spend(const Charge& charge, const Fingerprint& print, int64_t now_ns,
             std::shared_ptr<const Asking>* asking);
  // The question that a call to Redis should carry; null if none. After Hit() said kUnknown.
  std::shared_ptr<const Asking> Ask(const Charge& charge, const Fingerprint& print);
  bool Peek(const Charge& charge, const Fingerprint& print, Decision* decision);
  // Whether the units went back into the lease that they came from.
  bool PutBack(const Charge& charge, const Fingerprint& print);

  // The same for the limits of a plan, all or none, at one instant. HitAll() and PeekAll() decide
  // if leases or refusals decide each limit; `outcomes` may be null.
  Answer HitAll(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints,
                Decision* decision, Outcomes* outcomes, Askings* askings);
  bool PeekAll(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints,
               Decision* decision, Outcomes* outcomes);
  bool PutBackAll(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints);
  // A limit that is strict by itself has the centre decide of each call; then no limit is asked
  // for, and a question only says that its key has slots.
  Askings AskAll(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints);
  void Reset(const Fingerprint& print);

  struct Heard {
    bool allowed = true;
    int64_t cost = 0;
    int64_t granted = 0;
    int64_t now_ns = 0;                                // the server's
    Level level;                                       // afterwards, at now_ns, of a bucket
    std::optional<WindowLevel> window = std::nullopt;  // or of a window
    int64_t wait_ns = 0;                               // if the call was refused
  };
  // Takes an answer. Gives its units back if no call here waits for them any more.
  void Hear(const Asking& asking, const Heard& heard);
  void Lose(const Asking& asking);
  // Until when calls of this cost are refused here, from now on; 0 if they are not.
  int64_t HeldFor(const Charge& charge, const Fingerprint& print);

  // The questions that give units back: of keys that lost their place, and of windows whose units
  // nobody has used in time; or of all keys.
  std::vector<std::shared_ptr<const Asking>> TakeGivenUp();
  std::vector<std::shared_ptr<const Asking>> GiveUpAll();
  bool has_given_up() const { return has_given_up_.load(std::memory_order_relaxed); }

  // Fills in the counters of leases.
  void AddTo(StoreStats* stats);

 private:
  static constexpr size_t kSets = 1024;
  static constexpr size_t kWays = 8;
  static constexpr size_t kSightings = 1 << 14;
  // Keys that are hit in turn do not hide each other unless there are more of them in one place.
  static constexpr size_t kSightingWays = 4;
  static constexpr size_t kLongestKey = 256;
  static constexpr size_t kLine = 64;
  static constexpr size_t kHitLines = 3;

  // What a hit by a lease needs comes first, in as few cache lines as it has room in.
  struct alignas(kLine) Entry {
    std::shared_ptr<const Leasing> leasing;  // null: the place is free
    int64_t last_ns = 0;                     // of a hit
    int64_t leased_ns = 0;                   // when the last answer to a question came
    int64_t heard_ns = 0;                    // of the newest answer; 0: none yet
    int64_t server_ns = 0;                   // the server's clock then
    int64_t known_ns = 0;  // how far ahead the bucket was then, with what was granted
    std::optional<Keeper> keeper;
    int64_t asked_ns = 0;  // of the last question
    CellState cell;        // the state of the window at heard_ns, with what was granted
    std::string key;

    // Has the processor read what a hit needs, while the clock is read.
    void Prefetch() const {
      for (size_t i = 0; i < kHitLines; ++i) {
        __builtin_prefetch(reinterpret_cast<const char*>(this) + i * kLine, /*rw=*/1);
      }
    }
  };
  struct alignas(kLine) Set {
    SpinLock lock;
    int64_t decided = 0;
    int64_t spent = 0;
    std::array<Fingerprint, kWays> prints;  // of the entries, so that a look needs few cache lines
    std::array<Entry, kWays> entries;

    Fingerprint& print_of(const Entry& entry) {
      return prints[static_cast<size_t>(&entry - entries.data())];
    }
  };
  using SetLock = std::lock_guard<SpinLock>;

  // Locks the places of several keys.
  class Locked;
  using Entries = absl::InlinedVector<Entry*, 4>;

  Set& SetOf(const Fingerprint& print) { return sets_[print.lo % kSets]; }
  // The place of the set that a key takes if that is free, so that most are found at once.
  static size_t HomeOf(const Fingerprint& print) { return print.lo / kSets % kWays; }
  // The key's place, whatever its limit's numbers are; null if it has none.
  static Entry* PlaceOf(Set& set, const Fingerprint& print);
  Entry* Find(Set& set, const Charge& charge, const Fingerprint& print, int64_t now_ns);
  // The entry of the key, unless it is for another number of the limit's id.
  Entry* Own(Set& set, Entry& entry, const Charge& charge, int64_t now_ns);
  Entry* Enter(Set& set, const Charge& charge, const Fingerprint& print, int64_t now_ns);
  // Whether the call can never pass, which only the store says.
  static bool IsBeyond(const Charge& charge) {
    return charge.cost > charge.limit->limit.capacity();
  }
  // Whether the key was hit within its lease; notes this hit.
  bool WasSeen(const Fingerprint& print, int64_t now_ns, int64_t length_ns);
  void GiveUp(Set& set, Entry& entry);
  void TellLater(std::shared_ptr<const Leasing> leasing, const Fingerprint& print,
                 const std::string& key, const std::array<Report, 2>& reports);
  // Fills in what the places hold and have decided. Returns the units that were spent.
  int64_t AddSetsTo(StoreStats* stats);
  // Gives back what is left of leases of windows in some of the sets, if that is due.
  void Sweep();
  // Has TakeGivenUp() be called, outside of the locks, if it is.
  void NoteSweep(int64_t now_ns) {
    if (now_ns >= next_sweep_ns_.load(std::memory_order_relaxed)) {
      has_given_up_.store(true, std::memory_order_relaxed);
    }
  }
  std::shared_ptr<const Asking> Begin(const Fingerprint& print, Entry& entry, int64_t now_ns);
  // The places of the limits that this process knows enough of to decide a call; none if one of
  // them is not decided so. `passes`: whether leases have all units.
  Entries Deciding(absl::Span<const Charge> plan, absl::Span<const Fingerprint> prints,
                   int64_t now_ns, bool* passes);
  static void DecideAll(absl::Span<const Charge> plan, const Entries& entries, int64_t now_ns,
                        bool passes, Decision* decision, Outcomes* outcomes);
  std::shared_ptr<const Asking> AskFor(const Charge& charge, const Fingerprint& print,
                                       Keeper::Course (Keeper::*count)(int64_t, int64_t));
  // A question that asks for nothing, if the centre has answered one about the key; else null.
  std::shared_ptr<const Asking> AskNothing(const Charge& charge, const Fingerprint& print);
  static std::shared_ptr<const Asking> Alone(const Fingerprint& print, const Entry& entry);
  static void Decide(const Charge& charge, const Entry& entry, int64_t now_ns, bool allowed,
                     Decision* decision);
  static void DecideWindow(const Charge& charge, const Entry& entry, int64_t now_ns, bool allowed,
                           Decision* decision);

  const std::unique_ptr<Set[]> sets_ = std::make_unique<Set[]>(kSets);
  alignas(64) std::array<std::atomic<uint64_t>, kSightings> sightings_{};

  absl::Mutex given_up_mu_;
  std::vector<std::shared_ptr<const Asking>> given_up_;
  std::atomic<bool> has_given_up_{false};
  std::atomic<int64_t> next_sweep_ns_{0};
  std::atomic<size_t> swept_{0};  // sets
  std::atomic<int64_t> questions_{0};
  std::atomic<int64_t> granted_{0};
  std::atomic<int64_t> given_back_{0};
  std::atomic<int64_t> wasted_{0};  // as far as AddTo() has seen
};

}  // namespace tidegate::leases

#endif  // TIDEGATE_SRC_LEASES_TABLE_H_
