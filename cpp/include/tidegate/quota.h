// Quotas: a number of units in each calendar period, of which unused units may be carried into
// later periods, and to which top-ups may be added.
//
//   absl::StatusOr<Limit> quota = Limit::Parse("quota 10000/month rollover 5000");
//
// The units of a key are a list of grants: the base of the current period, units carried from
// earlier periods, and top-ups. A hit spends the grants in the order of (priority, expiry). Nothing
// runs at a period's edge: the next call brings the state forward over all periods that have passed
// (quotas/step.h). Instants are whole seconds since the epoch, since periods begin at whole
// seconds.
#ifndef TIDEGATE_QUOTA_H_
#define TIDEGATE_QUOTA_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tidegate {

enum class QuotaPeriod : uint8_t { kDay, kWeek, kMonth, kQuarter, kYear };

// A count that a quota had: until an instant, and since the instant of the one before it.
struct FormerCount {
  int64_t count = 0;
  int64_t until_s = 0;
  friend bool operator==(const FormerCount&, const FormerCount&) = default;
};

struct QuotaSpec {
  QuotaPeriod period = QuotaPeriod::kMonth;
  // Periods begin at local midnight of this day of the month (the last day of a shorter month) or
  // of the week, with Monday as 1. `anchor_month` is for quarters and years.
  int anchor_day = 1;
  int anchor_month = 1;
  std::string zone = "UTC";  // a name of the IANA database
  // The most units of one period that are carried. If both are given the smaller one counts; with
  // neither, nothing is carried.
  std::optional<int64_t> rollover;
  std::optional<int> rollover_percent;  // percentage of the limit
  int rollover_periods = 1;             // how many periods carried units last
  bool first_prorated = false;          // a new key gets only the share of the period that is left
  // The counts before the present one, the oldest first. They decide about the parts of periods in
  // which a key had no call.
  std::vector<FormerCount> former;
};

// A validated QuotaSpec with its calendar. Immutable.
class QuotaTerms {
 public:
  static constexpr int kMostPeriods = 12;  // the most periods that carried units may last
  static constexpr int kMostTopUps = 16;   // the most top-ups of one key at a time
  static constexpr int kMostFormer = 16;   // the most former counts

  struct Period {
    int64_t index = 0;  // consecutive periods have consecutive numbers from 1 up
    int64_t start_s = 0;
    int64_t end_s = 0;
  };

  static absl::StatusOr<std::shared_ptr<const QuotaTerms>> Create(QuotaSpec spec);

  const QuotaSpec& spec() const { return spec_; }
  Period PeriodAt(int64_t now_s) const;
  // The instant at which a period begins: local midnight, or the first instant after it if clocks
  // skip midnight.
  int64_t Edge(int64_t index) const;

  // How many periods carried units last; 0 if nothing is carried.
  int carried_periods() const { return carries_ ? spec_.rollover_periods : 0; }
  // How many of the `left` units of a period with the limit `limit` are carried.
  int64_t CarriedOf(int64_t limit, int64_t left) const;
  // The count in force at an instant, where `count` is in force now.
  int64_t CountAt(int64_t count, int64_t at_s) const;
  // Whether the quota had the count `had` in the period that ended at `end_s`: otherwise another
  // quota of the same id wrote it.
  bool HadCount(int64_t count, int64_t had, int64_t end_s) const;

  // How long after its period the state of an idle key is kept. After that the key is a new key.
  int64_t kept_s() const { return kept_s_; }

  int64_t nominal_period_ns() const;
  // No period is longer.
  int64_t longest_period_s() const;
  // The text "quota COUNT/month ...", which Limit::Parse() reads.
  std::string TextOf(int64_t count) const;
  // The same text without former counts, so that a name stays when the count changes.
  std::string NameOf(int64_t count) const;

 private:
  explicit QuotaTerms(QuotaSpec spec);

  QuotaSpec spec_;
  absl::TimeZone zone_;
  bool carries_ = false;
  int64_t kept_s_ = 0;
  uint64_t serial_ = 0;  // a number that identifies the terms in caches
};

// Units that were granted at once; `left` of the `units` can still be spent. The base of a period
// in which more was charged than granted (Limiter::ChargeInFull()) has spent more than its units.
struct QuotaGrant {
  int64_t units = 0;
  int64_t spent = 0;
  int64_t left() const { return units - spent; }
  friend bool operator==(const QuotaGrant&, const QuotaGrant&) = default;
};

// Extra units. Grants of lower priority are spent first, and among equals the grant that expires
// first; base and carried units have priority 0.
struct QuotaTopUp : QuotaGrant {
  static constexpr int64_t kMostUnits = int64_t{1} << 52;  // the sum of all top-ups of a key
  static constexpr int64_t kNoExpiry = (int64_t{1} << 40) - 1;
  static constexpr int kMostPriority = 100;

  int64_t expires_s = kNoExpiry;
  int priority = 0;
  friend bool operator==(const QuotaTopUp&, const QuotaTopUp&) = default;
};

// The state of one key. The period 0 means a fresh state.
struct QuotaState {
  int64_t period = 0;
  int64_t end_s = 0;   // the end of the period
  int64_t limit = 0;   // the largest count that the base was granted for
  int64_t count = 0;   // the count in force when the state was written
  int64_t used = 0;    // units charged in the period
  uint8_t events = 0;  // the soft events that happened in the period, as bits of kQuotaEvents
  QuotaGrant base;
  absl::InlinedVector<QuotaGrant, 1> carried;  // by age, the last period's grant first
  std::vector<QuotaTopUp> top_ups;             // in the order of spending

  friend bool operator==(const QuotaState&, const QuotaState&) = default;
};

// The percentages that cause soft events, from the lowest bit of QuotaState::events up.
inline constexpr int kQuotaEvents[] = {80, 100};

struct QuotaStatus {
  enum class Kind : uint8_t { kCarried, kBase, kTopUp };
  struct Grant {
    Kind kind;
    int64_t units;
    int64_t left;
    int64_t expires_s;
    int priority;
  };
  int64_t base = 0;     // granted for this period
  int64_t carried = 0;  // carried from earlier periods, when this period began
  int64_t topped_up = 0;
  int64_t used = 0;
  int64_t available = 0;
  int64_t resets_s = 0;       // when the next period begins
  std::vector<Grant> grants;  // in the order of spending
};

// A queue of soft events until they are collected. Bounded; thread-safe.
class QuotaEvents {
 public:
  static constexpr size_t kMost = 1'000;
  struct Event {
    std::string key;
    int percent;
    int64_t used;
    int64_t available;
    int64_t resets_s;
  };

  void Push(std::string_view key, uint8_t happened, const QuotaState& state);
  std::vector<Event> Take();
  int64_t dropped() const;

 private:
  mutable std::mutex mutex_;
  std::deque<Event> events_;
  int64_t dropped_ = 0;
};

}  // namespace tidegate

#endif  // TIDEGATE_QUOTA_H_
