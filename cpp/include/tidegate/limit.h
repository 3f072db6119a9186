// A limit: how many units may pass in what time, by which algorithm.
//
//   absl::StatusOr<Limit> limit = Limit::Parse("100/minute");
//   absl::StatusOr<Limit> burst = Limit::Parse("10/second burst 40");
//
// A Limit is immutable and validated: every value that exists can be stepped
// without overflow. Thread-safe, as all immutable values are.
#ifndef TIDEGATE_LIMIT_H_
#define TIDEGATE_LIMIT_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tidegate {

// Units of the window before that no sliding window can have, and so mark one that owes.
inline constexpr int64_t kSlidingDebtMark = 0xfffffe00;

enum class Algorithm : uint8_t {
  kTokenBucket,    // GCRA; `gcra` is its alias
  kLeakyBucket,    // the same state; decisions say how long to wait
  kFixedWindow,    // windows aligned to the epoch, or to the calendar
  kSlidingWindow,  // two weighted counters
  kSlidingLog,     // the instants themselves: exact, O(count) memory a key
  kConcurrency,    // in flight at once; `period` is the lease
  kQuota,          // units of calendar periods, which may be carried into later ones: quota.h
};

// The public name, such as "token-bucket".
std::string_view AlgorithmName(Algorithm algorithm);
absl::StatusOr<Algorithm> ParseAlgorithm(std::string_view name);

// How fixed windows longer than a week are aligned.
enum class Calendar : uint8_t { kNone, kMonth, kYear };

// Token buckets and leaky buckets have a burst and a theoretical arrival time; the others count.
constexpr bool IsBucket(Algorithm a) {
  return a == Algorithm::kTokenBucket || a == Algorithm::kLeakyBucket;
}
// Algorithms whose state is one cell (CellState in step.h).
constexpr bool HasCell(Algorithm a) { return a < Algorithm::kSlidingLog; }
// Algorithms whose state is a list of instants. The state of a quota is neither that nor one cell.
constexpr bool IsLog(Algorithm a) {
  return a == Algorithm::kSlidingLog || a == Algorithm::kConcurrency;
}

class QuotaTerms;
struct FormerCount;

// The usage that stays when the number of a limit with an id changes.
enum class CarryOver : uint8_t {
  kUnits,  // the units used
  kShare,  // the share of the limit that was used; only for buckets whose burst is their count
};

struct LimitSpec {
  static constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();

  int64_t count = 0;
  int64_t period_ns = 0;
  std::optional<int64_t> burst;  // buckets only; defaults to `count`
  Algorithm algorithm = Algorithm::kTokenBucket;
  Calendar calendar = Calendar::kNone;
  int64_t calendar_units = 1;  // how many months or years of the calendar a period has
  std::string name;            // empty: the canonical text
  std::string rule;            // what a Decision reports as its rule; empty: the name
  bool shadow = false;         // counts, and refuses nothing
  // Identifies the usage instead of the limit's text: when only the number of such a limit changes,
  // usage stays. Empty: the text identifies it.
  std::string id;
  CarryOver carry_over = CarryOver::kUnits;
  // The most units that a key may owe beyond the capacity (Limiter::ChargeInFull()); kNoBound for
  // no bound, unset for ten times the capacity.
  std::optional<int64_t> max_debt;
  // Whether a cost beyond the capacity passes when nothing of the key is used, and owes the rest.
  bool oversize_owes = false;
  // The calendar of a quota, which determines its period; null for all other limits.
  std::shared_ptr<const QuotaTerms> quota;
};

class Limit {
 public:
  // Bounds, chosen so that no step can overflow 64 bits of nanoseconds and so
  // that Lua's doubles carry every count exactly.
  static constexpr int64_t kMaxCount = (int64_t{1} << 53) - 1;
  static constexpr int64_t kMaxWindowCount = (int64_t{1} << 32) - 1;
  static constexpr int64_t kMaxKeptCount = (int64_t{1} << 32) - 1;  // of buckets with an id
  static constexpr int64_t kMaxLogCount = 1'000'000;
  static constexpr int64_t kMaxQuotaCount = (int64_t{1} << 48) - 1;
  static constexpr int64_t kMaxPeriodNs = 3'155'760'000'000'000'000;  // 100 years

  static absl::StatusOr<Limit> Create(LimitSpec spec);
  // A limit that is never reached, for decisions on requests without limits. `rule` is the value of
  // rule(), and may be empty.
  static Limit Unlimited(std::string rule);

  // Returns the same quota with the former counts, which are valid.
  Limit WithFormer(std::vector<FormerCount> former) const;
  // Returns the same limit with `rule`, which may be empty, as its rule().
  Limit WithRule(std::string rule) const;

  // Parses one limit: COUNT (/|per) [N] UNIT [burst COUNT], or a quota (quotas/parse.h). UNIT is
  // ns, us, ms, s, m, h, d, w, month or year, or its long form, with or without a plural.
  // `defaults` gives the algorithm, name and burst.
  static absl::StatusOr<Limit> Parse(std::string_view text, const LimitSpec& defaults = {});
  // Parses limits separated by ';', ',' or '|'.
  static absl::StatusOr<std::vector<Limit>> ParseMany(std::string_view text,
                                                      const LimitSpec& defaults = {});

  // 0 lets nothing through, whatever the cost.
  int64_t count() const { return spec_.count; }
  int64_t period_ns() const { return spec_.period_ns; }
  int64_t burst() const { return burst_; }
  Algorithm algorithm() const { return spec_.algorithm; }
  Calendar calendar() const { return spec_.calendar; }
  int64_t calendar_units() const { return spec_.calendar_units; }

  // The most that can pass at once: the burst of a bucket, else the count. A Decision reports it as
  // its limit.
  int64_t capacity() const { return IsBucket(spec_.algorithm) ? burst_ : spec_.count; }

  // The largest cost that is ever allowed: the capacity, and for a limit whose larger costs owe the
  // rest as much more as a key may owe.
  int64_t most_cost() const { return capacity() + (spec_.oversize_owes ? max_debt_ : 0); }
  // A cost that is never allowed. A quota may have more units left than its count.
  int64_t beyond() const {
    return spec_.algorithm == Algorithm::kQuota ? kMaxCount : most_cost() + 1;
  }
  // Null unless this is a quota.
  const QuotaTerms* quota() const { return spec_.quota.get(); }

  // Its name in header fields: the given name, else ToString().
  const std::string& name() const { return name_; }
  // The rule in a Decision: the rule of the set that it belongs to, else name().
  const std::string& rule() const { return rule_; }

  // The arguments of Create(), to make a similar limit.
  const LimitSpec& spec() const { return spec_; }

  // Whether it is counted but not enforced, to try a limit on real traffic.
  bool shadow() const { return spec_.shadow; }

  // The most units that a key may owe beyond the capacity: what the spec says, as far as a state
  // can hold it. 0 for concurrency limits, whose units are given back and never paid off by time.
  int64_t max_debt() const { return max_debt_; }
  // Whether `cost` is such a one: it passes when nothing of the key is used, and owes the rest.
  bool IsOversize(int64_t cost) const { return cost > capacity() && cost <= most_cost(); }

  const std::string& id() const { return spec_.id; }
  // Distinguishes its usage from that of other limits of the same algorithm: the id and the period,
  // else the text.
  const std::string& identity() const { return identity_; }
  // Whether the state records the count that wrote it (step.h): for buckets with an id.
  bool keeps_count() const { return keeps_count_; }
  // What the state of a bucket that keeps its count has more in its fraction: denominator() for
  // each period beyond the first that the burst spans, up to 100. So a limit with another burst
  // sees how far ahead the state may lie.
  int64_t span_parts() const { return span_parts_; }
  // The largest cost that the fast paths of a bucket may charge: 0 if it keeps its count or is in
  // shadow.
  int64_t most_plain_cost() const { return most_plain_cost_; }

  // The canonical text: Parse(ToString()) gives an equal limit (of the same
  // algorithm). "100/minute", "5/2 seconds", "10/second burst 40".
  const std::string& ToString() const { return text_; }

  // The emission interval T = period / count as an exact fraction: T is
  // step_ns() + step_fraction() / denominator() nanoseconds, in lowest terms.
  int64_t denominator() const { return denominator_; }
  int64_t numerator() const { return numerator_; }
  int64_t step_ns() const { return step_ns_; }
  int64_t step_fraction() const { return step_fraction_; }
  // burst * T, likewise.
  int64_t depth_ns() const { return depth_ns_; }
  int64_t depth_fraction() const { return depth_fraction_; }

  friend bool operator==(const Limit& a, const Limit& b) {
    return a.spec_.algorithm == b.spec_.algorithm && a.text_ == b.text_ && a.name_ == b.name_ &&
           a.rule_ == b.rule_ && a.spec_.shadow == b.spec_.shadow && a.spec_.id == b.spec_.id &&
           a.spec_.carry_over == b.spec_.carry_over && a.max_debt_ == b.max_debt_ &&
           a.spec_.oversize_owes == b.spec_.oversize_owes;
  }

 private:
  Limit() = default;

  LimitSpec spec_;
  int64_t burst_ = 0;
  std::string text_;
  std::string name_;
  std::string rule_;
  std::string identity_;
  bool keeps_count_ = false;
  int64_t span_parts_ = 0;
  int64_t most_plain_cost_ = 0;
  int64_t max_debt_ = 0;
  int64_t numerator_ = 0;
  int64_t denominator_ = 1;
  int64_t step_ns_ = 0;
  int64_t step_fraction_ = 0;
  int64_t depth_ns_ = 0;
  int64_t depth_fraction_ = 0;
};

}  // namespace tidegate

#endif  // TIDEGATE_LIMIT_H_
